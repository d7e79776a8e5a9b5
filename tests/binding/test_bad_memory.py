"""Memory that is shared, read-only, misaligned or elsewhere."""

import re

import numpy as np
import pytest
import torch
from calls import (
    FUNCTIONS,
    K,
    M,
    N,
    arranged,
    by_rows,
    bytes_of,
    contiguous,
    dequantize,
    dual_gemm,
    from_blocked,
    gated,
    gemm,
    gemv,
    group_list,
    guards_in,
    invoke,
    quantize,
    route,
    sigmoid,
    stacked,
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


@pytest.mark.parametrize("group", range(3))
@pytest.mark.parametrize("name", ("a", "b", "sfa", "sfb"))
def test_an_output_of_a_group_shares_memory_with_an_input(device, name, group):
    args = group_list(device)
    both = torch.full((2 * M * N + 512,), GUARD, dtype=torch.uint8, device=device)
    shape, end = args[name][group].shape, 2 * M * N
    args[name][group] = both[end - 1 :][: shape.numel()].view(shape)
    other = (group + 1) % 3
    args["out"][other] = both[:end].view(torch.float16).view(M, N)
    with pytest.raises(ValueError, match=rf"^out\[{other}\]: shares memory with {name}\b"):
        invoke(group_list, args)
    assert (both == GUARD).all()


def test_the_output_of_one_group_shares_memory_with_an_input(device):
    args = {name: value[:1] for name, value in group_list(device).items()}
    both = torch.full((4096,), GUARD, dtype=torch.uint8, device=device)
    args["a"] = [both[: M * K // 2].view(M, K // 2)]
    args["out"] = [both[: 2 * M * N].view(torch.float16).view(M, N)]
    with pytest.raises(ValueError, match=r"^out\[0\]: shares memory with a\b"):
        invoke(group_list, args)
    assert (both == GUARD).all()


def test_an_output_without_elements_shares_nothing(device):
    args = {name: value for name, value in gemm(device).items() if name in ("b", "sfb", "bias")}
    a, sfa = (bytes_of(0, K // size, device=device) for size in (2, 16))
    out = args["b"].view(torch.float16)[:0, :N]
    assert nvfp4kern.gemm(a, args["b"], sfa, args["sfb"], out=out) is out


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
    (by_rows, "rows"),
    *((stacked, name) for name in ("a", "b", "sfb", "alpha", "offsets", "rows")),
    *((sigmoid, name) for name in ("x", "w", "correction_bias", "per_expert_scale")),
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


def frozen(t):
    array = t.numpy()
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    "base, index", [(quantize, 0), (quantize, 1), (to_blocked, None), (route, 1)],
    ids=("codes", "scales", "to_blocked", "ids"),
)  # fmt: skip
def test_read_only_outputs(base, index):
    args = base("cpu")
    guards = guards_in(args["out"])
    outs = tensors_of(guards)
    outs[index or 0] = frozen(outs[index or 0])
    args["out"] = outs[0] if index is None else outs
    name = "out" if index is None else f"out[{index}]"
    with pytest.raises(ValueError, match=f"^{re.escape(name)}: read-only, expected a tensor that"):
        invoke(base, args)
    assert all(guard.untouched() for guard in guards)


def in_numpy(value):
    if isinstance(value, torch.Tensor):
        return (value.half() if value.dtype == torch.bfloat16 else value).numpy()
    return type(value)(map(in_numpy, value)) if isinstance(value, (list, tuple)) else value


def of_other_dtype(value):
    """An array, or the first of several, with a dtype that no operator takes there."""
    if isinstance(value, (list, tuple)):
        return type(value)((of_other_dtype(value[0]), *value[1:]))
    return value.astype(np.float32 if value.dtype == np.int32 else np.int32)


def shortened(value):
    """An array, or the first of several, without its last row."""
    if isinstance(value, (list, tuple)):
        return type(value)((shortened(value[0]), *value[1:]))
    return value[:-1]


@pytest.mark.parametrize("base", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_refused_call_allocates_nothing(base, monkeypatch):
    """Outputs are made once all arguments have passed."""
    made, empty = [], np.empty
    monkeypatch.setattr(np, "empty", lambda *args: made.append(args) or empty(*args))
    args = {name: in_numpy(value) for name, value in base("cpu").items() if name != "out"}
    for name in [
        name for name, value in args.items() if isinstance(value, (np.ndarray, list, tuple))
    ]:
        invoke(base, args)
        assert made
        made.clear()
        with pytest.raises((TypeError, ValueError), match=f"^{name}"):
            invoke(base, args | {name: of_other_dtype(args[name])})
        assert not made, name
        try:
            invoke(base, args | {name: shortened(args[name])})
        except ValueError:
            assert not made, name
        made.clear()


@pytest.mark.parametrize("base", FUNCTIONS, ids=lambda f: f.__name__)
def test_explain_allocates_nothing(base, monkeypatch):
    """It says of a call without outputs what it says of one with them."""

    def plan(args):
        positional, keywords = arranged(
            FUNCTIONS[base], {name: in_numpy(tensors_of(args[name])) for name in args}
        )
        return nvfp4kern.explain(FUNCTIONS[base], *positional, **keywords)

    args = base("cpu")
    expected = plan(args)
    monkeypatch.setattr(np, "empty", lambda *of: pytest.fail(f"np.empty{of}"))
    assert plan({name: value for name, value in args.items() if name != "out"}) == expected


@pytest.mark.parametrize("base", FUNCTIONS, ids=lambda f: f.__name__)
def test_an_output_that_cannot_be_made(base, monkeypatch):
    """The first, then the second, and so on."""
    args = base("cpu")
    outs = len(guards_in(args.pop("out")))
    args = {name: in_numpy(value) for name, value in args.items()}
    made, empty = [], np.empty
    limit = 0

    def some(*of):
        if len(made) == limit:
            raise MemoryError("no more")
        made.append(of)
        return empty(*of)

    monkeypatch.setattr(np, "empty", some)
    for limit in range(outs):
        made.clear()
        with pytest.raises(MemoryError, match="^no more$"):
            invoke(base, args)
        assert len(made) == limit


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


def test_mixed_devices(device):
    if device == "cpu":
        pytest.skip("one kind of device here")
    args = gemm(device)
    args["b"] = args["b"].cpu()
    with pytest.raises(ValueError, match="^b: device cpu, expected cuda"):
        invoke(gemm, args)
    assert args["out"].untouched()


def test_tensors_that_say_they_are_on_two_gpus():
    args = gemm("cpu")
    operands = [capsule_of(args[name], device_type=2) for name in ("a", "b", "sfa", "sfb")]
    operands[1].device_id = 1
    with pytest.raises(ValueError, match="^b: device cuda:1, expected cuda:0"):
        nvfp4kern.explain("gemm", *operands)


@pytest.mark.parametrize("name", ("b", "sfa", "sfb", "alpha", "bias", "out"))
def test_a_tensor_that_says_it_is_on_a_gpu(name):
    """Nobody reads it: the check comes first. No GPU is needed."""
    args = gemm("cpu") | {"alpha": torch.ones(N), "bias": torch.ones(N)}
    tensor = tensors_of(args[name])
    code = (2, 8 * tensor.element_size(), 1) if tensor.is_floating_point() else (1, 8, 1)
    args |= {"out": None, name: capsule_of(tensor, code, device_type=2)}
    with pytest.raises(ValueError, match=f"^{name}: device cuda:0, expected cpu"):
        nvfp4kern.explain("gemm", *(args.pop(n) for n in ("a", "b", "sfa", "sfb")), **args)


def test_unknown_operator_and_backend(device, monkeypatch):
    with pytest.raises(ValueError, match="^op: 'conv', expected 'quantize', "):
        nvfp4kern.explain("conv")
    monkeypatch.setenv("NVFP4KERN_BACKEND", "abacus")
    args = gemm(device)
    with pytest.raises(nvfp4kern.BackendError, match="abacus"):
        invoke(gemm, args)
    assert args["out"].untouched()
