"""What engines' experts expect of their rows, where ranks share experts. No engine is needed."""

import pytest
import torch
from torch import nn

import nvfp4kern.torch as nk
from nvfp4kern.engines import experts as engines

LOCAL, HIDDEN, INNER = 2, 32, 16


def layer_of():
    layer, stacks = nn.Module(), {"w13": (2 * INNER, HIDDEN), "w2": (HIDDEN, INNER)}
    for stack, shape in stacks.items():
        weight = nk.quantize(torch.randn(LOCAL, *shape), data_dtype="uint8")
        setattr(layer, f"{stack}_weight", weight.data)
        setattr(layer, f"{stack}_weight_scale", weight.scales)
        setattr(layer, f"{stack}_nvfp4_alpha", torch.ones(LOCAL))
        setattr(layer, f"{stack}_nvfp4_input_scale", torch.ones(()))
    return layer


@pytest.mark.parametrize("w4a4", (False, True))
@pytest.mark.parametrize("how", ("all here", "mapped", "local"))
def test_a_rank_expects_its_experts_share_of_the_rows(how, w4a4, monkeypatch):
    told = []

    def telling(product):
        def tells(*args, expected_rows, **options):
            told.append(expected_rows)
            return product(*args, expected_rows=expected_rows, **options)

        return tells

    for name in ("grouped_gemm", "grouped_dual_gemm"):
        monkeypatch.setattr(nk, name, telling(getattr(nk, name)))
    layer, x = layer_of(), torch.randn(9, HIDDEN, dtype=torch.bfloat16)
    ids, weights = torch.randint(0, LOCAL, (9, 3)), torch.rand(9, 3)
    given = layer, x, ids, weights, w4a4, False
    want = engines.product(*given)
    if how == "mapped":  # of eight experts this rank has 0 and 1
        of_rank = torch.tensor([0, 1] + [-1] * 6, dtype=torch.int32)
        got = engines.product(*given, of_rank)
    else:
        got = engines.product(*given, all_experts=None if how == "all here" else 8)
    assert torch.equal(got, want) and bool(got.any())
    assert told == [27, 27, *[27 if how == "all here" else 7] * 2]  # a quarter, rounded up
