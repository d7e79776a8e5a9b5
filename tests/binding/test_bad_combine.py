"""combine, and what route and sort_by_expert say for it: bad operands are refused by name, and
nothing is written."""

import pytest
import torch
from calls import K, M, N, combine, inverting, invoke, permuting, route, sort_by_expert
from generators import Guarded
from refusals import given, int32, item, refused, swap, to, wide, zeros

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
        (sort_by_expert, given(ids=None), TypeError, "ids", "None, expected a tensor"),
        (sort_by_expert, to("ids", dtype=torch.int64), TypeError, "ids", "dtype int64, expected"),
        (sort_by_expert, swap("ids", lambda t: t[0, 0]), ValueError, "ids", r"shape \(\), exp"),
        (sort_by_expert, swap("ids", lambda t: t[:5]), ValueError, "out", r"shape \(24,\), expect"),
        (sort_by_expert, given(ids=int32(*[0] * 24).view(4, 2, 3)[::2]), ValueError, "ids",
         "shape .* to merge into one without a copy"),
        (sort_by_expert, given(num_experts=None), TypeError, "num_experts", "NoneType, expected"),
        (sort_by_expert, given(num_experts=2.0), TypeError, "num_experts", "float, expected an"),
        (sort_by_expert, given(num_experts=-1), ValueError, "num_experts", "-1, expected 0 to"),
        (sort_by_expert, given(num_experts=1025), ValueError, "num_experts", "1025, expected 0"),
        (sort_by_expert, given(num_experts=N + 1), ValueError, "expert_map", r"shape \(10,\), exp"),
        (sort_by_expert, given(expert_map=None), ValueError, "num_local_experts", "given, expect"),
        (sort_by_expert, given(num_local_experts=None), TypeError, "num_local_experts", "None"),
        (sort_by_expert, given(num_local_experts=2), ValueError, "out", r"shape \(3,\), expected"),
        (sort_by_expert, item(3, M * 4), TypeError, "out", "dtype float32, expected int32"),
        (sort_by_expert, item(0, 4, **INT32), ValueError, "out", r"shape \(4,\), expected \(3,\)"),
        (sort_by_expert, item(1, 3, **INT32), ValueError, "out", r"shape \(3,\), expected \(4,\)"),
        (sort_by_expert, item(2, M, **INT32), ValueError, "out", r"shape \(6,\), expected \(24,\)"),
        (sort_by_expert, given(out=[None] * 3), ValueError, "out",
         r"3 items, expected \(counts, offsets, sorted_rows, row_of\)"),
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


def test_more_selections_than_int32_counts():
    ids = torch.empty(1, dtype=torch.int32).expand(2**20, 2**11)
    with pytest.raises(ValueError, match=r"^ids: shape .* expected M \* k to fit int32"):
        nvfp4kern.explain("sort_by_expert", ids, 8)
    assert nvfp4kern.explain("sort_by_expert", ids[1:], 8)


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


@pytest.mark.parametrize("base", (inverting, sort_by_expert))
def test_row_of_shares_no_memory_with_the_other_outputs(base):
    args = base("cpu")
    buffer = torch.zeros(M * 4 + 1, dtype=torch.int32)
    others = len(args["out"]) - 2
    args["out"] = (*[None] * others, buffer[:-1], buffer[1:])
    with pytest.raises(ValueError, match=rf"^out\[{others}\]: shares memory with out"):
        invoke(base, args)
    assert not buffer.any()


@pytest.mark.parametrize("name", ("ids", "expert_map"))
def test_a_permutation_shares_no_memory_with_an_input(name):
    args = sort_by_expert("cpu")
    args["out"] = (args[name].flatten()[:3], None, None, None)
    with pytest.raises(ValueError, match=rf"^out\[0\]: shares memory with {name}"):
        invoke(sort_by_expert, args)


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
