"""A mixture's experts, some of them on each rank, and how tokens come to them."""

from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor, nn

from .. import torch as nk
from ..layout import SF_VEC
from ..nn.experts import WEIGHTS, NVFP4Experts, Operand, Residual, expert_ids
from ..nn.frozen import E4M3, InputQuant, choice, wants_gradient
from ..nn.linear import autocast, quantize_input
from ..nn.recipes import Recipe
from ..nn.stacks import SORTED
from . import replicas
from .beside import Beside
from .collectives import (
    REDUCE_DTYPES,
    Group,
    agree,
    gathered,
    rank_and_world,
    reduced,
    reduced_rows,
    refuse_gradients,
)
from .cut import Cut, Slice, evenly
from .peers import ALIGNMENT, TRANSPORTS, PeerMemory, Transport, choose, of_call, said

Tokens: TypeAlias = Literal["own", "same"]
MORE_BYTES = 3_600_000
"""That peers may send more than collectives: those take 8 us longer, in which a GPU sends so many.
Fitted to two H200s, see docs/distributed.md."""


class ExpertParallel(Slice, NVFP4Experts):
    """The rank's experts of a mixture: [.., H] -> [.., H], the weighted sum over all k experts.

    Each token is computed where its experts are, and the ranks' sums are added. A rank has a range
    of the experts; where their number is no multiple of the ranks, the first ranks have one more.

    hidden_size, intermediate_size, num_experts: H, I and E of the whole layer. The attribute
        num_experts is the rank's own number, `all_experts` is E.
    physical_to_logical: which expert each copy is, for experts that more than one rank has, since
        many tokens choose them. Copies take the place of experts where it says how ranks share
        them. Tokens take turns at the copies of an expert, and with tokens="own" a rank that has
        one takes its own. So where ranks' sums are sent, a token's place in the call may change its
        bits, with NVFP4KERN_BATCH_INVARIANT=1, too. None: there is one of each.
    tokens: whose they are.
        "own"   each rank has tokens of its own. All ranks' tokens come to all ranks, as NVFP4 codes
                and scale factors (with input_quant=None at 16 bits) with their experts' numbers and
                weights in one all_gather; a reduce_scatter brings the results back.
        "same"  all ranks have the same tokens, as behind RowParallel, and all get all results by an
                all_reduce.
    tokens_per_rank: with tokens="own", as how many each rank's tokens count. Fewer are filled up,
        also none, and more are an error. It is the same on all ranks, and may be set between calls.
        With None all ranks give the same number.
    reduce_dtype: in which the ranks' sums are sent and added: None is x's dtype, so each of them is
        rounded to it; torch.float32 takes twice the bytes and rounds once, at the end.
    transport: how tokens and results travel; see RowParallel. By "peer" a token goes only to ranks
        that have one of its experts, and the experts' results come back one by one, so that the sum
        is that of one GPU with all experts, to the bit: reduce_dtype has no part in it. With
        tokens="same" the ranks' sums are added as RowParallel's are. Quantised tokens of an H that
        is no multiple of 256 go by "collective". With "auto" and tokens="own" so do calls of so
        many tokens that collectives, which send sums in place of products, are faster.
    group: of torch.distributed, None for all processes.
    input_quant, and what is not listed here: see NVFP4Experts. "token" wants tokens="same".

    Parameters are those of NVFP4Experts with the rank's experts alone. But the input scales are
    those of all experts, [E, 2] and [E]: a token is quantised once, with the largest of them.

    Raises ValueError for fewer experts than ranks. Raises it on all ranks where their calls differ
    in k, in the dtype of x, in options or, on a CPU, in the number of tokens; a GPU is asked for
    the first of each kind alone. Raises NotImplementedError where x, top_k_weights or a bias wants
    a gradient.
    """

    FOLLOWING = (*NVFP4Experts.FOLLOWING, "replicas")

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        *,
        tokens: Tokens = "own",
        tokens_per_rank: int | None = None,
        physical_to_logical: Sequence[int] | None = None,
        reduce_dtype: torch.dtype | None = None,
        transport: Transport = "auto",
        group: Group = None,
        input_quant: InputQuant = None,
        input_scale_inverse: bool = False,
        row_scales: bool = False,
        device: Any = None,
        **gating: Any,
    ) -> None:
        choice("tokens", tokens, ("own", "same"))
        if input_quant == "token" and tokens == "own":
            raise ValueError(
                "input_quant: 'token', expected tokens='same': its scales are not sent"
            )
        choice("reduce_dtype", reduce_dtype, REDUCE_DTYPES)
        choice("transport", transport, TRANSPORTS)
        rank, world = rank_and_world(group)
        name, logical = "num_experts", tuple(range(num_experts))
        if physical_to_logical is not None:
            name = "physical_to_logical"
            logical = replicas.checked(physical_to_logical, num_experts)
        if len(logical) < world:
            raise ValueError(f"{name}: {len(logical)}, expected one for each of {world} ranks")
        first, end = evenly(len(logical), rank, world)
        super().__init__(
            hidden_size,
            intermediate_size,
            end - first,
            input_quant=input_quant,
            input_scale_inverse=input_scale_inverse,
            row_scales=row_scales,
            device=device,
            **gating,
        )
        self.rank, self.world, self.group, self.agreed = rank, world, group, set()
        self.all_experts, self.first_expert = num_experts, first
        self.physical_experts = len(logical)
        self.tokens: Tokens = tokens
        self.tokens_per_rank, self.reduce_dtype = tokens_per_rank, reduce_dtype
        self.physical_to_logical = self.map_digest = self.turns = None
        if physical_to_logical is not None:
            self.physical_to_logical, self.map_digest = logical, replicas.digest(logical)
            whose = rank if tokens == "own" else None
            self.turns = replicas.turns(logical, num_experts, whose, world)
        self.register_buffer("replicas", self._replicas(device), persistent=False)
        self._set_input_scales(num_experts, device)
        cut = Cut(0, num_experts, replicas.runs(logical[first:end]))
        self.cuts = {name: cut for name in self._parameters if "_input_scale" not in name}
        self.transport: Transport = transport
        self.memory, self.why_collective = self._choose()

    def _choose(self) -> tuple[PeerMemory | None, str]:
        row = self.hidden_size // SF_VEC  # bytes of scale factors
        if self.tokens == "own" and self.input_quant is not None and row % ALIGNMENT:
            why = f"hidden_size is {self.hidden_size}, no multiple of {SF_VEC * ALIGNMENT}"
            if self.transport == "peer":
                raise ValueError(f"transport: 'peer', but {why}")
            return None, why
        return choose(self.transport, self.group)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {said(self.memory, self.why_collective)}"

    @property
    def options(self) -> dict[str, Any]:
        """How the layer was cut: keyword arguments of the class."""
        names = (
            "tokens", "tokens_per_rank", "physical_to_logical",
            "reduce_dtype", "transport", "group",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def _replicas(self, device: Any) -> Tensor | None:
        """int32 [E + 1, turns], see replicas.turns."""
        if self.turns is None:
            return None
        return torch.tensor(self.turns, dtype=torch.int32, device=device)

    def following(self) -> dict[str, Tensor]:
        table = self._replicas(self.down_proj.device)
        return super().following() | ({} if table is None else {"replicas": table})

    def unset(self, **options: Any) -> Self:
        """A slice of a layer of the same sizes, on the meta device: what a file's layer becomes."""
        own = self.options_of(self) | {"num_experts": self.all_experts}
        return type(self)(**own, device="meta", **options, **self.options)

    @classmethod
    def slice_of(cls, layer: nn.Module, **options: Any) -> Self:
        """The rank's slice of a whole layer: a copy, so that the layer's memory can go.

        layer: NVFP4Experts; or a stack of experts as transformers has it on the meta device, whose
            slice stays unset for load_checkpoint.
        options: those of the class that say how to cut.

        Raises ValueError for other modules, with the reason, and for a stack with values.
        """
        if type(layer) is not NVFP4Experts:
            reason = "is a rank's slice" if isinstance(layer, Slice) else cls.why_not(layer)
            if reason:
                raise ValueError(f"layer: {type(layer).__name__} {reason}")
            if not layer.down_proj.is_meta:
                raise ValueError("layer: experts with values, expected them quantised or on 'meta'")
            if type(layer).__name__ in SORTED:
                raise ValueError(f"layer: {type(layer).__name__} gets its tokens without ids")
            own = cls.options_of(layer)
            return cls(**own, device="meta", **options).train(layer.training)
        options |= {
            "input_quant": layer.input_quant,
            "input_scale_inverse": layer.inverse,
            "row_scales": layer.row_scales,
        }
        made = cls(**cls.options_of(layer), device="meta", **options)
        if not layer.down_proj.is_meta:
            for name, value in layer.named_parameters():
                own = made.own(name, value.data)
                setattr(made, name, nn.Parameter(own, requires_grad=False))
            made.finish()
        return made.train(layer.training)

    @classmethod
    def from_experts(
        cls,
        module: nn.Module,
        *,
        input_quant: InputQuant = None,
        recipe: Recipe = "amax",
        **options: Any,
    ) -> Self:
        """Quantises all experts, which the rank holds meanwhile, and keeps its own.

        input_quant, recipe: see NVFP4Experts.from_experts. options: see slice_of.
        """
        whole = NVFP4Experts.from_experts(module, input_quant=input_quant, recipe=recipe)
        return cls.slice_of(whole, **options)

    def forward(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """x [.., H] -> [.., H] of its dtype, the weighted sum over k experts of all ranks.

        x, top_k_weights: as those of NVFP4Experts.
        top_k_index: int [.., k], numbers among all experts, that int32 has. Others add nothing: -1
            in all of a token's selections makes it one of no meaning, whose x may be anything.
        """
        x = autocast(x)
        tokens = x.reshape(-1, self.hidden_size)
        ids = expert_ids(top_k_index, len(tokens))
        return self.combine(tokens, ids, top_k_weights.reshape(ids.shape)).reshape(x.shape)

    def combine(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        sorted_rows: Tensor | None = None,
        offsets: Tensor | None = None,
        row_of: Tensor | None = None,
        residual: Residual = None,
    ) -> Tensor:
        """forward of x [T, H]. With tokens="same" it uses the permutation, that of all experts."""
        refuse_gradients(
            x=x, top_k_weights=weights, gate_up_proj_bias=self.gate_up_proj_bias,
            up_proj_bias=self.up_proj_bias, down_proj_bias=self.down_proj_bias,
        )  # fmt: skip
        memory = of_call(self.memory, self.transport, x)
        beside = Beside(residual, x)
        if self.turns is not None:
            ids, sorted_rows = replicas.physical(ids, self.derived()["replicas"]), None
        if self.tokens == "own" and memory is not None and self._peers_are_faster(x, ids):
            return self._own_by_peers(memory, x, ids, weights, beside)
        if self.tokens == "own":
            summed = self._own(x, ids, weights, beside)
        else:
            if sorted_rows is None or offsets is None or row_of is None:
                permutation = self._by_expert(ids)
            else:
                permutation = self._of_rank(sorted_rows, offsets, row_of)
            partial = self._partial(self._operand(x), weights, permutation, x.dtype)
            self._agree(x, len(x), ids.shape[1])
            beside.start()
            if memory is None:
                summed = reduced(partial, self.group)
            else:
                rounded = x.dtype if residual is None else torch.float32
                summed = memory.all_reduce(partial, rounded)
        added = beside.result()
        return (summed if added is None else summed.float() + added).to(x.dtype)

    def _peers_are_faster(self, x: Tensor, ids: Tensor) -> bool:
        """By how many bytes leave a rank, where each of k experts may be anybody's: the same on all
        ranks. "peer" is always taken."""
        if self.transport == "peer":
            return True
        k, others = ids.shape[1], self.world - 1
        token = self._row_bytes(k, x.dtype)
        product, summed = (
            self.hidden_size * each.itemsize for each in (x.dtype, self.reduce_dtype or x.dtype)
        )
        reached = others * (1 - (1 - 1 / self.world) ** k)  # ranks that get a token
        more = reached * token + k * others / self.world * product - others * (token + summed)
        return self._room(len(x)) * more <= MORE_BYTES

    def _own_by_peers(
        self,
        memory: PeerMemory,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        beside: Beside,
    ) -> Tensor:
        room, experts = self._room(len(x)), self.physical_experts
        self._agree(x, room, ids.shape[1])
        a, sfa, _ = self._operand(x)
        a, sfa, local = memory.dispatch(a, sfa, ids, experts, room)
        beside.start()
        _, offsets, sorted_rows, row_of = nk.sort_by_expert(local, self.num_experts)
        products = self._own_products((a, sfa, None), x.dtype, sorted_rows, ids.shape[1], offsets)
        weights = weights if weights.dtype in WEIGHTS else weights.float()
        of_sum, added = (products, row_of, ids, weights), beside.result()
        if added is None or not wants_gradient(added):
            return memory.combine(*of_sum, added, experts, x.dtype)
        return (memory.combine(*of_sum, None, experts, torch.float32) + added).to(x.dtype)

    def _room(self, n: int) -> int:
        """As how many the rank's n tokens count."""
        room = n if self.tokens_per_rank is None else self.tokens_per_rank
        if n > room:
            raise ValueError(f"x: {n} tokens, expected at most tokens_per_rank = {room}")
        return room

    def _own(self, x: Tensor, ids: Tensor, weights: Tensor, beside: Beside) -> Tensor:
        sent = self._sent(x, ids, weights)
        self._agree(x, len(sent), ids.shape[1])
        everyones = gathered(sent, self.world, self.group)
        beside.start()
        a, sfa, ids, weights = self._columns(everyones, ids.shape[1], x.dtype)
        partial = self._partial((a, sfa, None), weights, self._by_expert(ids), x.dtype)
        return reduced_rows(partial, self.world, self.group)[: len(x)]

    def _agree(self, x: Tensor, tokens: int, k: int) -> None:
        agree(
            self.agreed, x, self.world, self.group, layer=f"ExpertParallel of {self.tokens} tokens",
            tokens=tokens, dtype=x.dtype, k=k, tokens_per_rank=self.tokens_per_rank,
            reduce_dtype=self.reduce_dtype, input_quant=self.input_quant,
            hidden_size=self.hidden_size, num_experts=self.all_experts, transport=self.transport,
            physical_to_logical=self.map_digest,
        )  # fmt: skip

    def _partial(
        self,
        tokens: Operand,
        weights: Tensor,
        permutation: tuple[Tensor, Tensor, Tensor],
        dtype: torch.dtype,
    ) -> Tensor:
        """The weighted sum over the rank's experts."""
        sorted_rows, offsets, row_of = permutation
        products = self._own_products(tokens, dtype, sorted_rows, weights.shape[1], offsets)
        return self._sum(products, weights, row_of, self.reduce_dtype or dtype)

    def _own_products(
        self, tokens: Operand, dtype: torch.dtype, sorted_rows: Tensor, k: int, offsets: Tensor
    ) -> Tensor:
        """Of rows of which others are other ranks': what is expected of the rank is its share."""
        share = -(-len(sorted_rows) * self.num_experts // self.physical_experts)
        return self._products_of(tokens, dtype, sorted_rows, k, offsets, expected_rows=share)

    def _by_expert(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(sorted rows, offsets, row_of) of the rank's own experts."""
        local = ids - self.first_expert
        _, offsets, sorted_rows, row_of = nk.sort_by_expert(local, self.num_experts)
        return sorted_rows, offsets, row_of

    def _of_rank(
        self, sorted_rows: Tensor, offsets: Tensor, row_of: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same, out of all experts' permutation: the rank's rows and offsets lie together."""
        offsets = offsets[self.first_expert : self.first_expert + self.num_experts + 1]
        here = (row_of >= offsets[0]) & (row_of < offsets[-1])
        return sorted_rows, offsets, row_of.where(here, -1)

    # ---------------------------------------------------------------------------------------------
    # What is sent: for each token a row of bytes
    # ---------------------------------------------------------------------------------------------

    def _sent(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Rows of bytes of the rank's tokens, filled up with ones that no expert computes."""
        n, k = ids.shape
        room = self._room(n)
        rows = torch.empty(room, self._row_bytes(k, x.dtype), dtype=torch.uint8, device=x.device)
        a, sfa, sent_ids, sent_weights = self._columns(rows, k, x.dtype)
        if sfa is None:
            a[:n].copy_(x)
        else:
            scale = self._input_scale("gate_up")
            quantize_input(x, self.input_quant, scale, self.inverse, out=(a[:n], sfa[:n]))
        sent_ids[:n].copy_(ids)
        sent_ids[n:].fill_(-1)
        sent_weights[:n].copy_(weights)
        return rows

    def _fields(self, k: int, dtype: torch.dtype) -> list[tuple[torch.dtype, int]]:
        """(dtype, elements) of a token's row: operand, [scale factors], ids, weights."""
        operand = [(dtype, self.hidden_size)]
        if self.input_quant is not None:
            operand = [(torch.uint8, self.hidden_size // 2), (E4M3, self.hidden_size // SF_VEC)]
        return [*operand, (torch.int32, k), (torch.float32, k)]

    def _row_bytes(self, k: int, dtype: torch.dtype) -> int:
        return sum(_aligned(n * kind.itemsize) for kind, n in self._fields(k, dtype))

    def _columns(
        self, rows: Tensor, k: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """(operand, scale factors, ids, weights), where they lie in rows of bytes."""
        found, start = [], 0
        for kind, n in self._fields(k, dtype):
            found.append(rows[:, start : start + n * kind.itemsize].view(kind))
            start += _aligned(n * kind.itemsize)
        a, *sfa, ids, weights = found
        return a, (sfa[0] if sfa else None), ids, weights


def _aligned(nbytes: int) -> int:
    """Kernels read what was sent where it lies."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
