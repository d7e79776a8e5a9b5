"""NumPy alone: CI runs this file without torch and with older NumPy, too, so it needs neither."""

import gc
import sys

import numpy as np
import pytest

import nvfp4kern as nk
from nvfp4kern.verify import data, reference

M, N, K = 4, 6, 64
A, B = (data.exact_family(np.random.default_rng(1), rows, K) for rows in (M, N))
OPERANDS = (A.codes, B.codes, A.scales, B.scales)
WANT = reference.gemm(A.values, B.values).rounded("float16").astype(np.float16)


class Array(np.ndarray):
    """A type that no call has seen, so that nobody remembers how its arrays are read."""


@pytest.fixture(params=["this NumPy", "a NumPy before 2.1"])
def array(request, monkeypatch):
    """Makes arrays of a new type, which are read as in that version."""
    if request.param != "this NumPy":
        monkeypatch.setattr(np, "__version__", "2.0.2")
    kind = type("New", (Array,), {})
    return lambda values: np.array(values).view(kind)


def frozen(x):
    x.flags.writeable = False
    return x


def test_results_are_written(array):
    operands, out = [array(x) for x in OPERANDS], array(np.full((M, N), np.nan, np.float16))
    assert nk.gemm(*operands, out=out) is out
    np.testing.assert_array_equal(out, WANT)
    np.testing.assert_array_equal(nk.gemm(*operands), WANT)


def test_read_only_arrays_are_inputs_and_no_outputs(array):
    operands = [frozen(array(x)) for x in OPERANDS]
    np.testing.assert_array_equal(nk.gemm(*operands), WANT)
    out = frozen(array(np.zeros((M, N), np.float16)))
    with pytest.raises(ValueError, match="^out: read-only, expected a tensor that can be written"):
        nk.gemm(*operands, out=out)
    assert not out.any()


def test_strides_and_empty_arrays(array):
    a, b, sfa, sfb = (array(np.repeat(x, 2, axis=0))[::-2] for x in OPERANDS)
    out = array(np.zeros((M, 2 * N), np.float16))
    nk.gemm(a, b, sfa, sfb, out=out[:, 1 : N + 1])
    np.testing.assert_array_equal(out[:, 1 : N + 1], WANT[::-1, ::-1])
    assert not out[:, 0].any() and not out[:, N + 1 :].any()
    assert nk.gemm(a[:0], b, sfa[:0], sfb).shape == (0, N)


def test_a_stride_of_minus_one(array):
    alpha = np.arange(N, dtype=np.float32)
    want = nk.gemm(*OPERANDS, alpha=alpha[::-1].copy())
    np.testing.assert_array_equal(nk.gemm(*OPERANDS, alpha=array(alpha)[::-1]), want)


def test_every_operator(array):
    x = np.random.default_rng(2).standard_normal((M, K)).astype(np.float32)
    codes, scales, s2 = reference.quantize(x, "amax")
    q = nk.quantize(array(x), global_scale="amax")
    np.testing.assert_array_equal(q.data, codes)
    np.testing.assert_array_equal(q.scales, scales)
    assert q.global_scale[0] == s2
    back = nk.dequantize(q, out_dtype="float32")
    np.testing.assert_array_equal(back, reference.dequantize(codes, scales, s2))
    blocked = nk.to_blocked(array(scales))
    np.testing.assert_array_equal(blocked, reference.to_blocked(scales))
    np.testing.assert_array_equal(nk.from_blocked(blocked, *scales.shape), scales)
    _, ids = nk.route(array(np.eye(4, 16, dtype=np.float16)), np.eye(4, 16, dtype=np.float16), 1)
    np.testing.assert_array_equal(ids[:, 0], range(4))


def test_what_cannot_be_read(array):
    swapped = np.ones((M, K), np.dtype(np.float32).newbyteorder())
    with pytest.raises(BufferError, match="^x: cannot be exported: .*byte order"):
        nk.quantize(array(swapped))
    fields = np.zeros((M, K), [("f", np.float32), ("g", np.int8)])["f"]
    with pytest.raises(BufferError, match="^x: cannot be exported: .*strides"):
        nk.quantize(fields.view(type(array(0))))
    with pytest.raises(TypeError, match="^x: dtype int64, expected float16"):
        nk.quantize(array(np.ones((M, K), np.int64)))
    with pytest.raises((TypeError, BufferError), match="^x: "):
        nk.quantize(array(["a", "b"]))


# --- ml_dtypes ---


@pytest.fixture
def ml_dtypes():
    return pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")


def test_bfloat16_and_float8_of_ml_dtypes_are_taken_and_returned(ml_dtypes, array):
    a, b, sfa, sfb = (array(x) for x in OPERANDS)
    scales = [x.view(ml_dtypes.float8_e4m3fn) for x in (sfa, sfb)]
    np.testing.assert_array_equal(nk.gemm(a, b, *scales), WANT)
    x = array(A.values.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(np.asarray(x, np.float64), A.values)
    found = nk.gemm(x, b, None, scales[1])
    assert found.dtype == ml_dtypes.bfloat16
    want = reference.gemm(A.values, B.values).rounded("float32").astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.view(np.uint16), want.view(np.uint16))
    out = array(np.zeros((M, N), ml_dtypes.bfloat16))
    assert nk.gemm(x, b, None, scales[1], out=out) is out
    np.testing.assert_array_equal(out.view(np.uint16), want.view(np.uint16))
    q, same = nk.quantize(x), nk.quantize(np.asarray(x, np.float32))
    np.testing.assert_array_equal(q.data, same.data)
    np.testing.assert_array_equal(q.scales, same.scales)


def test_float4_of_ml_dtypes_is_packed(ml_dtypes, array):
    codes = np.stack([A.codes & 15, A.codes >> 4], -1).reshape(M, K)
    codes = array(codes.view(ml_dtypes.float4_e2m1fn))
    np.testing.assert_array_equal(nk.gemm(codes, *OPERANDS[1:]), WANT)
    with pytest.raises(BufferError, match="^a: .*two elements for each byte"):
        nk.gemm(codes[:, 1:], *OPERANDS[1:])
    with pytest.raises(ValueError, match="^out: read-only"):
        nk.to_blocked(A.scales, out=np.zeros((128, 8), ml_dtypes.float4_e2m1fn))


def test_other_types_of_ml_dtypes_stay_refused(ml_dtypes):
    with pytest.raises((BufferError, TypeError), match="^a: .*"):
        nk.gemm(A.codes.view(ml_dtypes.float8_e5m2), *OPERANDS[1:])


def test_nothing_of_ml_dtypes_is_kept(ml_dtypes):
    """Of calls that return, and of those that are refused."""
    x = A.values.astype(ml_dtypes.bfloat16)
    refused = A.codes.view(ml_dtypes.float8_e5m2)
    counts = []
    for calls in 0, 1000:
        for _ in range(calls):
            nk.gemm(x, OPERANDS[1], None, OPERANDS[3])
            with pytest.raises((BufferError, TypeError)):
                nk.gemm(refused, *OPERANDS[1:])
        gc.collect()  # cycles of earlier tests hold None too, and may go at any time
        counts.append([sys.getrefcount(each) for each in (x, refused, x.dtype, None)])
    before, after = counts
    assert after[:2] == before[:2]
    assert all(new - old < 100 for new, old in zip(after, before, strict=True))
