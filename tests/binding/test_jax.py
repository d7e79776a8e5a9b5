"""JAX's programs: jax.ffi calls on the CPU, and on a GPU where JAX sees one."""

import ctypes
import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402

import nvfp4kern as nk  # noqa: E402
import nvfp4kern.jax as nkj  # noqa: E402
from nvfp4kern.verify import data, reference  # noqa: E402

M, N, K = 5, 24, 64
A, B = (data.exact_family(np.random.default_rng(1), rows, K) for rows in (M, N))


def devices():
    found = [jax.devices("cpu")[0]]
    try:
        found += jax.devices("cuda")[:1]
    except RuntimeError:
        pass
    return found


@pytest.fixture(params=devices(), ids=lambda device: device.platform)
def device(request):
    with jax.default_device(request.param):
        yield request.param


def bits(x):
    return np.asarray(x).view(np.uint8)


def test_gemm_and_gemv_are_right_to_the_bit_under_jit(device):
    operands = [jnp.asarray(x) for x in (A.codes, B.codes, A.scales, B.scales)]
    want = reference.gemm(A.values, B.values).rounded("float16").astype(np.float16)
    for call in (nkj.gemm, jax.jit(nkj.gemm)):
        found = call(*operands)
        assert found.devices() == {device} and found.dtype == jnp.float16
        np.testing.assert_array_equal(np.asarray(found), want)
    for two in (2, np.float32(2), np.float64(2), jnp.full(1, 2, "float16")):
        with jax.enable_x64(True):
            found = nkj.gemm(*map(np.asarray, operands), alpha=two)
        np.testing.assert_array_equal(np.asarray(found), 2 * want)
    a, b, sfa, sfb = operands
    found = jax.jit(nkj.gemv)(b, a[:1], sfb, sfa[:1])
    np.testing.assert_array_equal(np.asarray(found)[:, 0], want[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_quantize_makes_the_bytes_of_other_arrays_under_jit(device, dtype, layout):
    x = jax.random.normal(jax.random.key(0), (3, M, K)).astype(dtype)
    for scale in (None, 0.25, "amax", "token"):
        quantize = functools.partial(nkj.quantize, global_scale=scale, scale_layout=layout)
        made = jax.jit(quantize)(x)
        # NumPy's, of float32: as exact as either of the 16-bit types
        want = nk.quantize(np.asarray(x, np.float32), global_scale=scale, scale_layout=layout)
        assert made.scale_layout == layout and made.data.dtype == jnp.uint8
        assert made.scales.dtype == jnp.float8_e4m3fn
        np.testing.assert_array_equal(bits(made.data), want.data)
        np.testing.assert_array_equal(bits(made.scales), want.scales)
        np.testing.assert_array_equal(np.asarray(made.global_scale), want.global_scale)
        back = jax.jit(lambda q: nkj.dequantize(q, out_dtype="float32"))(made)
        np.testing.assert_array_equal(np.asarray(back), nk.dequantize(want, out_dtype="float32"))


def test_what_a_tuple_does_not_say_is_given(device):
    """A layout that is not the operand's is refused, also where the scales have as many bytes."""
    x = jax.random.normal(jax.random.key(0), (128, K))
    for layout in ("linear", "blocked"):
        q = nkj.quantize(x, global_scale=0.25, scale_layout=layout)
        want = np.asarray(nkj.dequantize(q))
        np.testing.assert_array_equal(nkj.dequantize(tuple(q), scale_layout=layout), want)
        other = "linear" if layout == "blocked" else "blocked"
        for call in (nkj.dequantize, lambda q, **of: nkj.gemm(q, q, **of)):
            with pytest.raises(ValueError, match=f"^scale_layout: '{other}', but .* '{layout}'$"):
                call(q, scale_layout=other)
    q = nkj.quantize(x)
    np.testing.assert_array_equal(nkj.dequantize(tuple(q)), np.asarray(nkj.dequantize(q)))


def test_a_layer_is_one_program(device):
    """With scales that are arrays, bfloat16, a bias and float4 codes."""
    x = jax.random.normal(jax.random.key(1), (M, K)).astype("bfloat16")
    w = nkj.quantize(jax.random.normal(jax.random.key(2), (N, K)), global_scale="amax")
    bias = jnp.arange(N, dtype=jnp.float32)

    @jax.jit
    def layer(x, w):
        return nkj.linear(nkj.quantize(x, global_scale="token"), w, bias, out_dtype="bfloat16")

    q = nkj.quantize(x, global_scale="token")
    exact = nkj.dequantize(q, out_dtype="float32") @ nkj.dequantize(w, out_dtype="float32").T
    found = layer(x, w)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype("float32"), exact + bias, rtol=2**-7, atol=2**-7)
    codes = jax.lax.bitcast_convert_type(w.data, jnp.float4_e2m1fn).reshape(N, K)
    np.testing.assert_array_equal(bits(layer(x, w._replace(data=codes))), bits(found))


def test_a_batch_of_calls_by_vmap(device):
    x = jax.random.normal(jax.random.key(1), (3, M, K)).astype("float16")
    w = nkj.quantize(jax.random.normal(jax.random.key(2), (N, K)).astype("float16"))
    found = jax.vmap(lambda x: nkj.linear(x, w))(x)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(nkj.linear(x, w)))


def test_wrong_calls_raise_and_gradients_are_refused(device):
    x, short = jnp.ones((M, K), "float16"), jnp.ones((M, K - 16), "float16")
    w = nkj.quantize(jnp.ones((N, K)))
    with pytest.raises(Exception, match=f"ValueError: .*K = {K - 16}"):
        jax.jit(nkj.linear)(short, w).block_until_ready()
    with pytest.raises(ValueError, match="x: K = 24, expected a multiple of 16"):
        nkj.quantize(jnp.ones((2, 24)))
    with pytest.raises(TypeError, match="^out_dtype: float64, expected one of int32, uint8, "):
        nkj.dequantize(w, out_dtype="float64")
    with pytest.raises(TypeError, match="^a: int16, expected one of int32, uint8, "):
        nkj.gemm(x.astype("int16"), w)
    with pytest.raises(ValueError, match="differentiat"):
        jax.grad(lambda x: nkj.linear(x, w).sum())(x)


def test_workspace_comes_from_the_program_s_memory():
    """A call asks the first array for it; on a GPU XLA has it."""
    from nvfp4kern import arrays
    from nvfp4kern.addresses import CPU, Array
    from nvfp4kern.jax import ffi

    call = object.__new__(ffi._Call)
    call.device, call.stream, call.taken, call.frame = (CPU, 0), 7, [], None
    array = call.array(4096, "float16", (2, 3))
    assert isinstance(array, Array) and arrays.current_stream(array) == 7
    made = arrays.empty(array, "uint8", (100,), "workspace")
    assert made.data % 64 == 0 and made.sizes[:1] == [100] and len(call.taken) == 1
    with pytest.raises(TypeError, match="no nvfp4kern.addresses.Array can be made"):
        arrays.empty(Array(4096, "uint8", (1,), (CPU, 0)), "uint8", (1,), "out")


def test_memory_of_a_gpu_is_aligned_here():
    """By an interface that stands in for XLA's, which aligns to 16 bytes at most."""
    from nvfp4kern.jax import ffi

    def allocate(address):
        asked = ffi.Allocate.from_address(address)
        assert asked.align <= 16
        asked.data, room[:] = 4096 + 16, [4096 + 16 + asked.size]

    def free(address):
        given = ffi.Free.from_address(address)
        back.append((given.data, given.data + given.size))

    room, back = [], []
    functions = [ffi.FUNCTION(each) for each in (allocate, free)]
    allocates, frees = (ctypes.cast(each, ctypes.c_void_p).value for each in functions)
    call = object.__new__(ffi._Call)
    call.device, call.stream, call.taken, call.frame = (ffi.CUDA, 0), 7, [], ffi.Frame()
    call.api = ffi.Api(allocate=allocates, free=frees)
    made = call.allocated("uint8", (100,))
    assert made.data == 4096 + 256 and made.data + 100 <= room[0]
    call.end()
    assert back == [(4096 + 16, room[0])]


def test_what_xla_says_of_its_failure_is_told():
    """By an interface that stands in for XLA's, whose allocator has no memory."""
    from nvfp4kern.jax import ffi

    def answers(function):
        made.append(ffi.FUNCTION(function))
        return ctypes.cast(made[-1], ctypes.c_void_p).value

    def error_message(address):
        asked = ffi.ErrorMessage.from_address(address)
        assert asked.error == 77 and asked.struct_size == ctypes.sizeof(asked)
        asked.message = b"Out of memory"

    def error_destroy(address):
        destroyed.append(ffi.ErrorDestroy.from_address(address).error)

    made, destroyed = [], []
    call = object.__new__(ffi._Call)
    call.device, call.taken, call.frame = (ffi.CUDA, 0), [], ffi.Frame()
    call.api = ffi.Api(
        allocate=answers(lambda address: 77),
        error_message=answers(error_message),
        error_destroy=answers(error_destroy),
    )
    with pytest.raises(RuntimeError, match="^XLA's allocate failed: Out of memory$"):
        call.allocated("uint8", (100,))
    assert destroyed == [77] and call.taken == []


def test_targets_are_of_version_0_whatever_xla_is():
    """So XLA refuses them where its structs are others."""
    from nvfp4kern.jax import ffi

    metadata = ffi.Metadata(traits=7)
    extension = ffi.Extension(type=ffi.METADATA, metadata=ctypes.pointer(metadata))
    api = ffi.Api(version=ffi.Version(major=1, minor=9))
    frame = ffi.Frame(api=ctypes.pointer(api), extension_start=ctypes.addressof(extension))
    assert ffi._describe(frame) and metadata.traits == 0
    assert (metadata.version.major, metadata.version.minor) == (0, 9)
    assert not ffi._describe(ffi.Frame(api=ctypes.pointer(api)))
