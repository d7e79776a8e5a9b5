"""combine, and what route says for it: bad operands are refused by name, and nothing is written."""

import pytest
import torch
from calls import K, M, combine, inverting, invoke, permuting, route
from generators import Guarded
from test_bad_input import given, int32, item, refused, swap, to, wide, zeros

import nvfp4kern

INT32 = {"dtype": torch.int32}


@pytest.mark.parametrize(
    "base, change, exception, name, message",
    [
        (combine, given(products=None), TypeError, "products", "None, expected a tensor"),
        (combine, to("products", dtype=torch.int32), TypeError, "products", "dtype int32, expect"),
        (combine, swap("products", lambda t: t[0]), ValueError, "products", r"shape \(64,\), exp"),
        (combine, swap("products", lambda t: t[None]), ValueError, "products", "shape"),
        (combine, swap("products", wide), ValueError, "products", "stride 2 along H, expected 1"),
        (combine, swap("products", lambda t: t[:, :5]), ValueError, "residual", "shape .*, expect"),
        (combine, swap("products", lambda t: t[:4]), ValueError, "row_of",
         "row 4 is 4, expected -1 or one of the 4 rows"),
        (combine, swap("products", lambda t: t[:0]), ValueError, "row_of", "row 0 is 0, expected"),
        (combine, given(row_of=None), TypeError, "row_of", "None, expected a tensor"),
        (combine, to("row_of", dtype=torch.int64), TypeError, "row_of", "dtype int64, expected"),
        (combine, to("row_of", dtype=torch.float32), TypeError, "row_of", "dtype float32, expec"),
        (combine, swap("row_of", lambda t: t[:-1]), ValueError, "row_of",
         r"shape \(23,\), expected \(24,\): a number for each of the 6 x 4 weights"),
        (combine, swap("row_of", lambda t: t.view(M, 4)), ValueError, "row_of", "shape"),
        (combine, swap("row_of", wide), ValueError, "row_of", "stride 2, expected 1"),
        (combine, swap("row_of", lambda t: t - 1), ValueError, "row_of", "row 2 is -2, expected"),
        (combine, swap("row_of", lambda t: t + 2**31 - 5), ValueError, "row_of", "row 0 is 21474"),
        (combine, given(weights=None), TypeError, "weights", "None, expected a tensor"),
        (combine, to("weights", dtype=torch.float64), TypeError, "weights", "dtype float64"),
        (combine, swap("weights", wide), ValueError, "weights", "stride 2 along k, expected 1"),
        (combine, swap("weights", lambda t: t[0, 0]), ValueError, "weights", r"shape \(\), expec"),
        (combine, swap("weights", lambda t: t[:, :3]), ValueError, "row_of", r".* 6 x 3 weights"),
        (combine, swap("weights", lambda t: t[None]), ValueError, "residual", "shape"),
        (combine, given(weights=torch.ones(4, 3, 4)[::2]), ValueError, "weights",
         "shape .* to merge into one without a copy"),
        (combine, to("residual", dtype=torch.int32), TypeError, "residual", "dtype int32"),
        (combine, swap("residual", lambda t: t[:, 1:]), ValueError, "residual", "shape"),
        (combine, swap("residual", lambda t: t[0]), ValueError, "residual", "shape"),
        (combine, swap("residual", wide), ValueError, "residual", "stride 2 along H"),
        (combine, given(residual=3), TypeError, "residual", "int, expected a tensor"),
        (combine, given(out=zeros(M, K)), TypeError, "out", "dtype uint8, expected"),
        (combine, given(out=zeros(M, K + 1, dtype=torch.half)), ValueError, "out", "shape"),
        (combine, given(out=zeros(M, 2 * K, dtype=torch.half)[:, ::2]), ValueError, "out",
         "strides of 128 and 2 elements, expected rows or columns to be contiguous"),
        (combine, given(out_dtype="float32"), ValueError, "out_dtype", "float32, but out has"),
        (combine, given(out_dtype="int8"), ValueError, "out_dtype", ""),
        (inverting, given(return_row_of=1), TypeError, "return_row_of", "int, expected"),
        (inverting, item(5, M * 4), TypeError, "out", "dtype float32, expected int32"),
        (inverting, item(5, M, 4, **INT32), ValueError, "out", r"shape \(6, 4\), expected \(24,\)"),
        (inverting, item(5, M * 4 + 1, **INT32), ValueError, "out", r"shape \(25,\), expected"),
        (permuting, given(return_row_of=True), ValueError, "out", r"5 items, expected \(weights"),
        (route, given(return_row_of=True), ValueError, "return_row_of",
         "True, expected False unless permutation=True"),
    ],
)  # fmt: skip
def test_is_refused_by_name(base, change, exception, name, message):
    refused(base, "cpu", change, exception, name, message)


@pytest.mark.parametrize("logits", (False, True))
def test_the_message_says_what_out_holds(logits):
    options = {"permutation": True, "return_row_of": True, "return_logits": logits}
    names = "(weights, ids, counts, offsets, sorted_rows, row_of" + ", logits" * logits + ")"
    with pytest.raises(ValueError) as caught:
        nvfp4kern.route(k=2, logits=torch.ones(3, 4), out=[None], **options)
    assert str(caught.value) == f"out: 1 items, expected {names}"


@pytest.mark.parametrize("name", ("products", "row_of", "weights", "residual"))
def test_the_result_shares_no_memory_with_an_input(name):
    args = combine("cpu")
    buffer = torch.zeros(2 * M * K, dtype=torch.float16)
    given_one = args[name]
    size = given_one.numel() * given_one.element_size()
    shared = buffer.view(torch.uint8)[-size:].view(given_one.dtype).view(given_one.shape)
    args |= {name: shared.copy_(given_one), "out": buffer[-M * K :].view(M, K)}
    before = buffer.clone()
    with pytest.raises(ValueError, match=f"^out: shares memory with {name}"):
        invoke(combine, args)
    assert torch.equal(buffer.view(torch.uint8), before.view(torch.uint8))


def test_row_of_shares_no_memory_with_the_other_outputs():
    args = inverting("cpu")
    buffer = torch.zeros(M * 4 + 1, dtype=torch.int32)
    args["out"] = (*[None] * 4, buffer[:-1], buffer[1:])
    with pytest.raises(ValueError, match=r"^out\[4\]: shares memory with out"):
        invoke(inverting, args)
    assert not buffer.any()


def test_every_output_must_be_one():
    args = inverting("cpu")
    args["out"][5] = object()
    with pytest.raises(TypeError, match=r"^out\[5\]: object, expected a tensor"):
        invoke(inverting, args)


def test_an_output_of_none_is_allocated():
    args = inverting("cpu")
    args["out"][5] = None
    result = invoke(inverting, args)
    assert result[5].tolist() == torch.argsort(result[4]).tolist()


def test_a_residual_of_many_dimensions_must_merge():
    residual = torch.ones(2, 4, 3, 5)[:, ::2]
    args = torch.ones(1, 5), int32(*[0] * 12), torch.ones(2, 2, 3, 1)
    with pytest.raises(ValueError, match="^residual: shape .* to merge into one without a copy"):
        nvfp4kern.combine(*args, residual=residual)
    out = Guarded((12, 5), "float32", "cpu")
    nvfp4kern.combine(*args, residual=residual.contiguous(), out=out.tensor.view(2, 2, 3, 5))
    assert out.tensor.eq(2).all() and out.guards_intact()


def test_sizes_that_overflow():
    """M k, and the bytes of a result, must fit 64 bits."""

    def nothing(*shape, dtype=torch.float16):
        return torch.empty(1, dtype=dtype).as_strided(shape, [0] * (len(shape) - 1) + [1])

    with pytest.raises(ValueError, match="^weights: sizes .* overflow"):
        nvfp4kern.explain("combine", nothing(0, 2**40), int32(), nothing(2**40, 0))
