"""The border between Python and C: the call itself, DLPack in every form, outputs, references."""

import ctypes
import re
import sys

import numpy as np
import pytest

import nvfp4kern as nk

torch = pytest.importorskip("torch")

M, N, K = 3, 5, 32


@pytest.fixture(scope="module")
def operands():
    """uint8 and torch: a, b, sfa, sfb."""
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 256, (M + N, K // 2), np.uint8)
    scales = rng.integers(0x30, 0x40, (M + N, K // 16), np.uint8)
    return tuple(torch.from_numpy(t) for t in (codes[:M], codes[M:], scales[:M], scales[M:]))


@pytest.fixture(scope="module")
def expected(operands):
    return nk.gemm(*operands)


def same(x, y):
    return np.array_equal(np.asarray(x), np.asarray(y))


# ---------------------------------------------------------------------------------------------
# The call
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nk.gemm(),
            "gemm() missing 4 required positional arguments: 'a', 'b', 'sfa', and 'sfb'",
        ),
        (
            lambda: nk.gemm(1, sfa=2),
            "gemm() missing 2 required positional arguments: 'b' and 'sfb'",
        ),
        (lambda: nk.quantize(), "quantize() missing 1 required positional argument: 'x'"),
        (
            lambda: nk.gemv(1, 2, 3, 4, 5),
            "gemv() takes from 3 to 4 positional arguments but 5 were given",
        ),
        (lambda: nk.quantize(1, 2), "quantize() takes 1 positional argument but 2 were given"),
        (lambda: nk.gemm(1, 2, 3, 4, 5), "gemm() takes 4 positional arguments but 5 were given"),
        (
            lambda: nk.quantize(1, layout=2),
            "quantize() got an unexpected keyword argument 'layout'",
        ),
        (lambda: nk.quantize(1, x=2), "quantize() got multiple values for argument 'x'"),
        (lambda: nk.explain(), "explain() missing 1 required positional argument: 'op'"),
        (
            lambda: nk.explain("quantize"),
            "quantize() missing 1 required positional argument: 'x'",
        ),
        (lambda: nk.warmup("cpu", 1), "warmup() takes from 0 to 1 positional arguments"),
    ],
)
def test_calls_fail_as_python_functions_do(call, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"alpha": "1"}, TypeError, "alpha"),
        ({"alpha": True}, TypeError, "alpha"),
        ({"alpha": None}, TypeError, "alpha"),
        ({"alpha": 1j}, TypeError, "alpha"),
        ({"alpha": 1e39}, ValueError, "alpha"),
        ({"alpha": -3.4028235678e38}, ValueError, "alpha"),
        ({"alpha": 10**400}, ValueError, "alpha"),
        ({"scale_layout": 1}, TypeError, "scale_layout"),
        ({"scale_layout": "swizzled"}, ValueError, "scale_layout"),
        ({"scale_layout": ("linear",)}, ValueError, "scale_layout"),
        ({"scale_layout": ("linear", "x")}, ValueError, "scale_layout"),
        ({"scale_layout": ("linear", None)}, TypeError, "scale_layout"),
        ({"out_dtype": "float64"}, ValueError, "out_dtype"),
        ({"out_dtype": np.int8}, ValueError, "out_dtype"),
        ({"out_dtype": torch.float8_e4m3fn}, ValueError, "out_dtype"),
    ],
)
def test_options_are_refused_by_name(operands, options, error, name):
    with pytest.raises(error, match=rf"^{name}: "):
        nk.gemm(*operands, **options)


def test_unknown_words_list_the_valid_ones(operands):
    with pytest.raises(ValueError, match="scale_layout: 'x', expected 'linear' or 'blocked'"):
        nk.gemm(*operands, scale_layout="x")
    with pytest.raises(ValueError, match="out_dtype: 'x', expected 'float16', 'bfloat16' or"):
        nk.gemm(*operands, out_dtype="x")
    with pytest.raises(ValueError, match="op: 'x', expected 'quantize', "):
        nk.explain("x")


@pytest.mark.parametrize("alpha", [2, 2.0, np.float32(2), np.float64(2), np.int64(2)])
def test_numbers(operands, alpha):
    assert same(nk.gemm(*operands, alpha=alpha), nk.gemm(*operands, alpha=torch.tensor([2.0])))


def test_the_largest_float_is_no_overflow(operands):
    zero = [torch.zeros_like(t) for t in operands]
    assert nk.gemm(*zero, alpha=3.40282356e38).count_nonzero() == 0
    assert nk.gemm(*zero, alpha=float("inf")).isnan().all()


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"k": 1.0}, TypeError, "k"),
        ({"k": 2**64}, ValueError, "k"),
        ({"dense": 1}, TypeError, "dense"),
        ({"permutation": None}, TypeError, "permutation"),
        ({"renormalize": 0}, TypeError, "renormalize"),
        ({"renormalize": False}, ValueError, "renormalize"),
        ({"score": "softmax"}, ValueError, "score"),
        ({"scaling_factor": "1"}, TypeError, "scaling_factor"),
        ({"n_group": None}, TypeError, "n_group"),
        ({"out": [None]}, ValueError, "out"),
        ({"out": 3}, TypeError, "out"),
    ],
)
def test_route_options_are_refused_by_name(options, error, name):
    x, w = torch.ones(2, 16, dtype=torch.float16), torch.ones(4, 16, dtype=torch.float16)
    with pytest.raises(error, match=rf"^{name}: "):
        nk.route(x, w, **({"k": 2} | options))


@pytest.mark.parametrize("scale", [0, 0.0, -1.0, float("inf"), float("nan"), 1e-46, "max", 1e39])
def test_global_scale_must_be_a_positive_number(scale):
    with pytest.raises(ValueError, match="^global_scale: "):
        nk.quantize(torch.ones(1, 16), global_scale=scale)


# ---------------------------------------------------------------------------------------------
# Tensors that are none
# ---------------------------------------------------------------------------------------------

NAMES = ("a", "b", "sfa", "sfb")


@pytest.mark.parametrize("value", [[1, 2], object(), 3, "x"], ids=str)
@pytest.mark.parametrize("position", range(4))
def test_objects_without_dlpack(operands, position, value):
    args = list(operands)
    args[position] = value
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"^{NAMES[position]}: {kind} has no __dlpack__, expected"):
        nk.gemm(*args)


@pytest.mark.parametrize("position", [0, 1, 3])
def test_none_where_a_tensor_is_needed(operands, position):
    args = list(operands)
    args[position] = None
    with pytest.raises(TypeError, match=f"^{NAMES[position]}: None, expected a tensor"):
        nk.gemm(*args)


def test_lists_say_which_item(operands):
    a, b, sfa, sfb = operands
    with pytest.raises(TypeError, match=r"^b\[1\]: None, expected a tensor"):
        nk.grouped_gemm([a, a], [b, None], [sfa, sfa], [sfb, sfb])
    with pytest.raises(ValueError, match="^sfa: 1 items, expected 2"):
        nk.grouped_gemm([a, a], [b, b], [sfa], [sfb, sfb])
    with pytest.raises(TypeError, match="^b: Tensor, expected a list"):
        nk.grouped_gemm([a], b, [sfa], [sfb])
    with pytest.raises(TypeError, match="^alpha: Tensor, expected a number or a list"):
        nk.grouped_gemm([a], [b], [sfa], [sfb], alpha=torch.ones(1))
    with pytest.raises(ValueError, match="^offsets: "):
        nk.grouped_gemm([a], [b], [sfa], [sfb], offsets=torch.zeros(2, dtype=torch.int32))
    with pytest.raises(TypeError, match="^offsets: None, expected a tensor"):
        nk.grouped_gemm(a, b[None], sfa, sfb[None])


def test_q_is_a_triple():
    for q, error in ((torch.ones(3), TypeError), ((1, 2), ValueError), (None, TypeError)):
        with pytest.raises(error, match="^q: "):
            nk.dequantize(q)
    with pytest.raises(TypeError, match=r"^q\.scales: None"):
        nk.dequantize((torch.zeros(1, 8, dtype=torch.uint8), None, 1.0))


# ---------------------------------------------------------------------------------------------
# DLPack
# ---------------------------------------------------------------------------------------------


class Versioned:
    """Only the Python protocol, as of DLPack 1.0."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream is None and max_version >= (1, 3)
        return self.tensor.__dlpack__(max_version=max_version)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Legacy(Versioned):
    """And before 1.0."""

    def __dlpack__(self, *, stream=None):
        return self.tensor.__dlpack__()


def old_capsule(tensor):
    return tensor.__dlpack__()


def new_capsule(tensor):
    return tensor.__dlpack__(max_version=(1, 3))


FORMS = [Versioned, Legacy, old_capsule, new_capsule, torch.Tensor.numpy]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_every_form_of_dlpack(operands, expected, form):
    out = torch.zeros_like(expected)
    assert nk.gemm(*map(form, operands), out=out) is out
    assert same(out, expected)


def test_capsules_are_borrowed(operands, expected):
    capsules = [new_capsule(t) for t in operands]
    for _ in range(2):
        assert same(nk.gemm(*capsules, out=torch.zeros_like(expected)), expected)
    torch.from_dlpack(capsules[0])
    with pytest.raises(BufferError, match="^a: .*consumed"):
        nk.gemm(*capsules, out=torch.zeros_like(expected))


def test_strides_travel(operands, expected):
    wide = [torch.cat([t, t], dim=1)[:, : t.shape[1]] for t in operands]
    assert not any(t.is_contiguous() for t in wide)
    assert same(nk.gemm(*wide), expected)
    assert same(nk.gemm(*(t.numpy() for t in wide)), expected)


class Capsule(ctypes.Structure):
    """A DLManagedTensorVersioned with DLTensor inside, made by hand."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]
    NAME = b"dltensor_versioned"

    @classmethod
    def of(cls, array, dtype, shape, **fields):
        """The object lives as long as its capsule is in use; so does `array`."""
        self = cls(major=1, minor=3, data=array.ctypes.data, device_type=1, ndim=len(shape))
        self.code, self.bits, self.lanes = dtype
        self.sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.shape, self.array = self.sizes, array
        for name, value in fields.items():
            setattr(self, name, value)
        return self

    def __dlpack__(self, **kwargs):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self), self.NAME, None)


U8, FP4, FP4X2 = (1, 8, 1), (17, 4, 1), (17, 4, 2)


def capsule_of(tensor, dtype=U8, shape=None, **fields):
    return Capsule.of(
        tensor.numpy(), dtype, tuple(tensor.shape) if shape is None else shape, **fields
    )


@pytest.mark.parametrize("dtype", [U8, FP4, FP4X2])
def test_fp4_dtypes(operands, expected, dtype):
    a, b, sfa, sfb = operands
    shape = (M, K) if dtype == FP4 else (M, K // 2)
    got = nk.gemm(capsule_of(a, dtype, shape), b, sfa, sfb, out=torch.zeros_like(expected))
    assert same(got, expected)


def test_fp4_elements_with_strides(operands, expected):
    a, b, sfa, sfb = operands
    wide = torch.cat([a, a], dim=1)
    strides = (ctypes.c_int64 * 2)(2 * K, 1)
    capsule = capsule_of(wide, FP4, (M, K), strides=strides)
    assert same(nk.gemm(capsule, b, sfa, sfb, out=torch.zeros_like(expected)), expected)
    for bad in ((2 * K + 1, 1), (2, M)):
        capsule = capsule_of(wide, FP4, (M, K), strides=(ctypes.c_int64 * 2)(*bad))
        with pytest.raises(ValueError, match="^a: fp4 elements that are not packed"):
            nk.gemm(capsule, b, sfa, sfb)
    with pytest.raises(ValueError, match="^a: an odd number of fp4 elements"):
        nk.gemm(capsule_of(wide, FP4, (M, 31)), b, sfa, sfb)
    with pytest.raises(ValueError, match="^a: an odd number of fp4 elements"):
        nk.gemm(capsule_of(wide, FP4, ()), b, sfa, sfb)


def test_byte_offset(operands, expected):
    a, b, sfa, sfb = operands
    shifted = torch.cat([torch.zeros(1, K // 2, dtype=torch.uint8), a])
    capsule = capsule_of(shifted, U8, (M, K // 2), byte_offset=K // 2)
    assert same(nk.gemm(capsule, b, sfa, sfb, out=torch.zeros_like(expected)), expected)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ((2, 64, 1), "float64 (DLPack code 2, 64 bits"),
        ((0, 8, 1), "int8 (DLPack code 0, 8 bits"),
        ((5, 64, 1), "complex64 (DLPack code 5"),
        ((12, 8, 1), "(DLPack code 12, 8 bits, 1 lanes)"),
        ((2, 16, 2), "float16 (DLPack code 2, 16 bits, 2 lanes)"),
    ],
)
def test_unknown_dtypes(operands, dtype, text):
    a, b, sfa, sfb = operands
    with pytest.raises(TypeError, match=f"^a: dtype .*{re.escape(text)}.*expected uint8, "):
        nk.gemm(capsule_of(a, dtype), b, sfa, sfb)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"major": 2}, BufferError, "DLPack version 2.3, expected 1.x"),
        ({"flags": 4}, BufferError, "one fp4 element per byte"),
        ({"device_type": 10}, nk.BackendError, "DLPack device type 10, expected CPU or CUDA"),
        ({"ndim": 7}, ValueError, "7 dimensions, expected at most 6"),
        ({"ndim": -1}, ValueError, "-1 dimensions"),
        ({"data": None}, ValueError, "without memory"),
    ],
)
def test_bad_capsules(operands, fields, error, text):
    a, b, sfa, sfb = operands
    with pytest.raises(error, match=f"^a: .*{re.escape(text)}"):
        nk.gemm(capsule_of(a, U8, **fields), b, sfa, sfb)


def test_other_capsules(operands):
    class Other(Capsule):
        NAME = b"arrow_array"

    for capsule in (Other().__dlpack__(), Other()):
        with pytest.raises(TypeError, match="^a: <capsule .*arrow_array.*expected a DLPack"):
            nk.gemm(capsule, *operands[1:])


def test_what_a_producer_raises_is_named_and_kept(operands):
    class Broken:
        def __dlpack__(self, **kwargs):
            raise RuntimeError("no luck")

    with pytest.raises(BufferError, match="^b: cannot be exported: no luck") as caught:
        nk.gemm(operands[0], Broken(), *operands[2:])
    assert isinstance(caught.value.__cause__, RuntimeError)

    class Interrupted:
        def __dlpack__(self, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nk.gemm(operands[0], Interrupted(), *operands[2:])


def test_tensors_that_need_grad_are_inputs_like_others():
    x = torch.nn.Parameter(torch.ones(1, 16))
    assert not nk.dequantize(nk.quantize(x)).requires_grad


def test_more_types_than_the_cache_holds(operands, expected):
    kinds = [type(f"Kind{i}", (Versioned,), {}) for i in range(30)]
    kinds += [type(f"Sub{i}", (torch.Tensor,), {}) for i in range(3)]
    for kind in kinds * 2:
        if issubclass(kind, torch.Tensor):
            args = [t.as_subclass(kind) for t in operands]
        else:
            args = [kind(t) for t in operands]
        assert same(nk.gemm(*args, out=torch.zeros_like(expected)), expected)


# ---------------------------------------------------------------------------------------------
# Outputs
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["float16", torch.float16, np.float16, np.dtype("float16"), None])
def test_spellings_of_out_dtype(operands, word):
    assert nk.gemm(*operands, out_dtype=word).dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_out_dtype_and_out(operands, dtype):
    assert nk.gemm(*operands, out_dtype=dtype).dtype == dtype
    out = torch.empty(M, N, dtype=dtype)
    assert nk.gemm(*operands, out=out) is out
    assert nk.gemm(*operands, out=out, out_dtype=dtype) is out
    other = "float16" if dtype == torch.float32 else "float32"
    with pytest.raises(ValueError, match=f"^out_dtype: {other}, but out has dtype"):
        nk.gemm(*operands, out=out, out_dtype=other)


def test_torch_gives_torch():
    q = nk.quantize(torch.ones(4, 32), global_scale="amax")
    assert isinstance(q, nk.NVFP4)
    assert (q.data.dtype, q.data.shape) == (torch.float4_e2m1fn_x2, (4, 16))
    assert (q.scales.dtype, q.scales.shape) == (torch.float8_e4m3fn, (4, 2))
    assert (q.global_scale.dtype, q.global_scale.shape) == (torch.float32, (1,))
    assert nk.to_blocked(q.scales).dtype == torch.float8_e4m3fn


def test_numpy_gives_numpy(operands):
    q = nk.quantize(np.ones((4, 32), np.float32), global_scale="amax")
    assert all(type(t) is np.ndarray for t in q)
    assert (q.data.dtype, q.scales.dtype, q.global_scale.dtype) == ("uint8", "uint8", "float32")
    arrays = [t.numpy() for t in operands]
    assert nk.gemm(*arrays, out_dtype=np.float32).dtype == "float32"
    with pytest.raises(TypeError, match="^out_dtype: bfloat16, but numpy has no such type.*out="):
        nk.gemm(*arrays, out_dtype="bfloat16")
    out = torch.empty(M, N, dtype=torch.bfloat16)
    assert nk.gemm(*arrays, out=out) is out
    weights, ids = nk.route(np.ones((2, 16), np.float16), np.ones((4, 16), np.float16), 2)
    assert (weights.dtype, ids.dtype) == ("float32", "int32")


def test_subclasses_of_ndarray(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 16))
    assert type(nk.quantize(mapped).data) is np.ndarray


def test_unknown_types_must_give_out(operands, expected):
    args = [Versioned(t) for t in operands]
    with pytest.raises(TypeError, match="^out: None, but no .*Versioned can be made.*out="):
        nk.gemm(*args)
    with pytest.raises(TypeError, match="^out: None, "):
        nk.gemm(*map(new_capsule, operands))
    assert same(nk.gemm(*args, out=np.zeros((M, N), np.float16)), expected)


def test_what_quantize_returns_as_global_scale():
    x, scale = torch.ones(1, 16), torch.tensor([0.5])
    assert nk.quantize(x).global_scale == 1.0
    assert nk.quantize(x, global_scale=0.25).global_scale == 0.25
    assert nk.quantize(x, global_scale=scale).global_scale is scale
    assert nk.quantize(x, global_scale=1e-45).global_scale == 1e-45


def test_outputs_are_returned_by_identity(operands):
    a, b, sfa, sfb = operands
    x = torch.ones(2, 16)
    data, scales, amax = nk.quantize(x, global_scale="amax")
    given = nk.quantize(x, global_scale="amax", out=(data, scales, amax))
    assert given.data is data and given.scales is scales and given.global_scale is amax
    given = nk.quantize(x, global_scale="amax", out=[data, None, amax])
    assert given.data is data and given.scales is not scales and given.global_scale is amax
    with pytest.raises(ValueError, match=r"^out: 3 items, expected \(data, scales\)"):
        nk.quantize(x, out=(data, scales, amax))

    outs = [torch.empty(M, N, dtype=torch.float16)]
    assert nk.grouped_gemm([a], [b], [sfa], [sfb], out=outs) is outs
    assert isinstance(nk.grouped_gemm((a,), (b,), [sfa], [sfb]), list)
    assert nk.grouped_gemm([], []) == []

    h = x.half()
    for permutation in (False, True):
        first = nk.route(h, h, 2, permutation=permutation)
        again = nk.route(h, h, 2, permutation=permutation, out=list(first))
        assert len(again) == (5 if permutation else 2)
        assert all(one is other for one, other in zip(first, again, strict=True))


def test_outputs_that_cannot_be_written(operands, expected):
    frozen = np.zeros((M, N), np.float16)
    frozen.flags.writeable = False
    out = torch.zeros_like(expected)
    for bad in (frozen, old_capsule(out), Legacy(out)):
        with pytest.raises(ValueError, match="^out: .*read-only"):
            nk.gemm(*operands, out=bad)
    assert not frozen.any() and not out.any()
    frozen_inputs = [t.numpy().copy() for t in operands]
    for array in frozen_inputs:
        array.flags.writeable = False
    assert same(nk.gemm(*frozen_inputs), expected)


# ---------------------------------------------------------------------------------------------
# explain, backends, warmup
# ---------------------------------------------------------------------------------------------


def test_explain_runs_nothing(operands):
    out = torch.full((M, N), 7.0, dtype=torch.float16)
    plan = nk.explain("gemm", *operands, out=out)
    assert (out == 7).all()
    assert {"backend", "kernel", "why", "workspace_bytes", "batch_invariant"} <= plan.keys()
    assert all(plan[key] for key in plan.keys() - {"workspace_bytes", "batch_invariant"})
    assert nk.explain("gemm", *operands) == plan
    x = torch.ones(2, 16)
    q = nk.quantize(x)
    for call in (
        ("quantize", x),
        ("dequantize", q),
        ("to_blocked", q.scales),
        ("from_blocked", nk.to_blocked(q.scales), 2, 1),
        ("gemv", *q[:1], q.data[:1], q.scales, q.scales[:1]),
        ("dual_gemm", q.data, q.data, q.data, q.scales, q.scales, q.scales),
        ("grouped_gemm", [q.data], [q.data], [q.scales], [q.scales]),
        ("route", x.half(), x.half(), 1),
    ):
        assert nk.explain(*call)["backend"] in {row["name"] for row in nk.backends()}


def test_backends():
    rows = nk.backends()
    assert {"cpu"} <= {row["name"] for row in rows}
    for row in rows:
        assert list(row) == ["name", "devices", "available", "why_not"]
        assert row["available"] is (row["why_not"] is None)


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_warmup(device):
    assert nk.warmup(device) is None
    assert nk.warmup(device=device) is None


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999999999", 3])
def test_warmup_of_what_is_no_device(device):
    with pytest.raises(ValueError, match="^device: .*expected 'cpu', 'cuda' or"):
        nk.warmup(device)


def test_warmup_of_what_is_not_there():
    with pytest.raises(nk.BackendError, match="device"):
        nk.warmup("cuda:1000")


# ---------------------------------------------------------------------------------------------
# References
# ---------------------------------------------------------------------------------------------


def calls_of(args):
    """Good calls and calls that fail early, midway and late."""
    a, b, sfa, sfb, out = args
    yield lambda: nk.gemm(a, b, sfa, sfb, out=out)
    yield lambda: nk.gemm(a, b, sfa, sfb, bad=out)
    yield lambda: nk.gemm(a, b, sfa, sfb, alpha=[out])
    yield lambda: nk.gemm(a, b, sfa, sfb, out=a)
    yield lambda: nk.gemm(a, b, sfa, sfb, out=out, out_dtype="float32")
    yield lambda: nk.gemm(a, b, sfb, sfa, out=out)
    yield lambda: nk.grouped_gemm([a], [b], [sfa], [sfb], out=[out])
    yield lambda: nk.grouped_gemm([a, a], [b, b], [sfa, sfa], [sfb, sfb], out=[out, None])
    yield lambda: nk.grouped_gemm([a, a], [b], [sfa, sfa], [sfb, sfb])
    yield lambda: nk.explain("gemm", a, b, sfa, sfb, out=out)
    yield lambda: nk.explain("grouped_gemm", [a], [b], [sfa], [sfb], out=[out])
    yield lambda: nk.dequantize((a, sfa, 1.0), out=a)
    yield lambda: nk.from_blocked(a, 3, "x", out=out)
    yield lambda: nk._C.competition_gemm((a, b, sfa, sfb, sfa, sfb, out))
    yield lambda: nk._C.competition_group_gemm(
        ([(a, b, out)], [(sfa, sfb)], [(sfa, sfb)], [(1, 2, 3, 4)])
    )


@pytest.mark.parametrize("form", [lambda t: t, torch.Tensor.numpy, Versioned, new_capsule])
def test_references_are_given_back(operands, expected, form):
    args = [form(t) for t in (*operands, torch.zeros_like(expected))]
    for call in calls_of(args):
        before = [sys.getrefcount(t) for t in args]
        for _ in range(3):
            try:
                call()
            except (TypeError, ValueError, BufferError):
                pass
        assert [sys.getrefcount(t) for t in args] == before


def test_results_belong_to_the_caller_alone(operands):
    result = nk.gemm(*operands)
    assert sys.getrefcount(result) == 2
    q = nk.quantize(torch.ones(1, 16), global_scale="amax")
    assert sys.getrefcount(q) == 2
    assert [sys.getrefcount(q[i]) for i in range(3)] == [2, 2, 2]
