"""y = x @ W.T + bias with W in NVFP4, and the feed-forward layer made of three of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import torch as nk
from ..layout import SF_VEC
from .frozen import E4M3, Frozen, InputQuant, choice, frozen, wants_gradient
from .gptq import Compensation
from .recipes import Recipe, quantize_weight
from .replacing import has_hooks, made_by_hooks

INPUT_QUANTS = (None, "static", "dynamic", "amax", "token")


class NVFP4Linear(Frozen):
    """A linear layer [.., K] -> [.., N] whose weight is NVFP4, frozen.

    Parameters, by ModelOpt's names:
        weight           uint8 [N, K/2], two codes a byte, the even element in the low nibble
        weight_scale     float8_e4m3fn [N, K/16], a scale factor for 16 elements along K
        weight_scale_2   float32 [], the global scale; [N], one for each row, with row_scales=True
        input_scale      float32 [], the input's global scale, with input_quant="static" alone
        input_scale_inverse  float32 [], in its place with input_scale_inverse=True: its inverse,
                         which compressed-tensors stores and the input is multiplied by as it is
        pre_quant_scale  dtype [K], which multiplies the input first (AWQ), or None
        svdquant_lora_a, svdquant_lora_b  dtype [R, K] and [N, R] with low_rank=R (SVDQuant): what
                         the weight was reduced by, their product, which stays at 16 bits; or None
        bias             dtype [N], or None
    An element of W is code * weight_scale * weight_scale_2.

    input_quant: None leaves the input at 16 bits (W4A16). Otherwise the input is quantised to
        NVFP4 (W4A4), with this global scale:
        "static"   input_scale or input_scale_inverse
        "dynamic"  none: a row's codes do not depend on the other rows
        "amax"     the largest magnitude of the whole input / 2688
        "token"    that of each row by itself, so that no row depends on another one

    The input is float16 or bfloat16, with input_quant also float32, on the weight's device. The
    result has the input's dtype. Under torch.autocast the input is first cast to autocast's dtype,
    as nn.Linear's is. A forward pass is one or two operators of nvfp4kern and does not synchronise.
    torch.compile and CUDA graphs take it.

    The gradient with respect to the input is torch's product with the dequantised weight.
    Quantising the input counts as the identity. Parameters have no gradient, but for a bias that
    was asked for one by `requires_grad_`.

    Raises ValueError for K that is no multiple of 16, and what nvfp4kern.gemm raises.
    """

    GLOBALS = ("weight_scale_2", "input_scale", "input_scale_inverse")
    EXACT = ("weight_scale", *GLOBALS, "alpha")
    FOLLOWING = ("alpha",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        input_quant: InputQuant = None,
        input_scale_inverse: bool = False,
        pre_quant_scale: bool = False,
        row_scales: bool = False,
        low_rank: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if in_features % SF_VEC:
            raise ValueError(f"in_features: {in_features}, expected a multiple of {SF_VEC}")
        self.in_features, self.out_features = in_features, out_features
        self.input_quant: InputQuant = choice("input_quant", input_quant, INPUT_QUANTS)
        n, k, where = out_features, in_features, {"device": device}
        self.weight = frozen(n, k // 2, dtype=torch.uint8, **where)
        self.weight_scale = frozen(n, k // SF_VEC, dtype=E4M3, **where)
        self.weight_scale_2 = frozen(*(n,) * row_scales, dtype=torch.float32, **where)
        self.input_scale: nn.Parameter | None = None
        self.input_scale_inverse: nn.Parameter | None = None
        self.alpha: Tensor | None = None
        self.pre_quant_scale: nn.Parameter | None = None
        self.svdquant_lora_a: nn.Parameter | None = None
        self.svdquant_lora_b: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if input_quant == "static":
            name = "input_scale_inverse" if input_scale_inverse else "input_scale"
            delattr(self, name)
            setattr(self, name, frozen(dtype=torch.float32, **where))
            del self.alpha
            product = torch.full_like(self.weight_scale_2, torch.nan)
            self.register_buffer("alpha", product, persistent=False)
        if pre_quant_scale:
            del self.pre_quant_scale
            self.pre_quant_scale = frozen(k, dtype=dtype, **where)
        if low_rank:
            del self.svdquant_lora_a, self.svdquant_lora_b
            self.svdquant_lora_a = frozen(low_rank, k, dtype=dtype, **where)
            self.svdquant_lora_b = frozen(n, low_rank, dtype=dtype, **where)
        if bias:
            del self.bias
            empty = torch.empty(n, dtype=dtype, **where)
            self.bias = nn.Parameter(empty, requires_grad=False)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        input_quant: InputQuant = None,
        recipe: Recipe = "amax",
        hessian: Tensor | None = None,
    ) -> "NVFP4Linear":
        """Quantises a layer's weight (float16, bfloat16 or float32); its bias is shared.

        linear: an nn.Linear, or a Conv1D of transformers, whose weight is [K, N].
        input_quant: None, "dynamic", "amax" or "token"; "static" would need a calibration.
        recipe: see NVFP4Config. hessian: for "gptq" alone, X^T X [K, K] of inputs X.

        Raises ValueError for a weight with NaN or infinities, and for one that hooks make, as those
        of weight_norm, spectral_norm and pruning do. Synchronises with the device.
        """
        choice("input_quant", input_quant, (None, "dynamic", "amax", "token"))
        made = made_by_hooks(linear, "weight", "bias")
        if made:
            raise ValueError(f"linear: its {made} is no parameter; remove weight_norm or pruning")
        weight = linear.weight.detach()
        weight = weight.T if is_conv1d(linear) else weight
        n, k = weight.shape
        layer = cls(k, n, bias=False, input_quant=input_quant, device="meta")
        compensation = None if hessian is None else Compensation(hessian)
        codes, scales, global_scale = quantize_weight(weight, recipe, None, compensation)
        layer._set(weight=codes, weight_scale=scales, weight_scale_2=global_scale)
        if linear.bias is not None:
            layer._set(bias=linear.bias.detach())
        return layer

    def _set(self, **values: Tensor) -> None:
        for name, value in values.items():
            setattr(self, name, nn.Parameter(value, requires_grad=False))
        self.finish()

    def sources(self) -> tuple[Tensor | None, ...]:
        return tuple(map(self._parameters.get, self.GLOBALS))

    def following(self) -> dict[str, Tensor]:
        if self.input_scale_inverse is not None:
            return {"alpha": self.weight_scale_2 / self.input_scale_inverse}
        scale = self.input_scale
        return {} if scale is None else {"alpha": self.weight_scale_2 * scale}

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [N, K]: code * weight_scale * weight_scale_2 in float32, rounded to dtype.

        pre_quant_scale has no part in it: it multiplies the input. Nor have low-rank factors.
        """
        stored = (self.weight, self.weight_scale)
        if self.weight_scale_2.numel() == 1:
            return nk.dequantize((*stored, self.weight_scale_2), out_dtype=dtype)
        rows = nk.dequantize((*stored, 1.0), out_dtype=torch.float32)
        return rows.mul_(self.weight_scale_2[:, None]).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = autocast(x)
        if wants_gradient(x) or self.bias is not None and wants_gradient(self.bias):
            y = _Gradient.apply(x, self.bias, self)
        else:
            y = self._forward(x)
        if self.svdquant_lora_a is None or self.svdquant_lora_b is None:
            return y
        low, high = (each.to(x.dtype) for each in (self.svdquant_lora_a, self.svdquant_lora_b))
        inner = nn.functional.linear(self._scaled(x), low)
        return y + nn.functional.linear(inner, high).to(x.dtype)

    def _scaled(self, x: Tensor) -> Tensor:
        scale = self.pre_quant_scale
        return x if scale is None else (x * scale).to(x.dtype)

    def _forward(self, x: Tensor) -> Tensor:
        a, sfa, alpha, row_scale = self._operand(x)
        return nk.gemm(
            a, self.weight, sfa, self.weight_scale, alpha=alpha, row_scale=row_scale,
            bias=self.bias, out_dtype=x.dtype,
        )  # fmt: skip

    def _operand(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """The operand a of gemm that x becomes, its scale factors, alpha and row_scale."""
        x = self._scaled(x)
        if self.input_quant is None:
            return readable(x), None, self.weight_scale_2, None
        inverse = self.input_scale_inverse is not None
        scale = self.input_scale_inverse if inverse else self.input_scale
        a, sfa, own = quantize_input(x, self.input_quant, scale, inverse)
        if self.input_quant == "token":
            return a, sfa, self.weight_scale_2, own
        if self.input_quant == "amax":
            return a, sfa, self.weight_scale_2 * own, None
        static = scale is not None
        return a, sfa, self.derived()["alpha"] if static else self.weight_scale_2, None

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, input_quant={self.input_quant!r}"
        )


def is_conv1d(module: Any) -> bool:
    """Whether a module is transformers' Conv1D: a linear layer whose weight is [K, N]."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def is_linear(module: Any) -> bool:
    """Whether a module computes what nn.Linear does of a weight and a bias, and holds no more."""
    if is_conv1d(module):
        return True
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return False
    own = module._parameters.keys() - {"weight", "bias"}
    return type(module) is nn.Linear or not (own or module._buffers or module._modules)


def sizes_of(linear: nn.Module) -> tuple[int, int]:
    """K and N of what is_linear says yes to, or of an NVFP4Linear."""
    if isinstance(linear, NVFP4Linear):
        return linear.in_features, linear.out_features
    n, k = linear.weight.shape[::-1] if is_conv1d(linear) else linear.weight.shape
    return int(k), int(n)


def autocast(x: Tensor) -> Tensor:
    """x, or what torch.autocast makes of a linear layer's operand where it is on. Raises TypeError
    where that has a dtype that layers do not take."""
    device = x.device.type
    if not x.is_meta and torch.is_autocast_enabled(device):  # which does not know "meta"
        x = x.to(torch.get_autocast_dtype(device))
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        name = str(x.dtype).removeprefix("torch.")
        raise TypeError(f"x: dtype {name}, expected float16, bfloat16 or float32")
    return x


def readable(x: Tensor) -> Tensor:
    """x, or a contiguous copy where its strides are none that the operators take."""
    return x if x.dim() <= 3 and x.stride(-1) == 1 else x.contiguous()


def quantize_input(
    x: Tensor,
    how: InputQuant,
    scale: Tensor | None,
    inverse: bool = False,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Any]:
    """(codes as bytes, scale factors, global scale of "amax", or of each row of "token") of x.

    scale: of "static"; where `inverse`, its inverse.
    """
    options: dict[str, Any] = {"out": out, "data_dtype": torch.uint8}
    if how == "static":
        options |= static_scale(scale, inverse)
    elif how in ("amax", "token"):
        options["global_scale"] = how
    return nk.quantize(readable(x), **options)


def static_scale(scale: Tensor | None, inverse: bool) -> dict[str, Any]:
    """Arguments of an operator that quantises. Beside an inverse stands some global scale, since
    making the right one would cost a kernel, and the alphas of layers have it already."""
    if not inverse:
        return {"global_scale": scale}
    return {"global_scale": 1.0, "global_scale_inverse": scale}


class _Gradient(torch.autograd.Function):
    """NVFP4Linear where the input or the bias wants a gradient."""

    @staticmethod
    def forward(ctx, x, bias, layer):  # type: ignore[no-untyped-def]
        ctx.layer, ctx.dtype = layer, x.dtype
        return layer._forward(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        layer, dx, dbias = ctx.layer, None, None
        if ctx.needs_input_grad[0]:
            dx = grad @ layer.dequantize(ctx.dtype)
            if layer.pre_quant_scale is not None:
                dx = dx * layer.pre_quant_scale
        if ctx.needs_input_grad[1]:
            dbias = grad.flatten(0, -2).sum(0).to(layer.bias.dtype)
        return dx, dbias, None


def fuse(layers: Sequence[NVFP4Linear]) -> NVFP4Linear:
    """One layer with the rows of several that have the same input, such as q, k and v.

    The weight's values are those of the layers: where global scales differ, each row gets its own
    (row_scales). Of static input scales the layer takes the largest, of inverses the smallest.

    Raises ValueError for no layers, for low-rank factors, where in_features, input_quant or
    pre_quant_scale differ, and where only some of the layers have a bias or an input_scale_inverse.
    Raises TypeError for others, such as a rank's slice of a layer. Copies the weights. Synchronises
    with the device.
    """
    if not layers:
        raise ValueError("layers: empty, expected at least one NVFP4Linear")
    first = layers[0]
    for i, layer in enumerate(layers):
        if type(layer) is not NVFP4Linear:
            raise TypeError(f"layers[{i}]: {type(layer).__name__}, expected NVFP4Linear")
        if layer.svdquant_lora_a is not None:
            raise ValueError(f"layers[{i}].svdquant_lora_a: layers with one stay apart")
        for name in ("in_features", "input_quant"):
            got, expected = getattr(layer, name), getattr(first, name)
            if got != expected:
                raise ValueError(f"layers[{i}].{name}: {got!r}, expected {expected!r} as layers[0]")
        for name in ("bias", "pre_quant_scale", "input_scale_inverse"):
            if (getattr(layer, name) is None) != (getattr(first, name) is None):
                raise ValueError(f"layers[{i}].{name}: differs from layers[0] in being there")
        if first.pre_quant_scale is not None:
            if not torch.equal(layer.pre_quant_scale, first.pre_quant_scale):
                raise ValueError(f"layers[{i}].pre_quant_scale: differs from that of layers[0]")
    scales = torch.cat([each.weight_scale_2.expand(each.out_features) for each in layers])
    shared = bool((scales == scales[0]).all())
    options: dict[str, Any] = {
        "input_quant": first.input_quant,
        "input_scale_inverse": first.input_scale_inverse is not None,
    }
    fused = NVFP4Linear(first.in_features, len(scales), False, device="meta", **options)
    codes = torch.cat([layer.weight for layer in layers])
    factors = torch.cat([layer.weight_scale.view(torch.uint8) for layer in layers]).view(E4M3)
    values = {"weight": codes, "weight_scale": factors}
    values["weight_scale_2"] = scales[0].clone() if shared else scales
    if first.bias is not None:
        values["bias"] = torch.cat([layer.bias for layer in layers])
    if first.pre_quant_scale is not None:
        values["pre_quant_scale"] = first.pre_quant_scale.detach().clone()
    if first.input_scale is not None:
        values["input_scale"] = torch.stack([layer.input_scale for layer in layers]).max()
    if first.input_scale_inverse is not None:
        inverses = torch.stack([layer.input_scale_inverse for layer in layers])
        values["input_scale_inverse"] = inverses.min()
    fused._set(**values)
    return fused


class NVFP4SwiGLU(Frozen):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), [.., H] -> [.., H], of three NVFP4Linear.

    Gate and up are one dual_gemm, each with its own global scale. silu(gate) * up is rounded once.
    H is hidden_size. It and intermediate_size are multiples of 16. x has a dtype and a device that
    NVFP4Linear takes.

    input_quant: as in NVFP4Linear, for x and for the input of down_proj. gate_proj and up_proj
        share the larger of their static input scales.

    The three layers run one after the other, and each result is rounded, where the input wants a
    gradient and where gate and up of a checkpoint have a bias, a pre_quant_scale, low-rank factors
    or different input_quant, have hooks, or are adapters' layers.
    """

    FOLLOWING = EXACT = ("input_scale", "gate_alpha", "up_alpha")

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        input_quant: InputQuant = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"input_quant": input_quant, "device": device}
        self.gate_proj = NVFP4Linear(hidden_size, intermediate_size, False, **options)
        self.up_proj = NVFP4Linear(hidden_size, intermediate_size, False, **options)
        self.down_proj = NVFP4Linear(intermediate_size, hidden_size, False, **options)
        for name in self.EXACT:
            nan = torch.full((), torch.nan, dtype=torch.float32, device=device)
            self.register_buffer(name, nan if input_quant == "static" else None, persistent=False)

    def _static(self) -> bool:
        """Whether gate and up have static input scales, or both their inverses. An adapter may
        have taken their place."""
        layers = [e for e in (self.gate_proj, self.up_proj) if isinstance(e, NVFP4Linear)]
        return any(
            [getattr(each, name) is not None for each in layers] == [True, True]
            for name in ("input_scale", "input_scale_inverse")
        )

    def _apart(self) -> bool:
        gate, up = self.gate_proj, self.up_proj
        if not (isinstance(gate, NVFP4Linear) and isinstance(up, NVFP4Linear)):
            return True
        more = ("bias", "pre_quant_scale", "svdquant_lora_a")
        differ = gate.input_quant != up.input_quant
        differ |= any(getattr(each, name) is not None for each in (gate, up) for name in more)
        differ |= (gate.input_scale_inverse is None) != (up.input_scale_inverse is None)
        return differ or has_hooks(gate) or has_hooks(up)

    def sources(self) -> tuple[Tensor | None, ...]:
        return (*self.gate_proj.sources(), *self.up_proj.sources()) if self._static() else ()

    def following(self) -> dict[str, Tensor]:
        gate, up = self.gate_proj, self.up_proj
        if not self._static():
            return {}
        if gate.input_scale_inverse is not None:
            scale = torch.minimum(gate.input_scale_inverse, up.input_scale_inverse)
            alphas = gate.weight_scale_2 / scale, up.weight_scale_2 / scale
        else:
            scale = torch.maximum(gate.input_scale, up.input_scale)
            alphas = gate.weight_scale_2 * scale, up.weight_scale_2 * scale
        return {"input_scale": scale, "gate_alpha": alphas[0], "up_alpha": alphas[1]}

    def forward(self, x: Tensor) -> Tensor:
        x = autocast(x)
        gate, up = self.gate_proj, self.up_proj
        if wants_gradient(x) or self._apart():
            return self.down_proj(nn.functional.silu(gate(x)) * up(x))
        alphas, scale, row_scale = (gate.weight_scale_2, up.weight_scale_2), None, None
        if gate.input_quant == "static":
            derived = self.derived()
            scale, *alphas = (derived[name] for name in self.FOLLOWING)
        if gate.input_quant is None:
            a, sfa = readable(x), None
        else:
            inverse = gate.input_scale_inverse is not None
            a, sfa, own = quantize_input(x, gate.input_quant, scale, inverse)
        if gate.input_quant == "amax":
            alphas = alphas[0] * own, alphas[1] * own
        elif gate.input_quant == "token":
            row_scale = own
        h = nk.dual_gemm(
            a, gate.weight, up.weight, sfa, gate.weight_scale, up.weight_scale,
            alpha1=alphas[0], alpha2=alphas[1], row_scale=row_scale, out_dtype=x.dtype,
        )  # fmt: skip
        return self.down_proj(h)
