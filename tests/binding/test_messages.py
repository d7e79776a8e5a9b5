"""Messages name the argument, what came, what was expected, and where that is short, a remedy."""

import re

import numpy as np
import pytest
import torch
from exporters import Exporter

import nvfp4kern as nk
from nvfp4kern.competition.nvfp4_group_gemm import custom_kernel

TAKEN = "uint8 or float4_e2m1fn_x2 or float16 or bfloat16"
FLOATS = "float16 or bfloat16 or float32"


def of_ones(*shape, dtype=torch.uint8):
    return torch.ones(shape, dtype=dtype)


def wide(t):
    """The same shape with a stride of 2 along the last dimension."""
    return t.repeat_interleave(2, dim=-1)[..., ::2]


A, B, SFA, SFB = of_ones(4, 32), of_ones(10, 32), of_ones(4, 4), of_ones(10, 4)
X, W = of_ones(4, 64, dtype=torch.half), of_ones(10, 64, dtype=torch.half)
EXPERTS, SFE = of_ones(2, 10, 32), of_ones(2, 10, 4)
OFFSETS = torch.tensor([0, 2, 4])
SF = of_ones(32, 4, 1, 4, 1, 1)
GROUP = (of_ones(4, 32, 1), of_ones(10, 32, 1), of_ones(4, 10, 1, dtype=torch.half))


class Unreadable:
    @property
    def __dlpack__(self):
        raise RuntimeError("no such thing")


class Unprintable:
    def __str__(self):
        raise OSError("no text")

    def __repr__(self):
        return "it"


def gemm(a=A, b=B, sfa=SFA, sfb=SFB, **options):
    return lambda: nk.gemm(a, b, sfa, sfb, **options)


def contiguous(offsets, **options):
    return lambda: nk.grouped_gemm(A, EXPERTS, SFA, SFE, offsets=offsets, **options)


def grouped(sizes):
    return lambda: custom_kernel(([GROUP], [], [(SF, SF)], sizes))


SAYS = [
    # What cannot be converted.
    (gemm(out_dtype=Unprintable()), ValueError,
     "out_dtype: it, expected 'float16', 'bfloat16' or 'float32'"),
    (gemm(out_dtype="\udc80"), ValueError,
     "out_dtype: '\\udc80', expected 'float16', 'bfloat16' or 'float32'"),
    (gemm(scale_layout="\udc80"), ValueError,
     "scale_layout: '\\udc80', expected 'linear' or 'blocked'"),
    # A dtype that no operator takes, and one that this argument does not take.
    (contiguous(OFFSETS), TypeError,
     "offsets: dtype int64, expected int32, in torch .to(torch.int32)"),
    (gemm(A.double()), TypeError, f"a: dtype float64, expected {TAKEN}"),
    (gemm(A.float()), TypeError, f"a: dtype float32, expected {TAKEN}"),
    (gemm(A.bool()), TypeError, f"a: dtype bool, expected {TAKEN}"),
    (lambda: nk.quantize(X.to(torch.cfloat)), TypeError, f"x: dtype complex64, expected {FLOATS}"),
    (lambda: nk.quantize(X.numpy().astype("i8")), TypeError, f"x: dtype int64, expected {FLOATS}"),
    (gemm(alpha=torch.ones(10).double()), TypeError,
     "alpha: dtype float64, expected float32, in torch .to(torch.float32)"),
    (gemm(sfa=SFA.view(torch.float8_e8m0fnu)), TypeError,
     "sfa: dtype float8_e8m0fnu, expected uint8 or float8_e4m3fn"),
    (gemm(out=of_ones(4, 10, dtype=torch.int8)), TypeError, f"out: dtype int8, expected {FLOATS}"),
    (gemm(out=of_ones(4, 10, dtype=torch.int64), out_dtype="float16"), ValueError,
     "out_dtype: float16, but out has dtype int64"),
    (lambda: nk.quantize(X, out=(of_ones(4, 32, dtype=torch.int64), None), data_dtype="uint8"),
     ValueError, "data_dtype: uint8, but out[0] has dtype int64"),
    (lambda: nk.route(X, W, 2, out=(None, of_ones(4, 2, dtype=torch.int64))), TypeError,
     "out[1]: dtype int64, expected int32, in torch .to(torch.int32)"),
    (gemm(X, W, None, None), TypeError, "b: dtype float16, expected uint8 or float4_e2m1fn_x2"),
    (lambda: nk.grouped_gemm([A], [W], [SFA], None), TypeError,
     "b[0]: dtype float16, expected NVFP4 like a"),
    (lambda: nk.grouped_gemm([X], [W.bfloat16()]), TypeError,
     "b[0]: dtype bfloat16, expected float16 like a"),
    # No scale factors.
    (gemm(sfa=None), ValueError,
     "sfa: None, expected the scale factors of a, since its dtype uint8 is that of codes"),
    (gemm(X, sfa=None, sfb=None), ValueError,
     "sfb: None, expected the scale factors of b, since its dtype uint8 is that of codes"),
    (lambda: nk.gemv(A, A[:1], None, SFA[:1]), ValueError,
     "sfa: None, expected the scale factors of a, since its dtype uint8 is that of codes"),
    (lambda: nk.dual_gemm(A, B, B, SFA, SFB, None), ValueError,
     "sfb2: None, expected the scale factors of b2, since its dtype uint8 is that of codes"),
    (lambda: nk.dequantize((A, None, 1.0)), ValueError,
     "q.scales: None, expected the scale factors of q.data, since its dtype uint8 is that of "
     "codes"),
    (contiguous(None), TypeError, "offsets: None, expected int32 [G + 1], since a is no list"),
    # Rows.
    (contiguous(OFFSETS.int(), rows=OFFSETS), TypeError,
     "rows: dtype int64, expected int32, in torch .to(torch.int32)"),
    (contiguous(OFFSETS.int(), rows=OFFSETS.int()[None]), ValueError,
     "rows: shape (1, 3), expected [P]"),
    (contiguous(OFFSETS.int(), rows=wide(OFFSETS.int())), ValueError,
     "rows: stride 2, expected 1, as after .contiguous()"),
    (contiguous(OFFSETS.int(), rows=OFFSETS.int()[::2]), ValueError,
     "rows: stride 2, expected 1, as after .contiguous()"),
    (contiguous(OFFSETS.int(), rows=of_ones(1, dtype=torch.int), rows_per_token=0), ValueError,
     "rows_per_token: 0, expected 1 to 2147483647"),
    (contiguous(OFFSETS.int(), rows_per_token=2), ValueError,
     "rows_per_token: 2, expected 1 where rows is None"),
    (lambda: nk.grouped_gemm([A], [B], [SFA], [SFB], rows_per_token=2), ValueError,
     "rows_per_token: 2, expected 1 where a is a list"),
    (lambda: nk.grouped_gemm([A], [B], [SFA], [SFB], rows=OFFSETS.int()), ValueError,
     "rows: given, expected None where a is a list"),
    (contiguous(OFFSETS.int(), expected_rows=5), ValueError,
     "expected_rows: 5, expected 0 to 4: the rows that offsets divide"),
    (contiguous(OFFSETS.int(), expected_rows=-2), ValueError,
     "expected_rows: -2, expected 0 or more"),
    (lambda: nk.grouped_gemm([A], [B], [SFA], [SFB], expected_rows=4), ValueError,
     "expected_rows: given, expected None where a is a list"),
    # Strides.
    (gemm(wide(A)), ValueError, "a: stride 2 along K, expected 1, as after .contiguous()"),
    (gemm(wide(X), sfa=None), ValueError,
     "a: stride 2 along K, expected 1, as after .contiguous()"),
    (lambda: nk.quantize(wide(X)), ValueError,
     "x: stride 2 along K, expected 1, as after .contiguous()"),
    (lambda: nk.grouped_gemm([X], [of_ones(20, 128, dtype=torch.half)[::2, ::2]]), ValueError,
     "b[0]: strides of 256 and 2 elements, expected K or N to be contiguous"),
    (lambda: nk.to_blocked(wide(SFA)), ValueError,
     "scales: stride 2 along K/16, expected 1, as after .contiguous()"),
    (lambda: nk.route(X, W, 2, permutation=True, out=(None, None, OFFSETS.int().repeat(7)[:20:2],
                                                      None, None)), ValueError,
     "out[2]: stride 2, expected 1, as after .contiguous()"),
    (gemm(A.view(1, 1, 1, 4, 32), sfa=SFA.view(1, 1, 1, 1, 4, 4)), ValueError,
     "sfa: shape (1, 1, 1, 1, 4, 4), expected (1, 1, 1, 4, 4) for scale_layout 'linear'"),
    (gemm(bias=torch.ones(9)), ValueError, "bias: shape (9,), expected (10,)"),
    (lambda: nk.quantize(X, scale_layout="blocked", offsets=OFFSETS[:0].int()), ValueError,
     "offsets: shape (0,), expected [G + 1]"),
    (gemm(sfa=of_ones(32, 4, 1, 4, 1)), ValueError,
     "sfa: shape (32, 4, 1, 4, 1), expected (4, 4) for scale_layout 'linear'; this looks like "
     "scale_layout='blocked'"),
    (lambda: nk.grouped_gemm([], [B]), ValueError,
     "b: 1 items, expected 0: a list with one item for each of a"),
    (lambda: nk.grouped_gemm([A], B, [SFA], [SFB]), TypeError,
     "b: Tensor, expected a list with one item for each of a"),
    (lambda: nk.grouped_gemm([A], [B], [SFA], [SFB], alpha=torch.ones(1)), TypeError,
     "alpha: Tensor, expected a number or a list with one item for each of a"),
    (gemm(A[:, :16], B[:, :16], wide(SFA[:, :2]), SFB[:, :2]), ValueError,
     "sfa: stride 2 along K/16, expected 1, as after .contiguous()"),
    (gemm(sfa=wide(SFA)), ValueError,
     "sfa: stride 2 along K/16, expected 1, as after .contiguous()"),
    (contiguous(wide(OFFSETS.int())), ValueError,
     "offsets: stride 2, expected 1, as after .contiguous()"),
    (lambda: nk.quantize(X.numpy(), out=(np.zeros((4, 32), "u1")[::-1], None)), ValueError,
     "out[0]: stride -32 in dimension 0, expected none below 0"),
    (gemm(out=of_ones(10, dtype=torch.half).expand(4, 10)), ValueError,
     "out: stride 0 in dimension 0 puts elements in one place, expected at least 1"),
    # Numbers.
    (lambda: nk.route(X, W, np.array([2, 3])), TypeError, "k: ndarray, expected an int"),
    (lambda: nk.route(X, W, torch.tensor([2.0])), TypeError, "k: Tensor, expected an int"),
    (lambda: nk.route(X, W, 2.0), TypeError, "k: float, expected an int"),
    (lambda: nk.route(X, W, 2**63), ValueError, "k: 9223372036854775808 does not fit 64 bits"),
    (lambda: nk.from_blocked(A, -(2**63) - 1, 4), ValueError,
     "rows: -9223372036854775809 does not fit 64 bits"),
    (lambda: nk.route(X, W, 2, scaling_factor=np.ones(2)), TypeError,
     "scaling_factor: ndarray, expected a number"),
    (lambda: nk.route(X, W, 2, scaling_factor=torch.ones(2)), TypeError,
     "scaling_factor: Tensor, expected a number"),
    (gemm(alpha=[1.0]), TypeError, "alpha: list, expected a number or a tensor"),
    (gemm(alpha=None), TypeError, "alpha: NoneType, expected a number or a tensor"),
    (contiguous(OFFSETS.int(), alpha=[1.0, 2.0]), TypeError,
     "alpha: list, expected a number or a tensor"),
    (lambda: nk.grouped_dual_gemm(A, EXPERTS, SFA, SFE, offsets=OFFSETS.int(),
                                  alpha=torch.ones(2, 9)), ValueError,
     "alpha: shape (2, 9), expected one element, (2,), (2, 2) or (2, 10)"),
    (lambda: nk.quantize(X, global_scale=[1.0]), TypeError,
     "global_scale: list, expected a number or a tensor"),
    # Words.
    (gemm(scale_layout=5), TypeError,
     "scale_layout: int, expected 'linear', 'blocked' or a pair of them for (sfa, sfb)"),
    (gemm(scale_layout=("linear", 5)), TypeError,
     "scale_layout: int, expected 'linear' or 'blocked'"),
    (lambda: nk.dual_gemm(A, B, B, SFA, SFB, SFB, activation=len), TypeError,
     "activation: builtin_function_or_method, expected 'silu', 'gelu', 'gelu_tanh', 'relu', "
     "'relu2', 'identity' or 'swiglu_oai'"),
    (lambda: nk.dual_gemm(A, B, B, SFA, SFB, SFB, limit=0), ValueError,
     "limit: 0, expected None or a number above 0"),
    (lambda: nk.dual_gemm(A, B, B, SFA, SFB, SFB, limit=7, activation="relu"), ValueError,
     "limit: 7, expected None: only the activations 'silu' and 'swiglu_oai' have one"),
    (lambda: nk.dual_gemm(A, B, B, SFA, SFB, SFB, activation_scale=-1), ValueError,
     "activation_scale: -1, expected a finite number above 0"),
    (lambda: nk.dual_gemm(A, B, B, SFA, SFB, SFB, activation_scale=2), ValueError,
     "activation_scale: 2, expected 1.702: only the activation 'swiglu_oai' has one"),
    (lambda: nk.grouped_gemm([A], [B], [SFA], [SFB], activation="swiglu_oai"), ValueError,
     "activation: 'swiglu_oai', expected 'silu', 'gelu', 'gelu_tanh', 'relu', 'relu2' or "
     "'identity': there is no gate"),
    (lambda: nk.grouped_gemm([A], [B], [SFA], [SFB], out_dtype="half"), ValueError,
     "out_dtype: 'half', expected 'float16', 'bfloat16' or 'float32'"),
    (gemm(out_dtype=torch.float64), ValueError,
     "out_dtype: torch.float64, expected 'float16', 'bfloat16' or 'float32'"),
    # No tensors, and exporters that fail.
    (gemm([1, 2]), TypeError, "a: list, expected a tensor, an object with __dlpack__"),
    (gemm(Exporter(RuntimeError("boom"))), BufferError, "a: cannot be exported: boom"),
    (gemm(Exporter(TypeError("boom"))), BufferError, "a: cannot be exported: boom"),
    (gemm(Exporter(None, device=KeyError("no"))), BufferError, "a: cannot be exported: 'no'"),
    (gemm(Exporter(None, device="cpu")), BufferError,
     "a: cannot be exported: __dlpack_device__ returned 'cpu', expected (device type, index)"),
    (gemm(Exporter(5)), TypeError, "a: __dlpack__ returned 5, expected a DLPack capsule"),
    (gemm(Exporter(None)), TypeError, "a: __dlpack__ returned None, expected a DLPack capsule"),
    (gemm(Unreadable()), BufferError, "a: cannot be exported: no such thing"),
    (gemm(alpha=Unreadable()), BufferError, "alpha: cannot be exported: no such thing"),
    # The competition's tuples.
    (grouped(np.array([[4, 10, 64, 1]])), TypeError,
     "problem_sizes: ndarray, expected a list with one item for each of abc_tensors"),
    (grouped([np.array([4, 10, 64, 1])]), TypeError,
     "problem_sizes[0]: ndarray, expected a tuple (m, n, k, l)"),
    (grouped([(4, 10, 64)]), ValueError,
     "problem_sizes[0]: 3 items, expected 4: a tuple (m, n, k, l)"),
    (grouped([(4, 10, 64.0, 1)]), TypeError, "problem_sizes: float, expected an int"),
]  # fmt: skip


@pytest.mark.parametrize(
    "call, exception, message", [pytest.param(*case, id=case[2][:40]) for case in SAYS]
)
def test_message(call, exception, message):
    with pytest.raises(exception, match=f"^{re.escape(message)}$") as caught:
        call()
    assert type(caught.value) is exception


@pytest.mark.parametrize("strides, message", [
    ((5, 1), "stride 5 in dimension 0 puts elements in one place, expected at least 10"),
    ((1, 1), "stride 1 in dimension 1 puts elements in one place, expected at least 4"),
])  # fmt: skip
def test_a_stride_that_overlaps_says_how_large_it_must_be(strides, message):
    bytes_apart = [2 * stride for stride in strides]
    out = np.lib.stride_tricks.as_strided(np.zeros(99, np.float16), (4, 10), bytes_apart)
    with pytest.raises(ValueError, match=f"^out: {message}$"):
        nk.gemm(A.numpy(), B.numpy(), SFA.numpy(), SFB.numpy(), out=out)


OTHER_DTYPES = (
    "int8 int16 int64 uint16 uint32 uint64 float64 bool complex32 complex64 complex128 float8_e5m2 "
    "float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)


@pytest.mark.parametrize("name", OTHER_DTYPES.split())
def test_dtypes_that_no_operator_takes_have_names(name):
    with pytest.raises(TypeError, match=f"^a: dtype {name}, expected {TAKEN}$"):
        nk.gemm(torch.zeros(64, dtype=torch.uint8).view(getattr(torch, name))[None], B, None, SFB)


class Raises:
    """A number whose conversion raises what it is given."""

    def __init__(self, exception):
        self.exception = exception

    def __index__(self):
        raise self.exception

    __float__ = __index__


@pytest.mark.parametrize("name, call", [
    ("k", lambda k: nk.route(X, W, k)),
    ("scaling_factor", lambda factor: nk.route(X, W, 2, scaling_factor=factor)),
    ("alpha", lambda alpha: gemm(alpha=alpha)()),
])  # fmt: skip
def test_numbers_that_raise(name, call):
    with pytest.raises(TypeError, match=f"^{name}: Raises, expected a"):
        call(Raises(OSError("no number")))
    for error in (KeyboardInterrupt, MemoryError):
        with pytest.raises(error):
            call(Raises(error()))
