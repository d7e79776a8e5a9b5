"""Memory of a group's GPUs that each of them reads and writes, and sums over it: NVLink or PCIe by
plain addresses, on torch.distributed._symmetric_memory."""

import itertools
import math
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _C
from .collectives import Group, rank_and_world
from .rendezvous import apart, describe_gpu, first, gpus_are_shared, shared_arenas, told, why_not

Transport: TypeAlias = Literal["auto", "peer", "collective"]
TRANSPORTS = ("auto", "peer", "collective")
FIXED_BYTES = 17 << 20
"""Of an arena: no less than its header and records take. The rest is for calls, in two halves."""
ARENA_BYTES = 64 << 20
"""To begin with."""
MOST_OF_A_SUM = 128 << 20
"""Bytes, for which an arena grows."""
SECONDS = 60.0
"""How long a kernel waits for another rank."""
ALIGNMENT = 16
"""Bytes, of all that kernels read."""
ELEMENTS = 8
"""Sums are of a multiple of so many."""


class PeerMemory:
    """One arena of each rank of a group, which the others write to. See csrc/cuda/peer_config.h.

    Calls of one group follow each other in one stream of each rank, in the same order on all ranks.
    A CUDA graph takes them. Two streams at once are not supported: a call counts on the one before
    it having ended.

    Where a rank does not come within `seconds`, kernels stop waiting. Their results are NaN, and so
    are those of all later ones; a graph that was captured before the memory grew gives up once it
    has to wait. check(), which every call does first, then raises with the rank's number. Replaying
    a graph calls no Python: call check() after it.
    """

    def __init__(
        self, rank: int, addresses: list[int], arena: Tensor, handle: Any = None, group: Any = None
    ) -> None:
        self.rank, self.world, self.device = rank, len(addresses), arena.device
        self._group = None if group is None else ref(group)
        self._failed = torch.zeros(1, dtype=torch.int32, pin_memory=arena.device.type == "cuda")
        self._seen = self._failed.numpy()
        self._seconds = SECONDS
        self._kept: list[Any] = []
        self._use(addresses, arena, handle)
        self._key = next(_KEYS)  # by which compiled code finds it
        _ALL[self._key] = self

    def _use(self, addresses: list[int], arena: Tensor, handle: Any) -> None:
        """Takes an arena. Graphs may still use those before it, so all are kept."""
        numbers = [*addresses, self._failed.data_ptr(), round(self._seconds * 1e9)]
        self._numbers = torch.tensor(numbers, dtype=torch.int64, device=arena.device)
        self.peers, self.arena = self._numbers.view(torch.int32).view(-1, 2), arena
        self._kept.append((self._numbers, arena, handle))  # torch's handle maps the others' memory

    def reserve(self, nbytes: int) -> None:
        """Sees to room for so many bytes of one call. All ranks ask alike.

        Where there is less, an arena with twice the room at least is made, which waits for the
        device and for the others. So all arenas, which stay, take at most twice the last one.
        Raises RuntimeError where a graph is captured then: such a call comes once before, eagerly.
        """
        room = (self.arena.numel() - FIXED_BYTES) // 2
        if nbytes <= room:
            return
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"peer memory has no room for a call of {nbytes} bytes while a graph is captured: "
                "call once eagerly before"
            )
        group = None if self._group is None else self._group()
        if group is None:
            said = f"peer memory has no room for a call of {nbytes} bytes"
            raise RuntimeError(f"{said}, and its process group is gone")
        size = FIXED_BYTES + 2 * -(-max(nbytes, 2 * room) // FIXED_BYTES) * FIXED_BYTES
        made = shared_arenas(group, self.rank, self.world, self.arena.device, size)
        if isinstance(made, str):
            raise RuntimeError(f"peer memory of {size} bytes: {made}")
        self._use(*made)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PeerMemory":
        return self  # as layers of one group share it

    def __reduce_ex__(self, protocol: Any) -> Any:
        what = "of this process and its group, and cannot be pickled or sent"
        raise TypeError(f"peer memory: is {what}; save the state_dict() of layers that use it")

    @property
    def seconds(self) -> float:
        """How long kernels wait for another rank, in replayed graphs, too."""
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        if not 0 < seconds < math.inf:
            raise ValueError(f"seconds: {seconds}, expected a positive number")
        self._seconds = seconds
        for numbers, *_ in self._kept:
            numbers[self.world + 1].fill_(round(seconds * 1e9))

    def check(self) -> None:
        """Raises RuntimeError where a rank has not come in time, as far as kernels have run."""
        if self._seen[0]:
            raise RuntimeError(
                f"rank {self._seen[0] - 1} of the group has not come within {self._seconds:g} s: "
                "results since then are NaN, and the process group must end"
            )

    def all_reduce(self, partial: Tensor, dtype: torch.dtype, *, shots: int = 0) -> Tensor:
        """The sum of all ranks' partial, added in float32 in the order of the ranks and rounded
        once to dtype: the same bits on all ranks. A new tensor.

        shots: 1, all send everything to all; 2, each adds up its share; 0, what is faster.
        """
        if torch.compiler.is_compiling():
            summed: Tensor = _all_reduce(partial, self._key, dtype, shots)
            return summed
        self.check()
        n = partial.numel()
        flat = _aligned(partial.reshape(-1))
        if n % ELEMENTS:
            flat = torch.nn.functional.pad(flat, (0, _padded(n) - n))
        out = torch.empty(_padded(n), dtype=dtype, device=partial.device)
        need = min(n * (partial.element_size() + out.element_size()) + 4096, MOST_OF_A_SUM)
        if not (partial.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.reserve(need)  # a sum that has no room goes in several
        if n:
            _C._peer_reduce(self.peers, self.arena, self.rank, flat, out, shots)
        return out[:n].view(partial.shape)

    def dispatch(
        self,
        a: Tensor,
        scales: Tensor | None,
        ids: Tensor,
        experts: int,
        room: int,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What experts of this rank get of all ranks' tokens: (a, scales, ids), a row for each of
        `room` tokens of each rank.

        a: [n, ..] and scales: [n, ..], what is sent of a token; rows of a multiple of 16 bytes.
        ids: int32 [n, k], of all experts. In the result they are numbers among the rank's own, or
            -1. A row where all are -1 holds anything.
        """
        if torch.compiler.is_compiling():
            got, sf, local = _dispatch(a, scales, ids, self._key, experts, self.world * room)
            return got, None if scales is None else sf, local
        self.check()
        parts = [a] if scales is None else [a, scales]
        rows = [_aligned(each.contiguous()).view(torch.uint8) for each in parts]
        ids_bytes = -(-4 * ids.shape[1] // ALIGNMENT) * ALIGNMENT
        self.reserve(self.world * room * (sum(each.shape[1] for each in rows) + ids_bytes))
        outs = [each.new_empty(self.world * room, each.shape[1]) for each in rows]
        local = ids.new_empty(self.world * room, ids.shape[1])
        none = [None] * (2 - len(rows))
        _C._peer_dispatch(
            self.peers, self.arena, self.rank, *rows, *none, ids.contiguous(), experts,
            *outs, *none, local,
        )  # fmt: skip
        got, *sf = (out.view(each.dtype) for out, each in zip(outs, parts, strict=True))
        return got, sf[0] if sf else None, local

    def combine(
        self,
        products: Tensor,
        row_of: Tensor,
        ids: Tensor,
        weights: Tensor,
        residual: Tensor | None,
        experts: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """[n, H], what nvfp4kern.combine gives on one GPU with all experts.

        products: [P, H] of this rank's experts. row_of: of the ids that dispatch gave.
        ids, weights, residual: of the rank's own tokens.
        """
        if torch.compiler.is_compiling():
            args = (products, row_of, ids, weights, residual, self._key, experts, dtype)
            summed: Tensor = _combine(*args)
            return summed
        self.check()
        room_and_k = row_of.numel() // self.world
        self.reserve(room_and_k * products.shape[1] * products.element_size())
        out = products.new_empty(len(ids), products.shape[1], dtype=dtype)
        _C._peer_combine(
            self.peers, self.arena, self.rank, products, row_of, ids.contiguous(),
            weights.contiguous(), None if residual is None else residual.contiguous(),
            experts, out,
        )  # fmt: skip
        return out


_KEYS = itertools.count()
_ALL: WeakValueDictionary[int, PeerMemory] = WeakValueDictionary()
_OF_GROUPS: WeakKeyDictionary[Any, dict[int, PeerMemory | str]] = WeakKeyDictionary()


def _aligned(whole: Tensor) -> Tensor:
    return whole.clone() if whole.data_ptr() % ALIGNMENT else whole


def _padded(n: int) -> int:
    return -(-n // ELEMENTS) * ELEMENTS


@torch.library.custom_op("nvfp4kern_distributed::all_reduce", mutates_args=())
def _all_reduce(partial: Tensor, memory: int, dtype: torch.dtype, shots: int) -> Tensor:
    """What compiled code calls."""
    return _ALL[memory].all_reduce(partial, dtype, shots=shots)


@_all_reduce.register_fake
def _(partial: Tensor, memory: int, dtype: torch.dtype, shots: int) -> Tensor:
    return torch.empty(partial.shape, dtype=dtype, device=partial.device)


@torch.library.custom_op("nvfp4kern_distributed::dispatch", mutates_args=())
def _dispatch(
    a: Tensor, scales: Tensor | None, ids: Tensor, memory: int, experts: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    shared = _ALL[memory]
    got, sf, local = shared.dispatch(a, scales, ids, experts, rows // shared.world)
    return got, a.new_empty(0) if sf is None else sf, local


@_dispatch.register_fake
def _(
    a: Tensor, scales: Tensor | None, ids: Tensor, memory: int, experts: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    sf = a.new_empty(0) if scales is None else scales.new_empty(rows, scales.shape[1])
    return a.new_empty(rows, a.shape[1]), sf, ids.new_empty(rows, ids.shape[1])


@torch.library.custom_op("nvfp4kern_distributed::combine", mutates_args=())
def _combine(
    products: Tensor,
    row_of: Tensor,
    ids: Tensor,
    weights: Tensor,
    residual: Tensor | None,
    memory: int,
    experts: int,
    dtype: torch.dtype,
) -> Tensor:
    args = products, row_of, ids, weights, residual, experts, dtype
    return _ALL[memory].combine(*args)


@_combine.register_fake
def _(
    products: Tensor,
    row_of: Tensor,
    ids: Tensor,
    weights: Tensor,
    residual: Tensor | None,
    memory: int,
    experts: int,
    dtype: torch.dtype,
) -> Tensor:
    return products.new_empty(ids.shape[0], products.shape[1], dtype=dtype)  # may be a symbol


# -------------------------------------------------------------------------------------------------
# Which groups have it
# -------------------------------------------------------------------------------------------------


def choose(transport: Transport, group: Group) -> tuple[PeerMemory | None, str]:
    """(the group's memory or None, why not). All ranks of the group call it alike.

    Raises RuntimeError where transport is "peer" and the group has none.
    """
    if transport == "collective":
        return None, "asked for"
    found = memory_of(group)
    if isinstance(found, PeerMemory):
        return found, ""
    if transport == "peer":
        raise RuntimeError(f"transport: 'peer', but {found}")
    return None, found


def of_call(memory: PeerMemory | None, transport: Transport, x: Tensor) -> PeerMemory | None:
    """What a call with x uses. With "auto" tensors of another device go by collectives, which the
    group may have for them."""
    if memory is not None and transport == "auto" and x.device != memory.device:
        return None
    return memory


def said(memory: PeerMemory | None, why_not: str) -> str:
    """For repr()."""
    return f"transport='collective' ({why_not})" if memory is None else "transport='peer'"


def memory_of(group: Group = None) -> PeerMemory | str:
    """The memory that the group's GPUs share, or why they share none. Of the current device, and
    made when first asked for: all ranks ask then."""
    if not dist.is_initialized():
        return "there is no process group"
    members = dist.group.WORLD if group is None else group
    # get_backend() says "undefined" where init_process_group() was left to choose.
    if "cuda:nccl" not in dist.get_backend_config(members) and not gpus_are_shared():
        return "the group's backend is not NCCL"
    index = torch.cuda.current_device()
    known = _OF_GROUPS.setdefault(members, {})
    if index not in known:
        known[index] = _make(members, torch.device("cuda", index))
    return known[index]


def _make(group: Any, device: torch.device) -> PeerMemory | str:
    """All ranks get memory, or all the same reason."""
    rank, world = rank_and_world(group)
    everyones = told((why_not(device, world), describe_gpu(device)), world, group)
    why = first([reason for reason, _ in everyones])
    if why:
        return why
    why = first(told(apart([gpu for _, gpu in everyones], rank), world, group))
    if why:
        return why
    made = shared_arenas(group, rank, world, device, ARENA_BYTES)
    return made if isinstance(made, str) else PeerMemory(rank, *made, group)
