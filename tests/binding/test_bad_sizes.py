"""Sizes and strides that 64 bits, or the int32 of a permutation, cannot hold."""

import numpy as np
import pytest
import torch
from calls import K, M, bytes_of, gemm, invoke
from exporters import capsule_of

import nvfp4kern


@pytest.mark.parametrize("batches, rows, columns", [(0, 40, 40), (10, 30, 24), (0, 31, 31)])
def test_sizes_beyond_64_bits(device, batches, rows, columns):
    """Tensors that repeat one row (powers of two): their product has 2^80 elements, 2^64 of all
    batches, or 2^63 bytes."""
    codes, sf = bytes_of(1, K // 2, device=device), bytes_of(1, K // 16, device=device)
    a, sfa = (t.expand(2**batches, 2**rows, -1) for t in (codes, sf))
    b, sfb = (t.expand(2**columns, -1) for t in (codes, sf))
    with pytest.raises(ValueError, match="^a: .*overflow"):
        nvfp4kern.gemm(a, b, sfa, sfb)


def test_blocked_scales_beyond_64_bits():
    """Nobody reads them: 2^10 batches of one row, each padded to 2^54 bytes of scales."""
    a = capsule_of(torch.zeros(1, dtype=torch.uint8), shape=(2**10, 1, 2**50))
    args = gemm("cpu")
    with pytest.raises(ValueError, match="^sfa: .*overflow"):
        nvfp4kern.gemm(a, args["b"], args["sfa"], args["sfb"], scale_layout="blocked")


def test_blocked_scales_of_experts_beyond_64_bits():
    """Nobody reads them: 2^10 experts of one row each, whose atoms have 2^54 bytes of scales."""
    experts, byte = 2**10, torch.zeros(1, dtype=torch.uint8)
    shapes = {"a": (experts, 2**50), "b": (experts, 1, 2**50), "sfb": (experts, 1, 2**47)}
    a, b, sfb = (capsule_of(byte, shape=shape) for shape in shapes.values())
    sfa = capsule_of(byte, shape=(2**10, 2**47))
    with pytest.raises(ValueError, match="^sfa: sizes 131072 x 140737488355328 overflow"):
        nvfp4kern.explain("grouped_gemm", a, b, sfa, sfb, scale_layout=("blocked", "linear"),
                          offsets=torch.arange(experts + 1, dtype=torch.int32))  # fmt: skip


def rows_of_nothing(*rows):
    return capsule_of(torch.zeros(1).half(), (2, 16, 1), (*rows, 0))


@pytest.mark.parametrize(
    "rows, experts, options",
    [
        ((2**40, 2**40), 4, {}),  # their product
        ((2**31, 2**31), 4, {}),  # M k
        ((2**52,), 1024, {"dense": True}),  # the bytes of weights
        ((2**29, 2**30), 4, {"out_dtype": "float16"}),  # the bytes of ids alone
        ((2**52,), 1024, {"return_logits": True}),  # the bytes of logits alone
    ],
)
def test_rows_without_elements_beyond_64_bits(rows, experts, options):
    with pytest.raises(ValueError, match="^x: sizes .* overflow"):
        nvfp4kern.explain("route", rows_of_nothing(*rows), rows_of_nothing(experts), 4, **options)


def test_batches_without_elements_beyond_64_bits():
    x = capsule_of(torch.zeros(1).half(), (2, 16, 1), (2**40, 2**40, 0, 16))
    with pytest.raises(ValueError, match="^x: sizes 1099511627776 x 1099511627776 overflow"):
        nvfp4kern.explain("quantize", x)


def test_the_largest_size():
    """One less than 2^55."""
    w, most = rows_of_nothing(4), 2**55 - 2
    assert nvfp4kern.explain("route", rows_of_nothing(most), w, 4)
    with pytest.raises(ValueError, match="^x: shape .* overflow"):
        nvfp4kern.explain("route", rows_of_nothing(most + 1), w, 4)
    nothing = capsule_of(torch.zeros(1, dtype=torch.uint8), shape=(0,))
    for rows, cols in ((most, 0), (0, most)):
        assert nvfp4kern.explain("from_blocked", nothing, rows, cols)
    for name, rows, cols in (("rows", most + 1, 0), ("cols", 0, most + 1)):
        with pytest.raises(ValueError, match=f"^{name}: 36028797018963967, expected a size from 0"):
            nvfp4kern.explain("from_blocked", nothing, rows, cols)


def test_the_most_bytes():
    """Fewer than 2^61; nobody reads them."""

    def plan(bytes_of_a_row):
        shapes = [(rows, bytes_of_a_row // size) for size in (1, 8) for rows in (2**30, 4)]
        byte = torch.zeros(1, dtype=torch.uint8)
        return nvfp4kern.explain("gemm", *(capsule_of(byte, shape=shape) for shape in shapes))

    assert plan(2**31 - 16)
    with pytest.raises(ValueError, match=r"^a: shape \(1073741824, 2147483648\), .* overflow"):
        plan(2**31)


def test_a_permutation_beyond_32_bits():
    args = "route", rows_of_nothing(2**29), rows_of_nothing(4), 4
    assert nvfp4kern.explain(*args)
    most = "route", rows_of_nothing(2**31 - 1), rows_of_nothing(4), 1
    assert nvfp4kern.explain(*most, permutation=True)
    with pytest.raises(
        ValueError, match=r"^x: shape \(536870912, 0\), expected M \* k to fit int32"
    ):
        nvfp4kern.explain(*args, permutation=True)


def test_padded_scales_of_quantize_beyond_64_bits():
    """2^54 batches of one row of 16 elements, which have 512 bytes of blocked scales each."""
    x = torch.ones(16, dtype=torch.float16).expand(2**27, 2**27, 1, 16)
    assert nvfp4kern.explain("quantize", x)
    with pytest.raises(ValueError, match="^x: sizes 512 x 18014398509481984 overflow"):
        nvfp4kern.explain("quantize", x, scale_layout="blocked")


def test_groups_beyond_64_bits():
    """The output of a group, whose operands repeat one row."""
    codes, sf = bytes_of(1, K // 2, device="cpu"), bytes_of(1, K // 16, device="cpu")
    operands = [[t.expand(2**rows, -1)] for t in (codes, sf) for rows in (30, 34)]
    with pytest.raises(ValueError, match=r"^a\[0\]: sizes .* overflow"):
        nvfp4kern.explain("grouped_gemm", *operands)


@pytest.mark.parametrize("operator, parts", [("grouped_gemm", 1), ("grouped_dual_gemm", 2)])
@pytest.mark.parametrize("quantized", (False, True))
def test_experts_beyond_64_bits(operator, parts, quantized):
    """Tokens and an expert that repeat one row: 2^64 outputs, or 2^63 bytes of codes."""
    codes, sf = bytes_of(1, K // 2, device="cpu"), bytes_of(1, K // 16, device="cpu")
    a, sfa = (t.expand(2**32, -1) for t in (codes, sf))
    b, sfb = (t.expand(1, parts * 2**32, -1) for t in (codes, sf))
    options = {"offsets": torch.tensor([0, 4], dtype=torch.int32), "quantized": quantized}
    with pytest.raises(ValueError, match="^a: sizes 4294967296 x .* overflow"):
        nvfp4kern.explain(operator, a, b, sfa, sfb, **options)


def test_a_negative_size():
    args = gemm("cpu")
    a = capsule_of(args["a"], shape=(-M, K // 2))
    with pytest.raises(ValueError, match="^a: shape .* negative"):
        nvfp4kern.gemm(a, args["b"], args["sfa"], args["sfb"])


@pytest.mark.parametrize("name", ("a", "b", "sfa", "sfb"))
def test_strides_beyond_64_bits(name):
    args = {name: value.numpy() for name, value in gemm("cpu").items() if name not in ("out",)}
    del args["alpha"], args["bias"]
    strides = (2**62, 1)
    args[name] = np.lib.stride_tricks.as_strided(args[name], args[name].shape, strides)
    with pytest.raises(ValueError, match=f"^{name}: .*overflow"):
        invoke(gemm, args)
