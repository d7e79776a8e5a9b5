from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

import torch
from numpy.typing import NDArray

from .layout import NVFP4
from .types import Activation, Backend, Layout, Layouts, OutDtype, Scalar, Score, Tensor

# A result is of the kind of the first argument, or it is `out`. The type of a NumPy array says its
# dtype, which a result does not share.
_A = TypeVar("_A", Tensor, torch.Tensor, NDArray[Any])

__version__: str
_sources: str  # the hash of the C files that this was built of

class BackendError(RuntimeError):
    """What this machine or this build of nvfp4kern cannot do."""

def quantize(
    x: _A,
    *,
    up: Tensor | None = None,
    global_scale: Scalar | Literal["amax"] | None = None,
    scale_layout: Layout = "linear",
    offsets: Tensor | None = None,
    out: Sequence[_A | None] | None = None,
) -> NVFP4[_A]:
    """Quantise to NVFP4: x ~ code * scale * global_scale. Returns NVFP4(data, scales, global_scale).

    x: [M, K] or [L, M, K], float16, bfloat16 or float32, contiguous along K.
    up: of x's shape and dtype, also contiguous along K; silu(x) * up, in float32, then takes the place of x.
    global_scale: the decode multiplier. None is 1; a number above 0; a 1-element float32 tensor on x's device; or
        'amax': max|x| / 2688 over the finite x, computed on the device. The result holds 1.0, the argument itself,
        or the new 1-element tensor.
    scale_layout: 'linear': scales [L, M, K/16]. 'blocked': [L, M padded to 128, K/16 padded to 4], padding is 0.
    offsets: int32 [G+1] with 'blocked' and no L: expert g's rows offsets[g]..offsets[g+1] begin an atom of their
        own, as grouped_gemm wants them; scales then have M//128 + G atom rows.
    out: (data, scales), with 'amax' also (data, scales, global_scale); an item that is None is made.

    Block scale: e4m3(amax/6 / global_scale); codes: e2m1(x / (scale * global_scale)), to nearest even, saturating.
    The bytes are the same on every backend.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

def dequantize(
    q: tuple[_A, Tensor, Scalar | None],
    *,
    scale_layout: Layout = "linear",
    out: _A | None = None,
    out_dtype: OutDtype = "float16",
) -> _A:
    """code * scale * global_scale, rounded once. Returns [L, M, K].

    q: NVFP4 or any tuple (data [L, M, K/2], scales, global_scale); global_scale is a number, a 1-element float32
        tensor, or None for 1.
    scale_layout: 'linear' or 'blocked'.
    out: where to write, no byte of an input; without it a new tensor of the kind of the first argument.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name; an out given must agree.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

def to_blocked(scales: _A, *, out: _A | None = None) -> _A:
    """Scales from linear [L, rows, cols] to the 128x4-blocked layout; cols is K/16.

    Returns [L, rows padded to 128, cols padded to 4], a buffer of that many bytes whose padding is 0.
    out: that shape, or any buffer that 'blocked' scales may be.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

def from_blocked(buffer: _A, rows: int, cols: int, *, out: _A | None = None) -> _A:
    """Scales from the 128x4-blocked layout to linear [L, rows, cols]; cols is K/16.

    buffer: at least the padded size; [L, ...] for a batch, or the [32, 4, rest_m, 4, rest_k, L] view.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

def gemv(
    a: _A,
    b: Tensor,
    sfa: Tensor,
    sfb: Tensor | None = None,
    *,
    alpha: Scalar = 1.0,
    scale_layout: Layouts = "linear",
    out: _A | None = None,
    out_dtype: OutDtype = "float16",
) -> _A:
    """out[l, m] = alpha[m] * sum_k a[l, m, k] * b[l, k], accumulated in float32. Returns [L, M, 1].

    a: the matrix, NVFP4 [L, M, K/2] with scales sfa.
    b: the vector, NVFP4 [L, 1, K/2] with scales sfb; or float16 or bfloat16 [L, 1, K] with sfb=None.
    alpha: a number, or float32 with one element or [M].
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).
    out: where to write, no byte of an input; without it a new tensor of the kind of the first argument.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name; an out given must agree.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). fp4 codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble; scales are float8_e4m3fn or uint8, one per 16 elements along K, 'linear'
    [rows, K/16] or 'blocked' in 128x4 atoms. L is an optional leading batch, K a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

def gemm(
    a: _A,
    b: Tensor,
    sfa: Tensor | None,
    sfb: Tensor,
    *,
    alpha: Scalar = 1.0,
    bias: Tensor | None = None,
    scale_layout: Layouts = "linear",
    out: _A | None = None,
    out_dtype: OutDtype = "float16",
) -> _A:
    """out[l, m, n] = alpha[n] * sum_k a[l, m, k] * b[l, n, k] + bias[n], accumulated in float32. Returns [L, M, N].

    a: the tokens, NVFP4 [L, M, K/2] with scales sfa; or float16 or bfloat16 [L, M, K] with sfa=None.
    b: the weights, NVFP4 [L, N, K/2] with scales sfb.
    alpha: a number, or float32 with one element or [N].
    bias: float32, float16 or bfloat16 [N].
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).
    out: where to write, no byte of an input; without it a new tensor of the kind of the first argument.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name; an out given must agree.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). fp4 codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble; scales are float8_e4m3fn or uint8, one per 16 elements along K, 'linear'
    [rows, K/16] or 'blocked' in 128x4 atoms. L is an optional leading batch, K a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

def dual_gemm(
    a: _A,
    b1: Tensor,
    b2: Tensor,
    sfa: Tensor | None,
    sfb1: Tensor,
    sfb2: Tensor,
    *,
    alpha1: Scalar = 1.0,
    alpha2: Scalar = 1.0,
    activation: Activation = "silu",
    scale_layout: Layouts = "linear",
    out: _A | None = None,
    out_dtype: OutDtype = "float16",
) -> _A:
    """out = activation(alpha1 * a @ b1.T) * (alpha2 * a @ b2.T), all in float32 and rounded once. Returns [L, M, N].

    a: NVFP4 [L, M, K/2] with scales sfa. b1, b2: NVFP4 [L, N, K/2] with scales sfb1, sfb2.
    alpha1, alpha2: a number, or float32 with one element or [N].
    activation: 'silu', 'gelu', 'gelu_tanh', 'relu' or 'identity'.
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb1 and sfb2).
    out: where to write, no byte of an input; without it a new tensor of the kind of the first argument.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name; an out given must agree.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). fp4 codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble; scales are float8_e4m3fn or uint8, one per 16 elements along K, 'linear'
    [rows, K/16] or 'blocked' in 128x4 atoms. L is an optional leading batch, K a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

@overload
def grouped_gemm(
    a: Sequence[_A],
    b: Sequence[Tensor],
    sfa: Sequence[Tensor | None] | None = None,
    sfb: Sequence[Tensor | None] | None = None,
    *,
    offsets: None = None,
    alpha: float | Sequence[Scalar] | None = None,
    bias: Sequence[Tensor | None] | None = None,
    scale_layout: Layouts = "linear",
    out: list[_A] | None = None,
    out_dtype: OutDtype = "float16",
) -> list[_A]:
    """One gemm per group: out_g = alpha_g * a_g @ b_g.T + bias_g.

    List form, a is a list: every group has its own M, N and K. b, sfa, sfb, bias and out are lists too, alpha a
        number or a list of numbers and float32 tensors. Returns the list of outputs, out itself where given.
    Contiguous form, a is a tensor [sum M, K/2]: group g is rows offsets[g]..offsets[g+1] (int32 [G+1], on the
        device, never read back). b is [G, N, K/2], alpha a number or float32 with one element, [G] or [G, N], bias
        [G, N]. Blocked sfa begin every group at an atom of 128 rows. Returns [sum M, N]; rows of no group are kept.
    Operands: both NVFP4; NVFP4 b with float16 or bfloat16 a (sfa=None); or both of one 16-bit type (no scales), b
        then with K or N innermost.
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).
    out: where to write, no byte of an input; without it a new tensor of the kind of the first argument.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name; an out given must agree.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). fp4 codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble; scales are float8_e4m3fn or uint8, one per 16 elements along K, 'linear'
    [rows, K/16] or 'blocked' in 128x4 atoms. L is an optional leading batch, K a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

@overload
def grouped_gemm(
    a: Sequence[Tensor],
    b: Sequence[Tensor],
    sfa: Sequence[Tensor | None] | None = None,
    sfb: Sequence[Tensor | None] | None = None,
    *,
    offsets: None = None,
    alpha: float | Sequence[Scalar] | None = None,
    bias: Sequence[Tensor | None] | None = None,
    scale_layout: Layouts = "linear",
    out: tuple[_A, ...],
    out_dtype: OutDtype = "float16",
) -> tuple[_A, ...]: ...
@overload
def grouped_gemm(
    a: _A,
    b: Tensor,
    sfa: Tensor | None = None,
    sfb: Tensor | None = None,
    *,
    offsets: Tensor,
    alpha: Scalar | None = None,
    bias: Tensor | None = None,
    scale_layout: Layouts = "linear",
    out: _A | None = None,
    out_dtype: OutDtype = "float16",
) -> _A: ...
@overload
def route(
    x: _A,
    w: Tensor,
    k: int,
    *,
    score: Score = "topk_softmax",
    correction_bias: Tensor | None = None,
    n_group: int = 1,
    topk_group: int = 1,
    renormalize: bool | None = None,
    scaling_factor: float = 1.0,
    alpha: Scalar = 1.0,
    dense: bool = False,
    permutation: Literal[False] = False,
    out: Sequence[_A | None] | None = None,
    out_dtype: OutDtype = "float32",
) -> tuple[_A, _A]:
    """Mixture-of-experts routing: logits = alpha * x @ w.T, the k best experts of every row, and their weights.

    x: [M, K], w: [N, K], both float16 or both bfloat16.
    score: 'topk_softmax': softmax over the selected. 'softmax_topk': softmax over all N. 'sigmoid'.
    correction_bias: float32 [N] with 'sigmoid': added for the selection, not to the weights.
    n_group, topk_group: only experts of the topk_group best of n_group equal groups can be selected.
    renormalize: whether the selected weights sum to 1; None: what the score usually goes with (True but for
        'softmax_topk').
    scaling_factor: multiplies the weights. alpha: a number or float32 with one element or [N].
    dense: weights become [M, N] with zeros elsewhere.
    permutation: also return what brings rows together by expert.
    out: a tuple like the result; an item that is None is made. out_dtype: of the weights, as elsewhere.

    Returns (weights [M, k], ids int32 [M, k]), in selection order; with permutation also counts [N], offsets [N+1]
    and sorted_rows [M*k] (m*k + slot, sorted by expert), all int32. Equal logits go to the lower expert.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine); the message begins with the argument's name, and nothing has been written.
    """

@overload
def route(
    x: _A,
    w: Tensor,
    k: int,
    *,
    score: Score = "topk_softmax",
    correction_bias: Tensor | None = None,
    n_group: int = 1,
    topk_group: int = 1,
    renormalize: bool | None = None,
    scaling_factor: float = 1.0,
    alpha: Scalar = 1.0,
    dense: bool = False,
    permutation: Literal[True],
    out: Sequence[_A | None] | None = None,
    out_dtype: OutDtype = "float32",
) -> tuple[_A, _A, _A, _A, _A]: ...
def explain(op: str, /, *args: Any, **kwargs: Any) -> dict[str, str | int | bool]:
    """What a call of the operator `op` with these arguments would use; runs nothing and allocates no output.

    op: one of quantize dequantize to_blocked from_blocked gemv gemm dual_gemm grouped_gemm route.

    Returns a dict with backend, kernel, why, batch_invariant, workspace_bytes and what else applies of tile (its
    name, which NVFP4KERN_TILE can force), tile_m, tile_n, tile_k, grid, threads, stages, cluster, split (CTAs or
    warps that K of a tile is divided among) and steps_per_cta. Raises what the call would raise.

    >>> explain('gemm', a, b, sfa, sfb)['kernel']
    """

def backends() -> list[Backend]:
    """The backends of this build, in order of preference: dicts with name, devices, available, and why_not (None
    where available).
    """

def _tiles() -> list[str]:
    """What NVFP4KERN_TILE can name in this build: '<row>/<family>:<tile>' of every tile."""

def warmup(device: object = None) -> None:
    """Load everything that first calls would load.

    device: 'cpu', 'cuda' (cuda:0), 'cuda:1', an object whose str() is that, or None for every usable backend.
    """

def competition_gemv(data: tuple[Any, ...], /) -> torch.Tensor:
    """The custom_kernel of nvfp4kern.competition: takes the harness's tuple, returns c."""

def competition_gemm(data: tuple[Any, ...], /) -> torch.Tensor:
    """The custom_kernel of nvfp4kern.competition: takes the harness's tuple, returns c."""

def competition_dual_gemm(data: tuple[Any, ...], /) -> torch.Tensor:
    """The custom_kernel of nvfp4kern.competition: takes the harness's tuple, returns c."""

def competition_group_gemm(data: tuple[Any, ...], /) -> list[torch.Tensor]:
    """The custom_kernel of nvfp4kern.competition: takes the harness's tuple, returns c."""
