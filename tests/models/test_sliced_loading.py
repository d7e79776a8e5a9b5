"""load_checkpoint for a rank: what it reads are slices of what the whole model gets, to the bit."""

import copy
import math
import random

import pytest
import torch
from damage import EXPERTS, changed
from packing import read_directory
from safetensors.torch import save_file
from skeletons import plan_of, skeleton

from nvfp4kern.checkpoint import CheckpointError, Files, load_checkpoint
from nvfp4kern.checkpoint.opened import Opened
from nvfp4kern.checkpoint.slices import own_slices
from nvfp4kern.distributed import Cut, ExpertParallel, Slice, slice_
from nvfp4kern.torch import to_blocked

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
WORLDS = (2, 3)


class Counted:
    """How many bytes of tensors have been read in all."""

    nbytes = 0


@pytest.fixture
def counted(monkeypatch):
    """Headers and configuration are read by another method."""
    fill, tensor, within = Opened._fill, Opened.tensor, []

    def count(file, buffer, begin):
        Counted.nbytes += len(buffer) if within else 0
        fill(file, buffer, begin)

    def read(*arguments):
        within.append(arguments)
        try:
            return tensor(*arguments)
        finally:
            within.pop()

    monkeypatch.setattr(Opened, "_fill", count)
    monkeypatch.setattr(Opened, "tensor", read)
    monkeypatch.setattr(Counted, "nbytes", 0)
    return Counted


def stored(model):
    """Every parameter and buffer, the derived ones too, as bytes."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: (t.dtype, t.shape, t.detach().reshape(-1).view(torch.uint8)) for name, t in tensors
    }


def check_same(got, want):
    got, want = stored(got), stored(want)
    assert got.keys() == want.keys()
    for name, (dtype, shape, content) in got.items():
        assert (dtype, shape) == want[name][:2] and torch.equal(content, want[name][2]), name


def sliced(directory, world, **options):
    model = skeleton(directory, **options)
    names = slice_(model, plan_of(model, world))
    assert names
    return model


CASES = {
    "llama": ("llama", "modelopt-nvfp4", dict(spread=True, shards=3)),
    "awq": ("llama", "modelopt-awq", dict(one_element=True)),
    "fused files": ("llama", "modelopt-nvfp4", dict(fused=True)),
    "divisors": ("qwen3", "ct-w4a4", dict(spread=True)),
    "experts": ("qwen3_moe", "modelopt-nvfp4", dict(spread=True, missing=("*experts.3.*",))),
    "experts, divisors": ("qwen3_moe", "ct-w4a16", dict(spread=True)),
    "stacked E": ("qwen3_moe", "modelopt-nvfp4", dict(stacked="E")),
    "stacked E11": ("qwen3_moe", "modelopt-nvfp4", dict(stacked="E11")),
    "stacked E2": ("qwen3_moe", "modelopt-nvfp4", dict(stacked="E2", spread=True)),
    "other names": ("mixtral", "modelopt-w4a16", {}),
    "shared experts": ("deepseek_v3", "modelopt-nvfp4", dict(spread=True)),
}


def combinations():
    """Dense layers may be fused in the model. Shared experts have 48 columns, so for 3 ranks."""
    for case, (architecture, _, _) in CASES.items():
        for world in WORLDS if architecture != "deepseek_v3" else (3,):
            for fuse in (False, True) if architecture in ("llama", "qwen3") else (False,):
                yield pytest.param(case, world, fuse, id=f"{case}-{world}{'-fused' * fuse}")


@pytest.mark.parametrize("case, world, fuse", [*combinations()])
def test_ranks_get_slices_of_the_whole(checkpoint, as_rank, counted, case, world, fuse):
    architecture, form, options = CASES[case]
    directory = checkpoint(architecture, form, **options)
    whole = skeleton(directory, fuse)
    assert load_checkpoint(whole, directory, device="cpu").nbytes_read is None
    tensors, _ = read_directory(directory)
    numbers = sum(t.nbytes for n, t in tensors.items() if t.dtype == torch.float32)
    total = sum(t.nbytes for t in tensors.values())
    for rank in range(world):
        as_rank(rank, world)
        model, want = sliced(directory, world, fuse=fuse), copy.deepcopy(whole)
        slice_(want, plan_of(want, world))
        counted.nbytes = 0
        report = load_checkpoint(model, directory, device="cpu")
        check_same(model, want)
        assert any(isinstance(module, Slice) for module in model.modules())
        # Global scales are looked at by all ranks before anything is read.
        own = sum(p.nbytes for p in model.parameters())
        assert report.nbytes_read == counted.nbytes <= own + 2 * numbers < total
        assert "of it read by this rank" in str(report) and report.nbytes >= total


@pytest.mark.parametrize("input_quant", [None, "dynamic"])
def test_input_quant_says_otherwise_than_the_files(checkpoint, as_rank, input_quant):
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4", spread=True)
    as_rank(1, 2)
    model = sliced(directory, 2)
    load_checkpoint(model, directory, device="cpu", input_quant=input_quant)
    slices = [module for module in model.modules() if isinstance(module, Slice)]
    assert {mine.input_quant for mine in slices} == {input_quant}
    assert {type(mine).__name__ for mine in slices} == {
        "ColumnParallel", "RowParallel", "ExpertParallel",
    }  # fmt: skip
    experts = next(mine for mine in slices if isinstance(mine, ExpertParallel))
    assert experts.tokens == "same" and experts.reduce_dtype == torch.float32


def test_a_loaded_part_loads_again(checkpoint, as_rank):
    directory = checkpoint("llama", "modelopt-nvfp4", spread=True)
    as_rank(1, 2)
    model = sliced(directory, 2)
    load_checkpoint(model, directory, device="cpu")
    before = copy.deepcopy(model)
    load_checkpoint(model, directory, device="cpu")
    check_same(model, before)


# --- Other files ---

INDICES = [(), (2,), (slice(1, 3),), (1, slice(8, 24)), (slice(None), slice(None), slice(1, 3))]


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "blocked"])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_of_a_tensor(tmp_path, name, index):
    """Blocked scale factors are read whole, and say so."""
    draw = torch.Generator().manual_seed(1)
    scales = torch.randint(0, 126, (3, 40, 5), generator=draw, dtype=torch.uint8)
    scales = scales.view(torch.float8_e4m3fn)
    held = {"s": scales}
    if name == "blocked":
        held = {"s": to_blocked(scales.view(120, 5))}
    if name.endswith(".pt"):
        torch.save(held, tmp_path / name)
        files = Files(tmp_path / name)
    else:
        save_file(held, tmp_path / "m.safetensors")
        files = Files(tmp_path / "m.safetensors")
    if name == "blocked":
        assert files.unblock("s", (3, 40, 5))
    for _ in range(2):
        got = files.read("s", index)
        assert torch.equal(got.view(torch.uint8), scales.view(torch.uint8)[index])
    assert files.nbytes_read == (held["s"].nbytes if name == "blocked" else 2 * got.nbytes)


def test_what_a_rank_has_of_any_fill():
    """Filling the whole and cutting it gives the same, wherever the cut is."""
    draw = random.Random(1)

    def some(extent):
        start = draw.randrange(extent)
        return slice(start, draw.randint(start + 1, extent)) if draw.random() < 0.8 else slice(None)

    for _ in range(500):
        shape = [draw.randint(2, 6) for _ in range(3)]
        dim = draw.randrange(3)
        points = sorted(draw.choices(range(shape[dim] + 1), k=4))
        cut = Cut(dim, shape[dim], ((points[0], points[1]), (points[2], points[3])))
        index = tuple(map(some, shape[: draw.randint(0, 3)]))
        if draw.random() < 0.5:
            index = (draw.randrange(shape[0]), *index[1:])
        whole = torch.zeros(shape)
        taken = whole[index].shape
        source = torch.rand(3, *(extent + 2 for extent in taken))
        given = (draw.randrange(3), *(slice(1, 1 + extent) for extent in taken))
        whole[index] = source[given]
        mine = torch.zeros_like(cut.of(whole))
        for at, of in own_slices(cut, index, given, source.shape):
            mine[at] = source[of]
        assert torch.equal(mine, cut.of(whole))
        assert cut.shape_of_whole(mine.shape) == whole.shape and cut.extent == mine.shape[dim]


@pytest.mark.parametrize(
    "index",
    [(slice(1, 2),), (3, slice(0, 1024)), (1, slice(7, 9), slice(3, 40)), (2, 5, 6)],
    ids=str,
)
def test_other_experts_and_rows_are_not_read(tmp_path, counted, index):
    whole = torch.randint(0, 255, (4, 2048, 64), dtype=torch.uint8)
    save_file({"before": torch.ones(3), "e": whole}, tmp_path / "m.safetensors")
    got = Files(tmp_path / "m.safetensors").read("e", index)
    assert torch.equal(got, whole[index]) and counted.nbytes == got.nbytes


def test_an_index_outside_of_a_tensor_is_an_error_with_its_name(tmp_path):
    save_file({"s": torch.zeros(4)}, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"^m\.safetensors: s: "):
        Files(tmp_path / "m.safetensors").read("s", (7,))


# --- What does not fit ---


@pytest.mark.parametrize(
    "form, options",
    [("modelopt-nvfp4", dict(exclude=("*.o_proj", "lm_head"))), ("modelopt-mixed", {})],
)
def test_a_cut_layer_that_is_not_nvfp4_in_the_files(checkpoint, as_rank, form, options):
    """16 bits, or FP8."""
    directory = checkpoint("llama", form, **options)
    as_rank(0, 2)
    model = sliced(directory, 2)
    before = dict(model.named_modules())
    with pytest.raises(CheckpointError, match=r"0\.self_attn\.o_proj: not in NVFP4 in the files"):
        load_checkpoint(model, directory, device="cpu")
    assert dict(model.named_modules()) == before


@pytest.mark.parametrize("how", ("amax", "token"))
def test_the_largest_magnitude_of_an_input_that_no_rank_has(checkpoint, as_rank, how):
    directory = checkpoint("llama", "modelopt-nvfp4")
    as_rank(0, 2)
    with pytest.raises(
        CheckpointError, match=f"_proj: input_quant='{how}': no rank has whole rows"
    ):
        load_checkpoint(sliced(directory, 2), directory, device="cpu", input_quant=how)


O_PROJ = "model.layers.0.self_attn.o_proj"


@pytest.fixture
def loaded(checkpoint, tmp_path):
    """loaded(change): a rank's model of files whose tensors were changed."""

    def load(change):
        directory = checkpoint("qwen3_moe", "modelopt-w4a16")
        model = sliced(directory, 2)
        load_checkpoint(model, changed(directory, tmp_path / "m", change), device="cpu")
        return model

    return load


def without(name):
    return lambda tensors: [tensors.pop(n) for n in list(tensors) if n.startswith(name)]


def shorter(name):
    def change(tensors):
        for key in ("weight", "weight_scale"):
            tensors[f"{name}.{key}"] = tensors[f"{name}.{key}"][:-1].clone()

    return change


def one_more_expert(tensors):
    for name in [n for n in tensors if n.startswith(f"{EXPERTS}.0.")]:
        tensors[name.replace("experts.0.", "experts.4.")] = tensors[name].clone()


BROKEN = {
    "another rank's expert is missing": (
        without(f"{EXPERTS}.3."),
        "experts.gate_up_proj.*: the model",
    ),
    "another rank's expert is short": (
        shorter(f"{EXPERTS}.3.up_proj"),
        r"experts\.3\.up_proj\.weight: \[47, 32\], expected \[48, 32\] as in the model's .*experts",
    ),
    "a row-cut layer is short": (
        shorter(O_PROJ),
        r"o_proj\.weight: \[63, 32\], expected \[64, 32\] as in the model's .*o_proj\.weight",
    ),
    "one expert more": (
        one_more_expert,
        r"experts\.4\..*: an expert beyond the 4 of .*experts",
    ),
    "another rank's global scale": (
        lambda t: t.update({f"{EXPERTS}.3.up_proj.weight_scale_2": torch.tensor(math.nan)}),
        r"experts\.3\.up_proj\.weight_scale_2: nan, expected a finite",
    ),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", BROKEN)
def test_all_ranks_refuse_what_headers_say(loaded, as_rank, kind, rank):
    """And global scales. So no rank waits for one that has failed."""
    change, message = BROKEN[kind]
    as_rank(rank, 2)
    with pytest.raises(CheckpointError, match=message):
        loaded(change)


@pytest.mark.parametrize("name, at, reader", [
    (O_PROJ, (3, 2), 1), (O_PROJ, (3, 1), 0), (f"{EXPERTS}.1.up_proj", (0, 0), 0),
    (f"{EXPERTS}.2.down_proj", (31, 2), 1),
])  # fmt: skip
@pytest.mark.parametrize("rank", [0, 1])
def test_scale_factors_are_checked_by_the_rank_that_reads_them(
    loaded, as_rank, name, at, reader, rank
):
    def spoil(tensors):
        tensors[f"{name}.weight_scale"].view(torch.uint8)[at] = 0x7F

    as_rank(rank, 2)
    if rank == reader:
        with pytest.raises(CheckpointError, match=f"{name}.weight_scale: 1 scale factors are NaN"):
            loaded(spoil)
    else:
        assert loaded(spoil).get_submodule(O_PROJ).weight.shape == (64, 16)
