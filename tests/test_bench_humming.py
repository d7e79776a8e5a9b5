"""The benchmark's baseline Humming, with a stand-in for its package: what it is given, and what is
said of its results. Humming itself runs on GPUs only."""

import io
import re
import sys
import types

import pytest
import torch
from rich.console import Console

from nvfp4kern.bench import humming_layers, measure, operands, report, timing
from nvfp4kern.bench.humming_layers import HUMMING, INDEXED
from nvfp4kern.bench.shapes import chosen

TILE = 3
NAMES = {"dense": HUMMING, "grouped_contiguous": HUMMING, "indexed": INDEXED}
HALVES = torch.float16, torch.bfloat16
EXPERTS, TOP, N, K, TOKENS = 4, 2, 64, 128, 8  # of the mixtures in the set "quick"


class Layer:
    """What HummingLayer does with ModelOpt's tensors, in float64. `wrong`: one element is."""

    wrong = False
    forms: list[str]

    def __init__(self, *, shape_n, shape_k, weight_config, num_experts, torch_dtype, **padding):
        assert weight_config == {"quant_method": "modelopt", "quant_algo": "nvfp4"}
        assert torch_dtype in HALVES
        assert padding == {"pad_n_to_multiple": 128, "pad_k_to_multiple": 64}
        lead = () if num_experts is None else (num_experts,)
        self.wanted = {
            "weight": ((*lead, shape_n, shape_k // 2), torch.uint8),
            "weight_scale": ((*lead, shape_n, shape_k // 16), torch.float8_e4m3fn),
            "weight_scale_2": (lead or (1,), torch.float32),
        }
        self.humming_config = None

    def to(self, device):
        assert device == torch.device("cpu")
        return self

    def load_from_tensors(self, tensors):
        assert {n: (tuple(t.shape), t.dtype) for n, t in tensors.items()} == self.wanted
        self.tensors = tensors

    def transform(self):
        codes, factors, scale = self.tensors.values()
        values = operands.Operand(codes, factors.view(torch.uint8), None, 1.0).values().double()
        self.weights = scale.double()[:, None, None] * values.view(-1, *values.shape[-2:])
        self.humming_config = object()

    def __call__(self, x, *, outputs, compute_config, tuning_config, **lists):
        form = compute_config["gemm_type"]
        assert tuning_config == {"chosen for": (x.shape[0], form), "block_shape": (TILE, 128, 64)}
        assert x.dtype == outputs.dtype and x.dtype in HALVES and x.is_contiguous()
        assert outputs.shape == (x.shape[0], self.weights.shape[1])
        for rows, expert in getattr(self, form)(x.shape[0], **lists):
            outputs[rows] = (x[rows].double() @ self.weights[expert].T).to(x.dtype)
        if self.wrong:
            outputs[0] += 1
        self.forms.append(form)
        return outputs

    def dense(self, count):
        yield slice(0, count), 0

    def grouped_contiguous(self, count, expert_layout):
        assert expert_layout.dtype == torch.int64 and expert_layout.shape == (EXPERTS + 1,)
        assert expert_layout[0] == 0 and expert_layout[-1] == count
        for expert in range(EXPERTS):
            yield slice(expert_layout[expert], expert_layout[expert + 1]), expert

    def indexed(self, count, sorted_ids, expert_ids, num_tokens_padded, top_k):
        lists = sorted_ids, expert_ids, num_tokens_padded
        assert {one.dtype for one in lists} == {torch.int32} and top_k == 1
        assert num_tokens_padded.shape == () and num_tokens_padded == len(sorted_ids)
        assert len(sorted_ids) == TILE * len(expert_ids)
        kept = sorted_ids[sorted_ids != count]
        assert kept.tolist() == list(range(count)) and len(kept) < len(sorted_ids)
        for rows, expert in zip(sorted_ids.view(-1, TILE), expert_ids, strict=True):
            yield rows[rows < count].long(), expert


def choose(config, *, shape_m, gemm_type):
    assert config is not None  # the layer is transformed
    return {"chosen for": (shape_m, gemm_type), "block_shape": (TILE, 128, 64)}


@pytest.fixture
def humming(monkeypatch):
    """The stand-in is installed, and products are compared with it on the CPU. Nothing is timed,
    but the results are written again."""

    def in_turns(contenders):
        for calls in contenders.values():
            calls[0]()
        return dict.fromkeys(contenders, timing.Time(1.0, 1.0, 1.0))

    monkeypatch.setattr(timing, "host_in_turns", in_turns)
    layer = type("HummingLayer", (Layer,), {"forms": []})
    modules = {
        "humming": types.ModuleType("humming"),
        "humming.layer": types.SimpleNamespace(HummingLayer=layer),
        "humming.tune": types.SimpleNamespace(get_heuristics_config=choose),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(humming_layers, "DEVICES", ("cpu",))
    return layer


def rows_of_quick():
    """Rows of the W4A16 products, by operator."""
    shapes = chosen(["quick"], ["gemm", "grouped_gemm"])
    wide = [shape for shape in shapes if shape.sizes.get("wide")]
    assert [shape.op for shape in wide] == ["gemm", "gemm", "grouped_gemm"]
    return [measure.measured(shape, "cpu") for shape in wide]


def test_it_gets_the_operands_of_ours_and_is_timed(humming):
    *dense, mixture = rows_of_quick()
    for row in dense:
        assert (
            row["right"] and row["others"][HUMMING]["median"] > 0 and INDEXED not in row["others"]
        )
    assert mixture["right"] and mixture["shape"] == "small 64x128, 8 tokens W4A16"
    assert mixture["sizes"].items() >= {"n": N, "k": K, "tokens": TOKENS, "top": TOP}.items()
    assert all(mixture["others"][name]["median"] > 0 for name in (HUMMING, INDEXED))
    assert set(humming.forms) == set(NAMES)


@pytest.mark.parametrize("wrong", [False, True])
def test_layers_are_made_of_its_products_with_our_route_and_combine(humming, wrong):
    humming.wrong = wrong
    rows = [measure.measured(shape, "cpu") for shape in chosen(["quick"], ["experts", "layer"])]
    assert [row["shape"] for row in rows] == [
        "small float16 64x128, 8 tokens",
        "small bfloat16 64x128, 8 tokens",
        "small W4A16 64x128, 8 tokens",
        "small W4A4 64x128, 8 tokens",
    ]
    assert all(row["right"] for row in rows) and rows[-1]["others"] == {}
    for row in rows[:-1]:
        found = row["others"][HUMMING]
        assert (
            found == {"unavailable": "it computes something else"} if wrong else "median" in found
        )
    assert set(humming.forms) == {"grouped_contiguous"}


def test_tables_have_no_more_baselines_than_fit(humming):
    environment = {"device": "cpu"} | dict.fromkeys(("nvfp4kern", "torch", "date"), "x")
    console = Console(width=80, file=io.StringIO())
    report.show(console, {"environment": environment, "rows": rows_of_quick()})
    title, gemm, first, second, *_ = re.split(r"\n(?=\w*gemm,)", console.file.getvalue())
    assert "…" not in title + gemm + first + second and gemm.count("Humming") == 1
    assert "a loop" in first.replace("\n", " ") and "Humming" not in first
    assert second.count("Humming") == 2 and "small 64x128" in second and "256x256" not in second


def test_a_result_that_is_not_ours_has_no_time(humming):
    humming.wrong = True
    for row in rows_of_quick():
        found = {name: entry for name, entry in row["others"].items() if name.startswith(HUMMING)}
        assert row["right"] and found
        for entry in found.values():
            assert entry == {"unavailable": "it computes something else"}
    assert set(humming.forms) == set(NAMES)


def test_where_it_is_not_installed_the_reason_is_said(humming, monkeypatch):
    monkeypatch.setitem(sys.modules, "humming.layer", None)
    for row in rows_of_quick():
        said = row["others"][HUMMING]["unavailable"]
        assert said.startswith("humming-kernels cannot be imported: ") and "humming.layer" in said


def test_batches_are_not_its():
    x = operands.Wide(torch.zeros(2, 3, 32, dtype=torch.float16), 1.0)
    w = operands.operand(*(torch.zeros(2, 8, n, dtype=torch.uint8) for n in (16, 2)), 1.0)
    with pytest.raises(humming_layers.Unavailable, match="it has no batches"):
        humming_layers.dense(x, w)


def test_nvfp4_tokens_are_not_compared_with_it(humming):
    for shape in chosen(["quick"], ["gemm", "grouped_gemm"]):
        if not shape.sizes.get("wide"):
            assert not {HUMMING, INDEXED} & set(measure.measured(shape, "cpu")["others"])
    assert humming.forms == []
