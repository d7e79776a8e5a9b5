"""route: bad operands, logits and expert maps are refused by name, and nothing is written."""

import pytest
import torch
from calls import K, M, N, invoke, local, of_logits, permuting, route
from generators import Guarded
from refusals import given, int32, item, refused, swap, to, wide

import nvfp4kern

MAP = int32(*range(N))


@pytest.mark.parametrize(
    "base, change, exception, name, message",
    [
        (route, given(x=None), TypeError, "x", "None, expected a tensor, or logits in place of"),
        (route, given(w=None), TypeError, "w", "None, expected a tensor"),
        (route, given(k=None), TypeError, "k", "NoneType, expected an int"),
        (route, given(logits=torch.ones(M, N)), ValueError, "x", "given, expected None where"),
        (of_logits, given(w=torch.ones(N, K)), ValueError, "w", "given, expected None where"),
        (of_logits, to("logits", dtype=torch.int32), TypeError, "logits", "dtype int32, expected"),
        (of_logits, swap("logits", wide), ValueError, "logits", "stride 2 along N, expected 1"),
        (of_logits, given(logits=torch.ones(M, 4)[:, ::2]), ValueError, "logits", "stride 2 along"),
        (of_logits, swap("logits", lambda t: t[0, 0]), ValueError, "logits", r"shape \(\)"),
        (of_logits, given(logits=torch.ones(2, M, N)[:, :5]), ValueError, "logits", "shape"),
        (of_logits, given(logits=torch.ones(M, 1025)), ValueError, "logits", "shape .* experts"),
        (of_logits, given(k=N + 1), ValueError, "k", r".* \(logits has 10 experts"),
        (of_logits, given(n_group=3), ValueError, "n_group", ".* experts of logits"),
        (of_logits, given(logits=3), TypeError, "logits", "int, expected a tensor"),
        (local, swap("w", lambda t: t[:, :-1]), ValueError, "w", "shape .* is K = 60, expected"),
        (local, swap("x", wide), ValueError, "x", "stride 2 along K, expected 1"),
        (local, swap("w", wide), ValueError, "w", "stride 2 along K, expected 1"),
        (local, given(return_logits=1), TypeError, "return_logits", "int, expected"),
        (local, item(5, M, N, dtype="float16"), TypeError, "out", "dtype float16, expected"),
        (local, item(5, M, N + 1), ValueError, "out", "shape .* expected"),
        (local, item(2, N, dtype=torch.int32), ValueError, "out", r"shape \(10,\), expected \(3,"),
        (local, item(3, 3, dtype=torch.int32), ValueError, "out", "shape .* expected"),
        (local, given(expert_map=MAP.long()), TypeError, "expert_map", "dtype int64, expected"),
        (local, given(expert_map=MAP[:-1]), ValueError, "expert_map", r"shape \(9,\), expected"),
        (local, given(expert_map=MAP[None]), ValueError, "expert_map", "shape .* expected"),
        (local, given(num_local_experts=None), TypeError, "num_local_experts", "None, expected"),
        (local, given(num_local_experts=2.0), TypeError, "num_local_experts", "float, expected"),
        (local, given(num_local_experts=-1), ValueError, "num_local_experts", "-1, expected 0 to"),
        (local, given(num_local_experts=1025), ValueError, "num_local_experts", "1025, expected"),
        (local, given(expert_map=None), ValueError, "num_local_experts", "given, expected None"),
        (permuting, given(num_local_experts=0), ValueError, "num_local_experts", "given"),
        (
            route,
            given(expert_map=MAP, num_local_experts=3),
            ValueError,
            "expert_map",
            "given, expected None unless permutation=True",
        ),
    ],
)
def test_is_refused_by_name(base, change, exception, name, message):
    refused(base, "cpu", change, exception, name, message)


@pytest.mark.parametrize("permutation, row_of", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("logits", (False, True))
def test_the_message_says_what_out_holds(permutation, row_of, logits):
    options = {"permutation": permutation, "return_row_of": row_of, "return_logits": logits}
    names = "weights, ids" + ", counts, offsets, sorted_rows" * permutation + ", row_of" * row_of
    with pytest.raises(ValueError) as caught:
        nvfp4kern.route(k=2, logits=torch.ones(3, 4), out=[None], **options)
    assert str(caught.value) == f"out: 1 items, expected ({names}{', logits' * logits})"


@pytest.mark.parametrize("shared", ("logits", "expert_map", "x"))
def test_outputs_share_no_memory_with_what_is_new(shared):
    """Nor does logits_out with the other outputs."""
    buffer = torch.zeros(4096)
    if shared == "logits":
        args = of_logits("cpu")
        args["logits"] = buffer[: M * N].view(M, N)
        args["out"] = (buffer[30 : 30 + 4 * M].view(M, 4), None)
    else:
        args = local("cpu")
        if shared == "x":
            args["x"] = buffer[: M * (K - 3)].view(M, K - 3)
            args["out"] = (*[None] * 5, buffer[10 : 10 + M * N].view(M, N))
        else:
            numbers = buffer.view(torch.int32)
            args["expert_map"] = numbers[:N]
            args["out"] = (None, None, numbers[N - 1 : N + 2], None, None, None)
    with pytest.raises(ValueError, match=rf"^out\[\d\]: shares memory with {shared}"):
        invoke(local, args)
    assert not buffer.any()


def test_logits_of_many_dimensions_must_merge():
    logits = torch.ones(2, 4, 3, 5)[:, ::2]
    with pytest.raises(ValueError, match="^logits: shape .* to merge into one without a copy"):
        nvfp4kern.route(k=2, logits=logits)
    out = Guarded((2, 3, 5), "float32", "cpu")
    assert (
        nvfp4kern.route(
            k=2, logits=torch.ones(2, 3, 5), return_logits=True, out=(None, None, out.tensor)
        )[2]
        .eq(1)
        .all()
    )
    assert out.guards_intact()
