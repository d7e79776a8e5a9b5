"""load_checkpoint on models of plain modules: what fills which part, and what does not fit."""

import pytest
import torch
from layers import filled
from safetensors.torch import save_file
from skeletons import Stack
from torch import nn

from nvfp4kern.checkpoint import CheckpointError, load_checkpoint
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear

pytestmark = pytest.mark.filterwarnings("ignore:config.json. says nothing:UserWarning")
H, INNER, EXPERTS = 32, 48, 2
ROLES = {"gate_proj": (INNER, H), "up_proj": (INNER, H), "down_proj": (H, INNER)}


def layer(rows, columns, seed=0):
    return filled(NVFP4Linear(columns, rows, False), seed)


def files(folder, layers):
    tensors = {f"{name}.{k}": v for name, each in layers.items() for k, v in each.items()}
    save_file({name: value.clone() for name, value in tensors.items()}, folder / "m.safetensors")
    return folder


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(H, 16, bias=False, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(H, dtype=torch.bfloat16)


@pytest.mark.parametrize("named", [("a",), ("b",), ("a", "b")], ids="+".join)
def test_a_module_that_a_model_has_twice_is_loaded_once(tmp_path, named):
    stored = layer(16, H).state_dict()
    norm = {"weight": torch.full((H,), 2.0), "bias": torch.ones(H)}
    model = nn.ModuleDict({"a": Block().eval(), "c": nn.ModuleList()})
    model["b"] = model["a"]
    model["c"].append(model["a"].proj)
    given = {
        f"{n}.{key}": value for n in named for key, value in (("proj", stored), ("norm", norm))
    }
    load_checkpoint(model, files(tmp_path, given), device="cpu")
    proj = model["a"].proj
    assert type(proj) is NVFP4Linear and not proj.training and proj.weight_scale_2.shape == ()
    assert model["b"] is model["a"] and model["c"][0] is proj
    assert torch.equal(proj.weight, stored["weight"])
    assert torch.equal(model["a"].norm.weight.float(), norm["weight"])


def experts(wrong=None):
    """Layers by name; one of expert 1, whose role is `wrong`, has 16 rows less."""
    made = {}
    for seed, (role, (rows, columns)) in enumerate(ROLES.items()):
        for e in range(EXPERTS):
            less = 16 * (role == wrong and e == 1)
            made[f"experts.{e}.{role}"] = layer(rows - less, columns, seed).state_dict()
    return made


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("quantised", [True, False])
def test_wrong_rows_of_an_expert_name_it_and_both_shapes(tmp_path, role, quantised):
    """They fit some rows of the stack, so that the whole would only lack a few."""
    model = nn.ModuleDict({"experts": Stack(EXPERTS, INNER, H, "cpu")})
    before = model["experts"]
    given, (rows, columns) = experts(role), ROLES[role]
    if not quantised:
        plain = {
            n: torch.zeros(len(v["weight"]), 2 * v["weight"].shape[1]) for n, v in given.items()
        }
        given = {n: {"weight": value} for n, value in plain.items()} | {
            "x": layer(16, 16).state_dict()
        }
        model["x"], columns = nn.Linear(16, 16, False, dtype=torch.bfloat16), 2 * columns
    stack = "down_proj" if role == "down_proj" else "gate_up_proj"
    shapes = rf"\[{rows - 16}, {columns // 2}\], expected \[{rows}, {columns // 2}\]"
    message = rf"^experts\.1\.{role}\.weight: {shapes} as in the model's experts\.{stack}$"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(model, files(tmp_path, given), device="cpu")
    assert model["experts"] is before and type(before) is Stack
    right = files(tmp_path, experts() | ({} if quantised else {"x": given["x"]}))
    load_checkpoint(model, right, device="cpu")
    assert type(model["experts"]) is NVFP4Experts


def test_wrong_rows_of_a_stack_name_it_and_both_shapes(tmp_path):
    stored = filled(NVFP4Experts(H, INNER, EXPERTS), 1).state_dict()
    for name in ("gate_up_proj", "gate_up_proj_weight_scale"):
        stored[name] = stored[name][:, 32:]
    model = nn.ModuleDict({"experts": Stack(EXPERTS, INNER, H, "cpu")})
    message = r"^experts\.gate_up_proj: \[32, 16\], expected \[48, 16\] as in the model's experts\."
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(model, files(tmp_path, {"experts": stored}), device="cpu")


def test_a_number_where_an_expert_should_be_is_not_in_the_model(tmp_path):
    model = nn.ModuleDict({"experts": Stack(EXPERTS, INNER, H, "cpu")})
    given = experts() | {"experts.2.gate_proj": {"weight": torch.tensor(1.0)}}
    with pytest.raises(CheckpointError, match=r"^experts\.2\.gate_proj\.weight: not in the model"):
        load_checkpoint(model, files(tmp_path, given), device="cpu")
