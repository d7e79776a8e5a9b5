"""comfy_kitchen's NVFP4 functions and layers by our operators, beside its own ones for torch."""

import dataclasses
import logging
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

ck = pytest.importorskip("comfy_kitchen", reason="comfy_kitchen is not installed")

from comfy_kitchen.float_utils import from_blocked  # noqa: E402
from comfy_kitchen.registry import registry  # noqa: E402
from comfy_kitchen.tensor import QuantizedTensor  # noqa: E402

import nvfp4kern.comfy  # noqa: E402
from nvfp4kern.comfy import backend, linear, registering  # noqa: E402

E4M3 = torch.float8_e4m3fn
LAYOUT = "TensorCoreNVFP4Layout"
MAGNITUDES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
TIES = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2
DTYPES = torch.float32, torch.float16, torch.bfloat16
SHAPES = [(1, 16), (3, 48), (16, 80), (129, 128), (33, 65), (130, 1), (145, 144)]


@pytest.fixture(scope="module", autouse=True)
def registered():
    assert nvfp4kern.comfy.register()
    assert nvfp4kern.comfy.register()  # again, as a second node would
    assert registry._priority.count("nvfp4kern") == 1


def drawn(*shape, seed=0, dtype=torch.float32):
    """Blocks of 16 columns of sizes that differ by up to 2^30, and blocks of zeros."""
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=make)
    blocks = -(-shape[-1] // 16)
    size = torch.randint(-20, 10, (*shape[:-1], blocks), generator=make)
    size = torch.where(size < -17, 0.0, 2.0**size).repeat_interleave(16, -1)
    return (x * size[..., : shape[-1]]).to(dtype)


def global_scale(x):
    return (x.abs().max() / 2688).float()


def values(codes, hi_first=True):
    """Codes [.., K/2] -> float64 [.., K]."""
    high, low = codes >> 4, codes & 15
    pair = (high, low) if hi_first else (low, high)
    nibble = torch.stack(pair, -1).flatten(-2).long()
    return MAGNITUDES[nibble & 7] * (1 - 2 * (nibble >> 3))


def scales_of(codes, scales):
    """Linear scale factors, float64 [M, K], one for each element."""
    blocks = codes.shape[1] // 8
    if not blocks:
        return torch.zeros(len(codes), 0, dtype=torch.float64)
    return from_blocked(scales.double(), len(codes), blocks).repeat_interleave(16, 1)


def check_quantised(x, s2, codes, scales, hi_first=True):
    """They are those of the quotients, which fp32 may have moved by 2^-21 of themselves."""
    m, k = x.shape
    whole = torch.zeros(len(codes), codes.shape[1] * 2, dtype=torch.float64)
    whole[:m, :k] = x
    largest = whole.abs().unflatten(1, (-1, 16)).amax(-1)
    quotient = (largest / 6 / s2.double()).clamp(max=448)
    low, high = ((quotient * (1 + by)).float().to(E4M3) for by in (-(2**-21), 2**-21))
    found = from_blocked(scales.double(), len(codes), whole.shape[1] // 16)
    assert torch.all((low.double() <= found) & (found <= high.double()))
    step = found.repeat_interleave(16, 1) * s2.double()
    v = values(codes, hi_first)
    assert torch.all(v[step == 0] == 0)
    exact = torch.where(step == 0, 0, whole / step)
    for by, compare in ((-(2**-21), torch.ge), (2**-21, torch.le)):
        limit = (exact.abs() * (1 + by)).unsqueeze(-1)
        at = ((limit > TIES) if by < 0 else (limit >= TIES)).sum(-1)
        assert torch.all(compare(v.abs(), MAGNITUDES[at]))
    assert torch.all((torch.signbit(v) == torch.signbit(whole))[exact.abs() > 0.26])


@pytest.mark.parametrize("hi_first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, k", SHAPES)
def test_quantize_is_that_of_eager(m, k, dtype, hi_first):
    x = drawn(m, k, seed=m + k, dtype=dtype)
    s2 = global_scale(x)
    options = {"pad_16x": bool(m % 16 or k % 16), "hi_first": hi_first}
    with ck.use_backend("nvfp4kern"):
        codes, scales = ck.quantize_nvfp4(x, s2, **options)
    with ck.use_backend("eager"):
        their_codes, their_scales = ck.quantize_nvfp4(x, s2, **options)
    assert codes.shape == their_codes.shape and scales.shape == their_scales.shape
    assert codes.dtype == torch.uint8 and scales.dtype == E4M3
    check_quantised(x, s2, their_codes, their_scales, hi_first)
    check_quantised(x, s2, codes, scales, hi_first)
    differ = (scales.view(torch.uint8) != their_scales.view(torch.uint8)).double().mean()
    assert differ < 0.02
    ours, theirs = values(codes, hi_first), values(their_codes, hi_first)
    same = scales_of(codes, scales) == scales_of(their_codes, their_scales)
    assert (ours != theirs)[same].double().mean() < 0.005


def test_rows_without_padding_need_no_16():
    x = drawn(5, 32)
    codes, scales = ck.quantize_nvfp4(x, global_scale(x))
    assert codes.shape == (5, 16) and scales.shape == (128, 4)
    check_quantised(x, global_scale(x), codes, scales)


def test_zeros_stay_zeros():
    x = torch.zeros(16, 32)
    codes, scales = ck.quantize_nvfp4(x, global_scale(x))
    assert not codes.any() and not scales.float().any()
    weight = QuantizedTensor.from_float(x, LAYOUT)
    assert torch.equal(weight.dequantize(), x)


def poisoned(rows, k, seed):
    """All codes, and scale factors of all sizes whose padding is NaN."""
    make = torch.Generator().manual_seed(seed)
    codes = torch.randint(256, (rows, k // 2), generator=make, dtype=torch.uint8)
    linear = torch.randint(127, (rows, k // 16), generator=make, dtype=torch.uint8)
    padded = torch.full((-(-rows // 128) * 128, -(-k // 64) * 4), 0x7F, dtype=torch.uint8)
    padded[:rows, : k // 16] = linear
    return codes, ck.to_blocked(padded, flatten=False).view(E4M3), linear.view(E4M3)


@pytest.mark.parametrize("hi_first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize_rounds_once(dtype, hi_first):
    codes, scales, linear = poisoned(131, 144, 1)
    s2 = torch.tensor(0.0123)
    for given in (s2, s2[None]):
        with ck.use_backend("nvfp4kern"):
            got = ck.dequantize_nvfp4(codes, given, scales, dtype, hi_first)
    product = values(codes, hi_first) * linear.double().repeat_interleave(16, 1)
    assert got.dtype == dtype
    assert torch.equal(got, (product.float() * s2).to(dtype))
    with ck.use_backend("eager"):
        theirs = ck.dequantize_nvfp4(codes, s2, scales, dtype, hi_first)
    error = (got.double() - theirs.double()).abs()  # theirs rounds s2, its product and the result
    unit = torch.finfo(dtype).eps
    assert torch.all(error <= 2.01 * unit * got.double().abs() + 2 * torch.finfo(dtype).tiny * unit)


def check_product(got, exact, absolute, alpha, bias, k, terms_of=16):
    """The interval of docs/contract.md."""
    whole = alpha * exact + bias
    error = 2**-24 * (k / terms_of + 8) * abs(alpha) * absolute
    error += 2**-24 * ((alpha * exact).abs() + abs(bias)) + 2**-149
    low, high = ((whole + by * error).to(got.dtype) for by in (-1, 1))
    assert torch.all((low <= got) & (got <= high))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, k", [(1, 16, 16), (3, 5, 48), (129, 131, 272), (16, 256, 1024)])
def test_scaled_mm(m, n, k, dtype):
    a, sfa, la = poisoned(m, k, 2)
    b, sfb, lb = poisoned(n, k, 3)
    s2a, s2b = torch.tensor(0.0012), torch.tensor([0.00034])
    x = values(a) * la.double().repeat_interleave(16, 1)
    w = values(b) * lb.double().repeat_interleave(16, 1)
    exact, absolute = x @ w.T, x.abs() @ w.abs().T
    for bias in (None, torch.randn(n), torch.randn(n).bfloat16(), torch.randn(n // 2).half()):
        for alpha in (None, torch.tensor(2e-7)):
            with ck.use_backend("nvfp4kern"):
                got = ck.scaled_mm_nvfp4(
                    a, b, s2a, s2b, sfa, sfb, bias=bias, out_dtype=dtype, alpha=alpha
                )
            factor = float(s2a * s2b if alpha is None else alpha)
            whole = torch.zeros(n, dtype=torch.float64)
            if bias is not None:
                whole[: len(bias)] = bias.double()
            assert got.dtype == dtype
            check_product(got, exact, absolute, factor, whole, k)
    assert ck.scaled_mm_nvfp4(a, b, s2a, s2b, sfa, sfb).dtype == torch.bfloat16


def test_both_orders_of_nibbles_multiply_alike():
    x, w = drawn(33, 64, seed=4), drawn(48, 64, seed=5)
    found = []
    for hi_first in (True, False):
        a, sfa = ck.quantize_nvfp4(x, global_scale(x), hi_first=hi_first)
        b, sfb = ck.quantize_nvfp4(w, global_scale(w), hi_first=hi_first)
        given = a, b, global_scale(x), global_scale(w), sfa, sfb
        found.append(ck.scaled_mm_nvfp4(*given, out_dtype=torch.float32))
    largest = found[0].abs().max()
    assert (found[0] - found[1]).abs().max() <= 2**-20 * largest


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("shape, n, innermost", [
    ((5, 64), 32, True), ((2, 9, 70), 19, True), ((40,), 7, True), ((0, 32), 16, True),
    ((8, 64), 16, False), ((1, 16, 64), 32, False), ((2, 9, 70), 19, False),
])  # fmt: skip
@torch.inference_mode()
def test_linear_keeps_16_bit_inputs(shape, n, innermost, dtype):
    """They are not quantised, and padding of the weight's does not show.

    innermost: whether K is; an image's channels are not.
    """
    x, k = torch.randn(shape).to(dtype), shape[-1]
    x = x if innermost else x.mT.contiguous().mT
    weight = QuantizedTensor.from_float(drawn(n, k, seed=n).to(dtype), LAYOUT)
    codes, s2, scales = weight._qdata, weight.params.scale, weight.params.block_scale
    w = (values(codes) * scales_of(codes, scales))[:n, :k]
    for bias in (None, torch.randn(n).to(dtype)):
        got = torch.nn.functional.linear(x, weight, bias)
        assert got.shape == (*shape[:-1], n) and got.dtype == dtype
        exact, absolute = x.double() @ w.T, x.double().abs() @ w.abs().T
        added = 0 if bias is None else bias.double()
        check_product(got, exact, absolute, float(s2), added, k, terms_of=1)


@torch.inference_mode()
def test_linear_of_quantised_inputs_is_scaled_mm(monkeypatch):
    x, w, bias = torch.randn(21, 70).half(), torch.randn(19, 70).half(), torch.randn(19).half()
    a, b = (QuantizedTensor.from_float(each, LAYOUT) for each in (x, w))
    calls = []
    monkeypatch.setattr(
        backend, "scaled_mm_nvfp4", lambda *args, _f=backend.scaled_mm_nvfp4, **kw: (
            calls.append(1), _f(*args, **kw)
        )[1],
    )  # fmt: skip
    got = torch.nn.functional.linear(a, b, bias)
    exact = [
        values(each._qdata) * scales_of(each._qdata, each.params.block_scale) for each in (a, b)
    ]
    alpha = float(a.params.scale * b.params.scale)
    left, right = exact[0][:21, :70], exact[1][:19, :70]
    absolute = left.abs() @ right.abs().T
    check_product(got, left @ right.T, absolute, alpha, bias.double(), 80)
    assert calls == [1]


@torch.inference_mode()
def test_what_linear_leaves_to_comfy_kitchen(monkeypatch):
    """Wide inputs, weights that a transposition turned, and biases that are broadcast or wide."""
    left = []
    monkeypatch.setattr(
        linear, "_theirs", lambda *args, _f=linear._theirs: (left.append(1), _f(*args))[1]
    )  # fmt: skip
    weight = QuantizedTensor.from_float(torch.randn(16, 32), LAYOUT)
    x = torch.randn(3, 32)
    got = torch.nn.functional.linear(x, weight)
    assert torch.equal(got, x @ weight.dequantize().T)
    torch.nn.functional.linear(torch.randn(3, 16), weight.t())
    assert left == [1, 1]
    x = x.half()
    weight = QuantizedTensor.from_float(torch.randn(16, 32).half(), LAYOUT)
    for bias in (torch.randn(1).half(), torch.randn(1, 16).half(), torch.randn(3, 16).half()):
        got = torch.nn.functional.linear(x, weight, bias)
        assert torch.equal(got, torch.nn.functional.linear(x, weight.dequantize(), bias))
    with pytest.raises(RuntimeError, match="dtype"):  # torch's
        torch.nn.functional.linear(x, weight, torch.randn(16).double())
    assert left == [1] * 6


def test_lora_is_added_to_the_weight_and_quantised_again():
    """As ComfyUI bakes one in."""
    w, up, down = torch.randn(40, 64), torch.randn(40, 4), torch.randn(4, 64)
    weight = QuantizedTensor.from_float(w.bfloat16(), LAYOUT)
    patched = weight.dequantize() + (0.5 * up @ down).bfloat16()
    again = weight.requantize_from_float(patched, scale="recalculate")
    check_quantised(patched, again.params.scale, again._qdata, again.params.block_scale)
    assert (again.dequantize() - patched).abs().max() <= patched.abs().max() / 6


def chosen(name, **given):
    return registry.get_capable_backend(name, given)


def test_calls_that_are_not_ours_go_to_the_next_backend():
    x, s2 = torch.randn(16, 32), torch.tensor(1.0)
    assert chosen("quantize_nvfp4", x=x, per_tensor_scale=s2) == "nvfp4kern"
    assert chosen("quantize_nvfp4", x=x[:, :8], per_tensor_scale=s2) == "eager"
    assert chosen("quantize_nvfp4", x=x, per_tensor_scale=torch.ones(2)) == "eager"
    assert chosen("quantize_nvfp4", x=x.to("meta"), per_tensor_scale=s2) == "eager"
    codes, scales = ck.quantize_nvfp4(x, s2)
    given = {"qx": codes, "per_tensor_scale": s2, "block_scales": scales}
    assert chosen("dequantize_nvfp4", **given, output_type=torch.half) == "nvfp4kern"
    for wrong in ({"qx": codes[:, :12]}, {"block_scales": scales[:64]}):
        assert chosen("dequantize_nvfp4", **(given | wrong)) == "eager", wrong
    given = {"a": codes, "b": codes, "block_scale_a": scales, "block_scale_b": scales}
    given |= {"tensor_scale_a": s2, "tensor_scale_b": s2, "out_dtype": torch.half}
    assert chosen("scaled_mm_nvfp4", **given) == "nvfp4kern"
    for wrong in (
        {"a": codes[:, :8]}, {"a": codes[:, :12], "b": codes[:, :12]},
        {"block_scale_b": scales[:64]}, {"bias": torch.ones(17)},
        {"bias": torch.ones(1, 16)}, {"alpha": torch.ones(16)},
    ):  # fmt: skip
        assert chosen("scaled_mm_nvfp4", **(given | wrong)) == "eager", wrong
    assert chosen("quantize_mxfp8", x=x) == "eager"


@pytest.mark.parametrize("capability, ours", [((7, 5), False), ((8, 0), True), ((9, 0), True),
                                              ((10, 0), False), ((12, 0), False)])  # fmt: skip
def test_gpus_with_native_products_keep_them(monkeypatch, capability, ours):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert backend.serves(torch.device("cuda", 0)) == ours
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = "GPUs of compute capability {}.{}, expected 8.0 to 9.0".format(*capability)
    assert registering.why_not() == (None if ours else found)


def comfyui(monkeypatch, known=True):
    """Stand-ins for the two modules of ComfyUI that decide whether NVFP4 is dequantised."""
    management, quant_ops = ModuleType("management"), ModuleType("quant_ops")
    management.get_torch_device = lambda: torch.device("cpu")
    management.supports_nvfp4_compute = lambda device=None: "theirs"
    other = {"quantize_input": False} if known else {}
    quant_ops.QUANT_ALGOS = {"nvfp4": {"group_size": 16}, "int8_tensorwise": other}
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    monkeypatch.setitem(sys.modules, "comfy.quant_ops", quant_ops)
    return management, quant_ops


def test_comfyui_gives_our_devices_nvfp4_products(monkeypatch):
    management, quant_ops = comfyui(monkeypatch)
    assert nvfp4kern.comfy.register()
    opened = management.supports_nvfp4_compute
    assert nvfp4kern.comfy.register(quantize_input=True)
    assert management.supports_nvfp4_compute is opened
    assert quant_ops.QUANT_ALGOS["nvfp4"]["quantize_input"] is True
    assert nvfp4kern.comfy.register()
    assert quant_ops.QUANT_ALGOS["nvfp4"]["quantize_input"] is False
    assert opened() is True and opened("cpu") is True and opened("meta") == "theirs"


def test_a_comfyui_that_always_quantises_inputs_is_asked_for_by_name(monkeypatch, caplog):
    management, _ = comfyui(monkeypatch, known=False)
    assert not nvfp4kern.comfy.register()
    assert "quantize_input=True" in caplog.text
    assert management.supports_nvfp4_compute() == "theirs"
    assert nvfp4kern.comfy.register(quantize_input=True)
    assert management.supports_nvfp4_compute() is True


def test_it_tells_comfyui_last(monkeypatch):
    """Where comfy_kitchen does not take the backend, ComfyUI goes on without; and the reverse."""
    management, quant_ops = comfyui(monkeypatch)
    theirs = management.supports_nvfp4_compute

    def failing(*_):
        raise AttributeError("register")

    for name in ("register", "set_priority"):
        with monkeypatch.context() as within:
            within.setattr(registry, name, failing)
            assert not nvfp4kern.comfy.register()
        assert management.supports_nvfp4_compute is theirs
        assert "quantize_input" not in quant_ops.QUANT_ALGOS["nvfp4"]
    told = []
    monkeypatch.setattr(registry, "register", lambda *_: told.append(1))
    del management.supports_nvfp4_compute
    assert not nvfp4kern.comfy.register()
    assert "quantize_input" not in quant_ops.QUANT_ALGOS["nvfp4"] and not told


def test_without_comfyui_a_message_says_that_no_input_is_quantised(caplog):
    assert nvfp4kern.comfy.register() and not caplog.records
    assert nvfp4kern.comfy.register(quantize_input=True)
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert "ComfyUI is not imported" in caplog.text


def test_another_comfy_kitchen_is_left_alone(monkeypatch, caplog):
    """One that has other defaults, and one whose weights have another field."""

    def quantize_nvfp4(x, per_tensor_scale, epsilon=0.0, pad_16x=False, hi_first=False):
        """Other bytes, by the same arguments."""

    with monkeypatch.context() as within:
        within.setattr(registering.eager, "quantize_nvfp4", quantize_nvfp4)
        assert not nvfp4kern.comfy.register()
    assert "hi_first=False), expected (x: " in caplog.text
    fields = [(name, object, None) for name in (*registering.FIELDS, "rotated")]
    with monkeypatch.context() as within:
        params = dataclasses.make_dataclass("Params", fields)
        within.setattr(registering.TensorCoreNVFP4Layout, "Params", params)
        assert not nvfp4kern.comfy.register()
    assert "transposed, rotated, expected scale, orig_dtype" in caplog.text


def test_it_leaves_all_alone_where_it_cannot(monkeypatch, caplog):
    monkeypatch.setattr(registering.eager, "quantize_nvfp4", lambda x, scale: None)
    assert not nvfp4kern.comfy.register()
    assert "its quantize_nvfp4 takes (x, scale)" in caplog.text
    monkeypatch.delattr(registering.eager, "quantize_nvfp4")
    assert not nvfp4kern.comfy.register()
    assert "AttributeError" in caplog.text


def test_the_switch():
    code = (
        "import nvfp4kern.comfy as c; assert not c.register()\n"
        "import comfy_kitchen as ck; assert 'nvfp4kern' not in ck.list_backends()\n"
        "import sys; assert 'nvfp4kern.comfy.backend' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"NVFP4KERN_COMFY": "no"}
    )
