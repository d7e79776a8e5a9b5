"""The benchmark's set `layers`: its rows, and that every step of a layer is checked."""

import pytest
import torch
from torch.nn import functional

from nvfp4kern.bench import baselines, exact, gaussian, measure
from nvfp4kern.bench.shapes import OPERATORS, chosen

DATA = pytest.mark.parametrize("data", [exact, gaussian], ids=["exact", "gaussian"])
LAYERS = [(op, i) for op, count in (("experts", 2), ("layer", 2)) for i in range(count)]


@DATA
@pytest.mark.parametrize("op, number", LAYERS)
def test_a_wrong_step_of_a_layer_is_seen(op, number, data):
    """In each result of each step one element is wrong, or was not written."""
    shape = chosen(["quick"], [op])[number]
    case = measure.made(shape, "cpu", data, seed=0)
    for layout, (call,) in case.calls.items():
        call()
        (out,) = case.outs[layout]
        assert case.right(out, 0)
        for tensor in out:
            kept = tensor.clone()
            tensor.view(-1)[3] = 0 if tensor.dtype is torch.uint8 and kept.view(-1)[3] else 77
            assert not case.right(out, 0), (layout, tensor.shape, tensor.dtype)
            tensor.copy_(kept)
        assert case.right(out, 0)


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="torch has no grouped_mm")
@pytest.mark.parametrize("number", range(2))
def test_experts_by_torch_are_ours(number):
    case = measure.made(chosen(["quick"], ["experts"])[number], "cpu", gaussian, seed=0)
    (call,), (out,) = case.calls[case.layout], case.outs[case.layout]
    call()
    (theirs,) = case.others[baselines.GATED_MM]()
    assert case.agrees(theirs(), out)
    out[-1].view(-1)[0] += 1 + out[-1].abs().max() * 20
    assert not case.agrees(theirs(), out)


def test_the_set_of_layers_is_whole():
    shapes = chosen(["layers"], OPERATORS)
    series = {}
    for shape in shapes:
        series.setdefault((shape.op, shape.series), []).append(shape.at)
    served = [1, 8, 64, 256, 1024, 4096]
    assert series["experts", "Qwen3-30B-A3B float16"] == served
    assert series["layer", "Qwen3-30B-A3B W4A16"] == series["layer", "Qwen3-30B-A3B W4A4"] == served
    assert series["experts", "DeepSeek-V3 float16"] == [2048, 4096]
