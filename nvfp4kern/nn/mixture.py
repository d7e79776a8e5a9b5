"""A mixture of experts: a router and stacked experts with NVFP4 weights."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import torch as nk
from ..types import Score
from .experts import NVFP4Experts, expert_ids
from .frozen import Frozen, InputQuant, frozen
from .linear import autocast, readable

OF_GATE = ("e_score_correction_bias", "per_expert_scale")


class NVFP4MoE(Frozen):
    """A router, its experts and, where given, shared experts: [.., H] -> [.., H].

    gate.weight is float16, bfloat16 or float32 [E, H]. x is as in NVFP4Experts and need not have
    its dtype. The router has no gradient. Neither gate nor experts is called as a module, so hooks
    of these do not run. Under torch.autocast both are first cast to autocast's
    dtype, as those of nn.Linear are.

    top_k, score, n_group, topk_group, renormalize, scaling_factor: see nvfp4kern.route.
    correction_bias: True adds the parameter gate.e_score_correction_bias, float32 [E], as
        DeepSeek-V3 has it. It takes part in the choice of experts, not in their weights.
    per_expert_scale: True adds the parameter gate.per_expert_scale, float32 [E], as Gemma-4's
        router has it: the weights of each expert are multiplied by it.
    router: a module in place of gate and of all these. It is called with x [T, H] and with what
        forward gets beside x, such as token ids whose hash chooses experts. Its result is
        (top_k_index [T, k], top_k_weights [T, k]), as NVFP4Experts takes them. It may train.
    shared_experts: a module [.., H] -> [.., H] whose result is added in float32, before the sum is
        rounded to x's dtype. Where experts are on several GPUs, it runs while tokens travel.
    input_quant, activation, limit, activation_scale: see NVFP4Experts.
    """

    EXACT = ("correction_bias", "per_expert_scale")

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        top_k: int,
        *,
        score: Score = "softmax_topk",
        correction_bias: bool = False,
        per_expert_scale: bool = False,
        router: nn.Module | None = None,
        n_group: int = 1,
        topk_group: int = 1,
        renormalize: bool | None = None,
        scaling_factor: float = 1.0,
        shared_experts: nn.Module | None = None,
        input_quant: InputQuant = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **gating: Any,
    ) -> None:
        super().__init__()
        self.num_experts = num_experts  # of all ranks, where `experts` becomes a part
        self.router = router
        self.gate = None
        if router is None:
            self.gate = nn.Linear(hidden_size, num_experts, bias=False, device=device, dtype=dtype)
            self.gate.requires_grad_(False)
            for name, wanted in zip(OF_GATE, (correction_bias, per_expert_scale), strict=True):
                numbers = frozen(num_experts, dtype=torch.float32, device=device)
                self.gate.register_parameter(name, numbers if wanted else None)
        self.experts = NVFP4Experts(
            hidden_size,
            intermediate_size,
            num_experts,
            input_quant=input_quant,
            device=device,
            **gating,
        )
        self.shared_experts = shared_experts
        self.top_k = top_k
        self.routing: dict[str, Any] = {
            "score": score,
            "n_group": n_group,
            "topk_group": topk_group,
            "renormalize": renormalize,
            "scaling_factor": scaling_factor,
        }

    @property
    def correction_bias(self) -> nn.Parameter | None:
        """gate.e_score_correction_bias. It stays float32: 16 bits would select other experts."""
        return None if self.gate is None else self.gate.e_score_correction_bias

    @property
    def per_expert_scale(self) -> nn.Parameter | None:
        """gate.per_expert_scale, float32, too."""
        return None if self.gate is None else self.gate.per_expert_scale

    def forward(self, x: Tensor, *of_router: Any) -> Tensor:
        x = autocast(x)
        tokens = readable(x.reshape(-1, x.shape[-1]))
        if self.gate is None:
            top_k_index, weights = self.router(tokens, *of_router)
            ids = expert_ids(top_k_index, len(tokens))
            weights = weights.reshape(ids.shape)
            _, offsets, sorted_rows, row_of = nk.sort_by_expert(ids, self.num_experts)
        elif of_router:
            raise TypeError(
                f"forward: {1 + len(of_router)} arguments, expected x alone with a gate"
            )
        else:
            weights, ids, _, offsets, sorted_rows, row_of = nk.route(
                tokens.detach(),
                readable(autocast(self.gate.weight)),
                self.top_k,
                correction_bias=self.correction_bias,
                per_expert_scale=self.per_expert_scale,
                permutation=True,
                return_row_of=True,
                **self.routing,
            )
        shared = None if self.shared_experts is None else partial(self.shared_experts, x)
        return self.experts.combine(
            tokens, ids, weights, sorted_rows, offsets, row_of, residual=shared
        ).view(x.shape)
