"""Memory that is shared, read-only, misaligned or elsewhere, and calls that fit no signature."""

import numpy as np
import pytest
import torch
from calls import (
    K,
    M,
    N,
    bytes_of,
    contiguous,
    dequantize,
    dual_gemm,
    from_blocked,
    gated,
    gemm,
    gemv,
    group_list,
    invoke,
    route,
    sigmoid,
    tensors_of,
    to_blocked,
)
from exporters import capsule_of
from generators import GUARD

import nvfp4kern


def one_buffer(shape_in, shape_out, gap, device):
    """A uint8 input and an output in one buffer, `gap` bytes from the start of one to the other."""
    buffer = torch.full((4096,), GUARD, dtype=torch.uint8, device=device)
    size = shape_in[0] * shape_in[1]
    given = buffer[1024 : 1024 + size].view(shape_in)
    at = 1024 + gap
    out = buffer[at : at + 2 * shape_out[0] * shape_out[1]].view(torch.float16).view(shape_out)
    return buffer, given, out


@pytest.mark.parametrize("name", ("a", "b", "sfa", "sfb"))
@pytest.mark.parametrize("gap", (0, 2, "last byte", "before"))
def test_out_shares_memory_with_an_input(device, name, gap):
    args = gemm(device) | {"alpha": None, "bias": None}
    shape = tuple(args[name].shape)
    size = shape[0] * shape[1]
    gap = {"last byte": size - 2, "before": 2 - 2 * M * N}.get(gap, gap)
    buffer, args[name], args["out"] = one_buffer(shape, (M, N), gap, device)
    before = buffer.clone()
    with pytest.raises(ValueError, match=rf"^out: shares memory with {name}\b"):
        invoke(gemm, args)
    assert torch.equal(buffer, before)


@pytest.mark.parametrize("gap", ("after", "before"))
def test_out_may_touch_an_input(device, gap):
    args = gemm(device) | {"alpha": None, "bias": None}
    gap = M * K // 2 if gap == "after" else -2 * M * N
    _, args["a"], args["out"] = one_buffer((M, K // 2), (M, N), gap, device)
    assert invoke(gemm, args) is args["out"]


def test_column_slices_of_one_buffer_do_not_overlap(device):
    """Two groups side by side in one output; the same groups one column nearer do."""
    args = group_list(device)
    both = torch.zeros((M, 2 * N), dtype=torch.float16, device=device)
    args = {name: value[:2] for name, value in args.items()}
    args["out"] = [both[:, :N], both[:, N:]]
    invoke(group_list, args)
    assert both.all()
    both.zero_()
    args["out"] = [both[:, :N], both[:, N - 1 : 2 * N - 1]]
    with pytest.raises(ValueError, match=r"^out\[\d\]: shares memory"):
        invoke(group_list, args)
    assert not both.any()


@pytest.mark.parametrize("other", ("alpha", "bias"))
def test_out_shares_memory_with_a_vector(device, other):
    args = gemm(device)
    buffer = torch.ones(M * N, dtype=torch.float32, device=device)
    args["out"] = buffer.view(M, N)
    args[other] = buffer[:N]
    with pytest.raises(ValueError, match=rf"^out: shares memory with {other}"):
        invoke(gemm, args)
    assert (buffer == 1).all()


SHARED = [
    *((gemv, name) for name in ("a", "b", "sfa", "sfb", "alpha")),
    *((dual_gemm, name) for name in ("a", "b1", "b2", "sfa", "sfb1", "sfb2")),
    *((contiguous, name) for name in ("a", "b", "sfa", "sfb", "alpha", "bias", "offsets")),
    *((sigmoid, name) for name in ("x", "w", "correction_bias")),
    *((gated, name) for name in ("x", "up")),
    (dequantize, "q"),
    (to_blocked, "scales"),
    (from_blocked, "buffer"),
]


@pytest.mark.parametrize("base, name", SHARED, ids=lambda v: getattr(v, "__name__", v))
def test_out_begins_where_an_input_does(device, base, name):
    args = base(device)
    shared = args[name][0] if name == "q" else args[name]
    buffer = torch.zeros(8192, dtype=torch.uint8, device=device)
    bytes_in = shared.numel() * shared.element_size()
    moved = buffer[:bytes_in].view(shared.dtype).view(shared.shape)
    moved.copy_(shared)
    args[name] = (moved, *args["q"][1:]) if name == "q" else moved
    several = isinstance(args["out"], list)
    given = tensors_of(args["out"][0] if several else args["out"])
    out = buffer[: given.numel() * given.element_size()].view(given.dtype).view(given.shape)
    args["out"] = [out, *args["out"][1:]] if several else out
    before = buffer.clone()
    with pytest.raises(ValueError, match=r"^out(\[0\])?: shares memory with "):
        invoke(base, args)
    assert torch.equal(buffer, before)


def test_route_outputs_share_memory(device):
    args = route(device)
    buffer = torch.zeros((M, 4), dtype=torch.float32, device=device)
    args["out"] = [buffer, buffer.view(torch.int32)]
    with pytest.raises(ValueError, match="shares memory"):
        invoke(route, args)
    assert not buffer.any()


def test_read_only_out_and_read_only_inputs(device):
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    args = {name: value.numpy() for name, value in gemm(device).items() if name != "out"}
    for array in args.values():
        array.setflags(write=False)
    args["out"] = np.full((M, N), 5, np.float16)
    args["out"].setflags(write=False)
    with pytest.raises(ValueError, match="^out: read-only"):
        invoke(gemm, args)
    assert (args["out"] == 5).all()
    args["out"] = np.full((M, N), 5, np.float16)
    assert invoke(gemm, args) is args["out"] and (args["out"] != 5).all()


def test_misaligned_data(device):
    args = gemm(device)
    buffer = torch.zeros(4 * N + 1, dtype=torch.uint8).numpy()
    args["alpha"] = buffer[1:].view(np.float32)
    guard = args["out"]
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    with pytest.raises((ValueError, BufferError), match="^alpha: "):
        invoke(gemm, args)
    assert guard.untouched()


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


def test_mixed_devices(device):
    if device == "cpu":
        pytest.skip("one kind of device here")
    args = gemm(device)
    args["b"] = args["b"].cpu()
    with pytest.raises(ValueError, match="^b: device cpu, expected cuda"):
        invoke(gemm, args)
    assert args["out"].untouched()


@pytest.mark.parametrize("name", ("b", "sfa", "sfb", "alpha", "bias", "out"))
def test_a_tensor_that_says_it_is_on_a_gpu(name):
    """Nobody reads it: the check comes first. No GPU is needed."""
    args = gemm("cpu") | {"alpha": torch.ones(N), "bias": torch.ones(N)}
    tensor = tensors_of(args[name])
    code = (2, 8 * tensor.element_size(), 1) if tensor.is_floating_point() else (1, 8, 1)
    args |= {"out": None, name: capsule_of(tensor, code, device_type=2)}
    with pytest.raises(ValueError, match=f"^{name}: device cuda:0, expected cpu"):
        nvfp4kern.explain("gemm", *(args.pop(n) for n in ("a", "b", "sfa", "sfb")), **args)


# ---------------------------------------------------------------------------------------------
# DLPack
# ---------------------------------------------------------------------------------------------


class Dlpack:
    """An array whose __dlpack__ does what it is told."""

    def __init__(self, result, device=(1, 0)):
        self.result, self.device = result, device

    def __dlpack__(self, **_):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def __dlpack_device__(self):
        return self.device


def test_a_consumed_capsule(device):
    args = gemm("cpu")
    capsule = torch.utils.dlpack.to_dlpack(args["a"])
    torch.utils.dlpack.from_dlpack(capsule)
    args["a"] = Dlpack(capsule)
    with pytest.raises(BufferError, match="^a: "):
        invoke(gemm, args)
    assert args["out"].untouched()


@pytest.mark.parametrize("result", (None, 3, "capsule"))
def test_no_capsule(device, result):
    args = gemm("cpu") | {"sfb": Dlpack(result)}
    with pytest.raises((BufferError, TypeError), match="^sfb: "):
        invoke(gemm, args)
    assert args["out"].untouched()


def test_an_exporter_that_raises(device):
    args = gemm("cpu") | {"b": Dlpack(BufferError("not now"))}
    with pytest.raises(BufferError, match="not now"):
        invoke(gemm, args)
    assert args["out"].untouched()


def test_unknown_device(device):
    args = gemm("cpu") | {"a": torch.zeros((M, K // 2), dtype=torch.uint8, device="meta")}
    with pytest.raises((BufferError, ValueError, TypeError)):
        invoke(gemm, args)
    assert args["out"].untouched()


# ---------------------------------------------------------------------------------------------
# Calls
# ---------------------------------------------------------------------------------------------


def test_calls_that_do_not_fit_the_signature():
    for call in (
        lambda: nvfp4kern.gemm(),
        lambda: nvfp4kern.gemm(1, 2, 3, 4, 5),
        lambda: nvfp4kern.gemm(1, 2, 3, 4, beta=1),
        lambda: nvfp4kern.gemm(1, 2, 3, 4, a=1),
        lambda: nvfp4kern.explain(),
    ):
        with pytest.raises(TypeError, match=r"\(\) (missing|takes|got)"):
            call()


def test_unknown_operator_and_backend(device, monkeypatch):
    with pytest.raises(ValueError, match="^op: 'conv'"):
        nvfp4kern.explain("conv")
    monkeypatch.setenv("NVFP4KERN_BACKEND", "abacus")
    args = gemm(device)
    with pytest.raises(nvfp4kern.BackendError, match="abacus"):
        invoke(gemm, args)
    assert args["out"].untouched()
    with pytest.raises(ValueError, match="^device: "):
        nvfp4kern.warmup("tpu")


def test_explain_raises_what_the_call_would(device):
    args = gemm(device)
    operands = [args[name] for name in ("a", "b", "sfa", "sfb")]
    assert nvfp4kern.explain("gemm", *operands, out=args["out"].tensor)["backend"]
    assert args["out"].untouched()
    with pytest.raises(ValueError, match="^sfa: "):
        nvfp4kern.explain("gemm", *operands, scale_layout="blocked")
