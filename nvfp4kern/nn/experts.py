"""The experts of a mixture, with NVFP4 weights, stacked."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor, nn

from .. import torch as nk
from ..layout import SF_VEC
from ..types import Activation
from . import stacks
from .experts_gradients import Combined, Gradient
from .frozen import E4M3, Frozen, InputQuant, choice, frozen, wants_gradient
from .gptq import Compensation
from .linear import autocast, quantize_input, readable, static_scale
from .recipes import Recipe, quantize_weight

INPUT_QUANTS = (None, "static", "dynamic", "token")
WEIGHTS = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes of a router's weights that need no conversion."""


Operand: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]
"""Codes and their scale factors, or 16-bit elements; row_scale."""
Residual: TypeAlias = Tensor | Callable[[], Tensor] | None
"""[T, H] to be added, or what computes it, of any shape with as many elements."""


class NVFP4Experts(Frozen):
    """E experts, each down(act(gate(x)) * up(x)), as two grouped products over all tokens. Or, with
    gated=False, each down(act(up(x))).

    Parameters, by the names of ModelOpt's stacked files:
        gate_up_proj                 uint8 [E, 2 I, H/2], the rows of gate, then those of up
        gate_up_proj_weight_scale    float8_e4m3fn [E, 2 I, H/16]
        gate_up_proj_weight_scale_2  float32 [E, 2], the global scales of gate and of up
        gate_up_proj_input_scale     float32 [E, 2], with input_quant="static" alone
        down_proj                    uint8 [E, H, I/2]
        down_proj_weight_scale       float8_e4m3fn [E, H, I/16]
        down_proj_weight_scale_2     float32 [E]
        down_proj_input_scale        float32 [E], with input_quant="static" alone
        gate_up_proj_bias            dtype [E, 2 I], those of gate, then those of up, with bias=True
        down_proj_bias               dtype [E, H], the same
    With gated=False up_proj [E, I, H/2], its scales and up_proj_bias [E, I] take the place of those
    of gate_up_proj, and have one global scale for each expert, [E].
    With row_scales=True a global scale is of a row, [E, 2 I] and [E, H].
    With input_scale_inverse=True `.._input_scale_inverse` take the place of the input scales, as in
    NVFP4Linear.
    H is hidden_size, I intermediate_size, E num_experts. A file may have gate's and up's global
    scale as one number for each expert, [E] or [E, 1, 1]: both then get it.

    input_quant: None (W4A16), "static", "dynamic" or "token", as in NVFP4Linear. A token is
        quantised once for all its experts, so a static scale is the largest of the experts' scales.
    activation, limit, activation_scale: the gate, as in nvfp4kern.grouped_dual_gemm; gpt-oss has
        "swiglu_oai" with limit=7. With gated=False activation alone, that of
        nvfp4kern.grouped_gemm; Nemotron-H has "relu2".

    With NVFP4KERN_BATCH_INVARIANT=1 the other tokens of a call change no bit of a token's result.
    x and top_k_weights have gradients, and so have biases that were asked for one. That of x
    dequantises all experts.

    Raises ValueError where H or I is no multiple of 16, and for a limit or "swiglu_oai" without a
    gate.
    """

    GLOBALS = tuple(
        f"{stack}_{scale}"
        for stack in ("gate_up_proj", "up_proj", "down_proj")
        for scale in ("weight_scale_2", "input_scale", "input_scale_inverse")
    )
    FOLLOWING = ("gate_up_alpha", "down_alpha", "gate_up_input", "down_input")
    EXACT = (
        "gate_up_proj_weight_scale", "up_proj_weight_scale", "down_proj_weight_scale",
        *GLOBALS, *FOLLOWING,
    )  # fmt: skip

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        *,
        input_quant: InputQuant = None,
        input_scale_inverse: bool = False,
        row_scales: bool = False,
        bias: bool = False,
        gated: bool = True,
        activation: Activation = "silu",
        limit: float | None = None,
        activation_scale: float = 1.702,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("hidden_size", hidden_size), ("intermediate_size", intermediate_size)):
            if size % SF_VEC:
                raise ValueError(f"{name}: {size}, expected a multiple of {SF_VEC}")
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.num_experts = num_experts
        self.input_quant: InputQuant = choice("input_quant", input_quant, INPUT_QUANTS)
        choice("activation", activation, get_args(Activation))
        self.gating: dict[str, Any] = {
            "activation": activation,
            "limit": limit,
            "activation_scale": activation_scale,
        }
        self.gated = gated
        if not gated and (activation == "swiglu_oai" or limit is not None):
            raise ValueError(f"gated: False, expected True with {self.gating}")
        h, i, e, where = hidden_size, intermediate_size, num_experts, {"device": device}
        f32: dict[str, Any] = {"dtype": torch.float32, **where}
        up, n = self.stacks[0], i * self.halves
        self.row_scales = row_scales
        self._unset()
        setattr(self, up, frozen(e, n, h // 2, dtype=torch.uint8, **where))
        setattr(self, f"{up}_weight_scale", frozen(e, n, h // SF_VEC, dtype=E4M3, **where))
        of_up = (e, n) if row_scales else (e, 2)[: self.halves]
        setattr(self, f"{up}_weight_scale_2", frozen(*of_up, **f32))
        self.down_proj = frozen(e, h, i // 2, dtype=torch.uint8, **where)
        self.down_proj_weight_scale = frozen(e, h, i // SF_VEC, dtype=E4M3, **where)
        self.down_proj_weight_scale_2 = frozen(*(e, h) if row_scales else (e,), **f32)
        if bias:
            self._set_biases(*(torch.empty(e, size, dtype=dtype, **where) for size in (n, h)))
        static = input_quant == "static"
        self.inverse = static and input_scale_inverse
        self._set_input_scales(e, device)
        up_alpha, down_alpha = (e, n) if gated else of_up, self.down_proj_weight_scale_2.shape
        for name, shape in (("gate_up_alpha", up_alpha), ("down_alpha", down_alpha)):
            self.register_buffer(name, torch.full(shape, torch.nan, **f32), persistent=False)
        for name in ("gate_up_input", "down_input"):
            value = torch.full((), torch.nan, **f32) if static else None
            self.register_buffer(name, value, persistent=False)

    @property
    def stacks(self) -> tuple[str, str]:
        """The names of the two weights."""
        return stacks.STACKS if self.gated else stacks.UNGATED

    @property
    def halves(self) -> int:
        """Of the rows of the first one: gates and ups, or all."""
        return 2 if self.gated else 1

    def _unset(self) -> None:
        """No parameter has any of these names so far."""
        self.gate_up_proj: nn.Parameter | None = None
        self.gate_up_proj_weight_scale: nn.Parameter | None = None
        self.up_proj: nn.Parameter | None = None
        self.up_proj_weight_scale: nn.Parameter | None = None
        self.gate_up_proj_bias: nn.Parameter | None = None
        self.up_proj_bias: nn.Parameter | None = None
        self.down_proj_bias: nn.Parameter | None = None
        for name in self.GLOBALS:
            setattr(self, name, None)

    def _set_biases(self, up: Tensor, down: Tensor) -> None:
        for stack, value in zip(self.stacks, (up, down), strict=True):
            setattr(self, f"{stack}_bias", nn.Parameter(value, requires_grad=False))

    def _set_input_scales(self, experts: int, device: Any) -> None:
        """Makes input scales of so many experts, or their inverses, or neither."""
        shapes = (experts, 2)[: self.halves], (experts,)
        for stack, shape in zip(self.stacks, shapes, strict=True):
            for name, inverse in (("input_scale", False), ("input_scale_inverse", True)):
                own = self.input_quant == "static" and self.inverse == inverse
                value = frozen(*shape, dtype=torch.float32, device=device) if own else None
                setattr(self, f"{stack}_{name}", value)

    @staticmethod
    def why_not(module: nn.Module) -> str | None:
        """Why a module of transformers is no stack of experts that this class computes, or None."""
        return stacks.why_not(module)

    @classmethod
    def options_of(cls, module: nn.Module) -> dict[str, Any]:
        """What of the class's arguments follows from a stack of transformers, or from NVFP4Experts.
        ValueError where why_not(module) has a reason."""
        if isinstance(module, NVFP4Experts):
            names = ("hidden_size", "intermediate_size", "num_experts")
            found = {name: getattr(module, name) for name in (*names, "gated")} | module.gating
            bias = module.down_proj_bias
        else:
            reason, gate = cls.why_not(module), stacks.gate_of(module)
            if reason or isinstance(gate, str):
                raise ValueError(f"experts: {type(module).__name__} {reason}")
            e, h, i = stacks.matrices(module)[1].shape
            found = {"hidden_size": h, "intermediate_size": i, "num_experts": e} | gate.options
            bias = stacks.biases(module)[1]
        return found | {"bias": bias is not None, "dtype": None if bias is None else bias.dtype}

    @classmethod
    def like(
        cls, module: nn.Module, *, input_quant: InputQuant = None, device: Any = None
    ) -> "NVFP4Experts":
        """Experts of the same sizes, unset. ValueError where why_not(module) has a reason."""
        return cls(**cls.options_of(module), input_quant=input_quant, device=device)

    @classmethod
    def from_experts(
        cls,
        module: nn.Module,
        *,
        input_quant: InputQuant = None,
        recipe: Recipe = "amax",
        hessians: Mapping[tuple[str, int], Tensor] | None = None,
    ) -> "NVFP4Experts":
        """Quantises transformers' stacked experts; the options are NVFP4Config's.

        hessians: for "gptq" alone: by a stack's name and the expert, as in NVFP4Linear. An expert
            that has none is quantised by "amax".
        """
        choice("input_quant", input_quant, (None, "dynamic", "token"))
        experts = cls.like(module, input_quant=input_quant, device=module.down_proj.device)
        (up, down), gate = stacks.matrices(module), stacks.gate_of(module)
        assert not isinstance(gate, str)
        for e in range(experts.num_experts):
            parts = gate.halves(up[e]), (down[e],)
            for name, weights in zip(experts.stacks, parts, strict=True):
                hessian = None if hessians is None else hessians.get((name, e))
                known = hessian is not None or hessians is None
                compensation = None if hessian is None else Compensation(hessian)
                for j, weight in enumerate(weights):
                    own: Recipe = recipe if known else "amax"
                    made = quantize_weight(weight, own, None, compensation)
                    experts.expert_weight(name, e, j, *made)
        of_up, of_down = stacks.biases(module)
        if of_up is not None and of_down is not None:
            gates_and_ups = torch.cat(gate.halves(of_up.detach(), 1), 1)
            experts._set_biases(gates_and_ups, of_down.detach().clone())
        experts.finish()
        return experts

    def expert_weight(
        self, name: str, expert: int, half: int, codes: Tensor, scales: Tensor, global_scale: Tensor
    ) -> None:
        """Copies one expert's weight into the stack `name`, one of `stacks`.

        half: of gate_up_proj 0 for gate and 1 for up; of others 0.
        """
        rows = slice(half * len(codes), (half + 1) * len(codes))
        getattr(self, name).data[expert, rows] = codes
        stored = getattr(self, f"{name}_weight_scale").data.view(torch.uint8)
        stored[expert, rows] = scales.view(torch.uint8)
        getattr(self, f"{name}_weight_scale_2").data.view(self.num_experts, -1)[expert, half] = (
            global_scale
        )

    def sources(self) -> tuple[Tensor | None, ...]:
        return tuple(self._parameters.get(name) for name in self.GLOBALS)

    def following(self) -> dict[str, Tensor]:
        values = {}
        up, down = (getattr(self, f"{stack}_weight_scale_2") for stack in self.stacks)
        if self.input_quant == "static":
            key = "input_scale_inverse" if self.inverse else "input_scale"
            inputs = [getattr(self, f"{stack}_{key}") for stack in self.stacks]
            one = [each.min() if self.inverse else each.max() for each in inputs]
            up, down = (
                (up / one[0], down / one[1]) if self.inverse else (up * one[0], down * one[1])
            )
            values = {"gate_up_input": one[0], "down_input": one[1]}
        rows = 1 if self.row_scales else self.intermediate_size
        values["gate_up_alpha"] = up.repeat_interleave(rows, dim=1) if self.gated else up + 0
        values["down_alpha"] = down + 0
        return values

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):  # type: ignore
        for name in self.GLOBALS[:3]:  # one number for gate and up
            given, own = state_dict.get(prefix + name), getattr(self, name)
            if given is not None and own is not None and given.numel() == len(own):
                state_dict[prefix + name] = given.reshape(-1, 1).repeat(1, 2)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def forward(
        self, x: Tensor, top_k_index: Tensor | None = None, top_k_weights: Tensor | None = None
    ) -> Tensor:
        """x [.., H] -> [.., H] of its dtype, the weighted sum over k experts.

        x: float16 or bfloat16, with input_quant also float32 where it wants no gradient.
        top_k_index: int [.., k], numbers that int32 has. One below 0, or num_experts and above, is
            an expert on another device: it adds nothing.
        top_k_weights: floating point [.., k].
        Without these two x has as many tokens for each expert, in the experts' order, as Llama-4
            sorts them, and each gets the result of its expert.
        Under torch.autocast x is first cast to autocast's dtype, as nn.Linear's input is.
        """
        x = autocast(x)
        tokens = x.reshape(-1, self.hidden_size)
        if top_k_index is None and top_k_weights is None:
            return self._sorted(tokens).view(x.shape)
        if top_k_index is None or top_k_weights is None:
            missing = "top_k_index" if top_k_index is None else "top_k_weights"
            raise ValueError(f"{missing}: None, expected a tensor beside the other one")
        ids = expert_ids(top_k_index, len(tokens))
        _, offsets, sorted_rows, row_of = nk.sort_by_expert(ids, self.num_experts)
        weights = top_k_weights.reshape(ids.shape)
        return self.combine(tokens, ids, weights, sorted_rows, offsets, row_of).view(x.shape)

    def _sorted(self, x: Tensor) -> Tensor:
        each, left = divmod(len(x), self.num_experts)
        if left:
            raise ValueError(f"x: {len(x)} tokens, expected a multiple of {self.num_experts}")
        rows = torch.arange(len(x), dtype=torch.int32, device=x.device)
        offsets = torch.arange(self.num_experts + 1, dtype=torch.int32, device=x.device) * each
        return self._products(x, rows, 1, offsets)

    def combine(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        sorted_rows: Tensor,
        offsets: Tensor,
        row_of: Tensor,
        residual: Residual = None,
    ) -> Tensor:
        """forward of x [T, H] with a permutation of nvfp4kern.route or sort_by_expert.

        ids: int32 [T, k], of which it is one. Only experts on several GPUs look at them.
        residual: [T, H] to be added before the result is rounded. A function is called first.
            Experts on several GPUs call a partial of a module while tokens travel.
        """
        if callable(residual):
            residual = residual().reshape(x.shape)
        products = self._products(x, sorted_rows, weights.shape[-1], offsets)
        return self._sum(products, weights, row_of, x.dtype, residual)

    def _sum(
        self,
        products: Tensor,
        weights: Tensor,
        row_of: Tensor,
        dtype: torch.dtype,
        residual: Tensor | None = None,
    ) -> Tensor:
        """The weighted sum of each token's products, [T, H] of a dtype."""
        weights = readable(weights if weights.dtype in WEIGHTS else weights.float())
        residual = None if residual is None else readable(residual)
        wanted = [products, weights] if residual is None else [products, weights, residual]
        if any(map(wants_gradient, wanted)):
            return Combined.apply(products, row_of, weights, residual, dtype)
        return nk.combine(products, row_of, weights, residual=residual, out_dtype=dtype)

    def _products(self, x: Tensor, sorted_rows: Tensor, k: int, offsets: Tensor) -> Tensor:
        """The experts' results, [T k, H], sorted by expert; row r is of token sorted_rows[r] // k.

        Tokens are gathered by the product itself, but where a gradient is to be scattered back.
        """
        biases = [getattr(self, f"{stack}_bias") for stack in self.stacks]
        if any(wants_gradient(each) for each in (x, *biases) if each is not None):
            rows = x[sorted_rows // k]
            up = Gradient.apply(rows, biases[0], self, "gate_up", offsets)
            if self.gated:
                h = stacks.gated(*up.chunk(2, dim=-1), **self.gating)
            else:
                h = stacks.ACTIVATIONS[self.gating["activation"]](up)
            return Gradient.apply(h, biases[1], self, "down", offsets)
        return self._products_of(self._operand(x), x.dtype, sorted_rows, k, offsets)

    def _operand(self, x: Tensor, name: str = "gate_up") -> Operand:
        """What a product reads of x."""
        if self.input_quant is None:
            return readable(x), None, None
        scale = self._input_scale(name)
        a, sfa, own = quantize_input(x, self.input_quant, scale, self.inverse)
        return a, sfa, own if self.input_quant == "token" else None

    def _input_scale(self, name: str) -> Tensor | None:
        """The global scale of the input of a product, or its inverse, with input_quant="static"
        alone."""
        return self.derived()[f"{name}_input"] if self.input_quant == "static" else None

    def _products_of(
        self,
        tokens: Operand,
        dtype: torch.dtype,
        sorted_rows: Tensor,
        k: int,
        offsets: Tensor,
        expected_rows: int | None = None,
    ) -> Tensor:
        """_products of tokens as _operand makes them. The offsets are expected to give so many of
        sorted_rows to experts, or all."""
        a, sfa, row_scale = tokens
        of_both: dict[str, Any] = {"expected_rows": expected_rows}
        options = {"rows": sorted_rows, "rows_per_token": max(k, 1)} | of_both
        if not self.gated:
            options["activation"] = self.gating["activation"]
            h = self._product("gate_up", tokens, offsets, dtype, **options)
            return self._product("down", self._operand(h, "down"), offsets, dtype, **of_both)
        stack = a, self.gate_up_proj, sfa, self.gate_up_proj_weight_scale, offsets
        options |= {
            "alpha": self.derived()["gate_up_alpha"],
            "bias": self.gate_up_proj_bias,
            "row_scale": row_scale,
            **self.gating,
        }
        if self.input_quant in (None, "token"):
            h = nk.grouped_dual_gemm(*stack, out_dtype=dtype, **options)
            return self._product("down", self._operand(h, "down"), offsets, dtype, **of_both)
        options |= static_scale(self._input_scale("down"), self.inverse)
        options["data_dtype"] = torch.uint8
        codes, scales, _ = nk.grouped_dual_gemm(*stack, quantized=True, **options)
        return self._product("down", (codes, scales, None), offsets, dtype, **of_both)

    def _product(
        self, name: str, tokens: Operand, offsets: Tensor, dtype: torch.dtype, **options: Any
    ) -> Tensor:
        """name: "gate_up", also of up_proj, or "down"."""
        stack = self.stacks[name == "down"]
        weight, scales = getattr(self, stack), getattr(self, f"{stack}_weight_scale")
        a, sfa, row_scale = tokens
        options |= {"alpha": self.derived()[f"{name}_alpha"], "out_dtype": dtype}
        options["row_scale"] = row_scale
        options["bias"] = getattr(self, f"{stack}_bias")
        return nk.grouped_gemm(a, weight, sfa, scales, offsets=offsets, **options)

    def dequantize(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights [E, N, K] of one of `stacks`: code * scale * global scale."""
        codes, scales = getattr(self, name), getattr(self, f"{name}_weight_scale")
        values = nk.dequantize((codes, scales, 1.0), out_dtype=torch.float32)
        globals_ = getattr(self, f"{name}_weight_scale_2").view(self.num_experts, -1, 1, 1)
        halves = values.view(self.num_experts, globals_.shape[1], -1, values.shape[-1])
        return halves.mul_(globals_).view(values.shape).to(dtype)

    def extra_repr(self) -> str:
        return (
            f"hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}, "
            f"num_experts={self.num_experts}, bias={self.down_proj_bias is not None}, "
            f"gated={self.gated}, activation={self.gating['activation']!r}, "
            f"input_quant={self.input_quant!r}"
        )


def expert_ids(top_k_index: Tensor, tokens: int) -> Tensor:
    """int32 [tokens, k]."""
    if top_k_index.is_floating_point():
        raise TypeError(f"top_k_index: {top_k_index.dtype}, expected numbers of experts")
    return top_k_index.reshape(tokens, top_k_index.shape[-1]).to(torch.int32)
