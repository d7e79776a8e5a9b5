# Written by build_tools/generate.py from operators.py; do not edit.
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

import torch
from numpy.typing import NDArray

from .layout import NVFP4
from .types import (
    Activation,
    ActivationAlone,
    Backend,
    CodesDtype,
    GateUp,
    Layout,
    Layouts,
    OutDtype,
    Scalar,
    ScaleRecipe,
    Score,
    Tensor,
)

# A result is of the kind of the first argument, or it is `out`. The type of a NumPy array says its
# dtype, which a result does not share.
_A = TypeVar("_A", Tensor, torch.Tensor, NDArray[Any])

__version__: str
_sources: str  # the hash of the files that this was built of

class BackendError(RuntimeError):
    """What this machine or this build of nvfp4kern cannot do."""

def quantize(
    x: _A, *, up: Tensor | None = None,
    global_scale: Scalar | Literal["amax", "token"] | None = None,
    global_scale_inverse: Scalar | None = None, smallest_scale: float = 0.0,
    recipe: ScaleRecipe = "amax", scale_layout: Layout = "linear", offsets: Tensor | None = None,
    out: Sequence[_A | None] | None = None, data_dtype: CodesDtype = None,
) -> NVFP4[_A]:
    """Quantise to NVFP4: x ~ code * scale factor * global scale. Returns NVFP4(data, scales, global_scale).

    x: [.., M, K] or one row [K], float16, bfloat16 or float32, contiguous along K.
    up: of x's shape and dtype, also contiguous along K; silu(x) * up, in float32, is then quantised instead of x.
    global_scale: what codes times scale factors are multiplied by. None is 1; a number above 0; a 1-element
        float32 tensor on x's device; or 'amax': max|x| / 2688 over the finite x, computed on the device; or 'token':
        that of each row by itself. The result has 1.0, the argument itself, or a new tensor: of one element, or
        [.., M], which products take as row_scale ([1] of one row). Careful: without one, blocks whose
        largest |x| is below about 0.006 (6 * 2^-10 = 0.00586) become zeros, because E4M3 has no scale factor so
        small. With one that is 6 * 2^-10 * global_scale, with 'amax' max|x| / 458752.
    global_scale_inverse: S, what elements are multiplied by, as it is: the divisor that compressed-tensors stores. A
        number above 0 or a 1-element float32 tensor on x's device. It goes with no word. The result then has the
        global_scale that is given beside it, which changes no byte, or 1 / S.
    smallest_scale: what scale factors below it become. 2**-9, the smallest of E4M3 and ModelOpt's, keeps what such
        blocks have above 2^-11 * global_scale; torchao's is 2**-6. A number from 2**-9 to 448, or 0 for none.
    recipe: how scale factors are chosen. 'amax': a block's largest magnitude becomes 6. 'four_six': it becomes 6 or 4,
        whichever leaves the smaller squared error (Cook et al., arXiv:2512.02010); with global_scale='amax' that is
        max|x| / 1536 then. 'four_six' takes no up and no global_scale_inverse.
    scale_layout: 'linear': scales [.., M, K/16]. 'blocked': [.., M padded to 128, K/16 padded to 4]; padding is 0.
    offsets: int32 [G+1], with 'blocked' and x [M, K]. Expert g has rows offsets[g]..offsets[g+1], whose scale
        factors begin an atom, as grouped_gemm expects. scales then have M//128 + G rows of atoms.
    out: (data, scales), with a word also (data, scales, global_scale). An item that is None is allocated.
    data_dtype: 'uint8' for codes as bytes, which torch can index, compare and convert; None is float4_e2m1fn_x2
        where the framework has it. With out it must be out's dtype.

    Scale factor of a block: e4m3(max(amax/6 / global_scale, smallest_scale)). Codes: e2m1(x / (scale factor *
    global_scale)). Both are rounded to nearest even and saturate.
    The bytes are the same on every backend.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

def dequantize(
    q: tuple[_A, Tensor, Scalar | None], *, scale_layout: Layout | None = None,
    out: _A | None = None, out_dtype: OutDtype = "float16",
) -> _A:
    """code * scale factor * global scale in float32, rounded to out_dtype. Returns [.., M, K].

    q: NVFP4 or any tuple (data [.., M, K/2], scales, global_scale); global_scale is a number, float32 with one element
        or one for each row, [.., M], or None for 1.
    scale_layout: 'linear' or 'blocked'. None is what q knows of its own, else 'linear'. What q knows must not differ.
    out: the tensor to write, which has no byte of an input. Without it the framework of the first argument
        allocates a new one.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name. With out it must be out's dtype.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

def to_blocked(scales: _A, *, out: _A | None = None) -> _A:
    """Scale factors from the linear layout, [L, rows, cols], to the blocked one; cols is K/16.

    Returns [L, rows padded to 128, cols padded to 4], a buffer of that many bytes whose padding is 0.
    out: a buffer of that shape, or any that operators take as 'blocked' scale factors.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

def from_blocked(buffer: _A, rows: int, cols: int, *, out: _A | None = None) -> _A:
    """Scale factors from the blocked layout to the linear one, [L, rows, cols]; cols is K/16.

    buffer: at least the padded size; [L, ...] for a batch, or the [32, 4, rest_m, 4, rest_k, L] view.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

def gemv(
    a: _A, b: Tensor, sfa: Tensor, sfb: Tensor | None = None, *, alpha: Scalar = 1.0,
    row_scale: Tensor | None = None, scale_layout: Layouts = "linear", out: _A | None = None,
    out_dtype: OutDtype = None,
) -> _A:
    """out[l, m] = alpha[m] * sum_k a[l, m, k] * b[l, k], accumulated in float32. Returns [L, M, 1].

    a: the matrix, NVFP4 [L, M, K/2] with scale factors sfa.
    b: the vector, NVFP4 [L, 1, K/2] with scale factors sfb; or float16 or bfloat16 [L, 1, K] with sfb=None.
    alpha: a number, or float32 with one element or [M].
    row_scale: float32 [1] or [L, 1], the vector's global scale, which multiplies the sums first.
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).
    out: the tensor to write, which has no byte of an input. Without it the framework of the first argument
        allocates a new one.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name. With out it must be out's dtype.
        None is the dtype of a 16-bit b, else float16.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). Codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble. Scale factors are float8_e4m3fn or uint8, one for 16 elements along K; their
    layout is 'linear', [rows, K/16], or 'blocked', in atoms of 128x4. L is an optional leading dimension, the
    batch; '..' are any dimensions or none. K is a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

def gemm(
    a: _A | tuple[_A, Tensor, Scalar | None], b: Tensor | tuple[Tensor, Tensor, Scalar | None],
    sfa: Tensor | None = None, sfb: Tensor | None = None, *, alpha: Scalar = 1.0,
    row_scale: Tensor | None = None, bias: Tensor | None = None,
    scale_layout: Layouts | None = None, out: _A | None = None, out_dtype: OutDtype = None,
) -> _A:
    """out[.., m, n] = alpha[n] * sum_k a[.., m, k] * b[n, k] + bias[n], accumulated in float32. Returns [.., M, N].

    a: the tokens, NVFP4 [.., M, K/2] with scale factors sfa; or float16 or bfloat16 [.., M, K] with sfa=None.
    b: the weights, NVFP4 with scale factors sfb: [N, K/2] for all of a, or [L, N, K/2] for an a [L, M, ..].
    a or b may be whole instead, an NVFP4 or any tuple (data, scales, global_scale). Its scales are then sfa or sfb, and
        alpha is multiplied by its global_scale: gemm(x, quantize(w, global_scale='amax')) is about x @ w.T. The
        global_scale of a that has one for each row, as of quantize(x, global_scale='token'), is row_scale instead.
    alpha: a number, or float32 with one element or [N].
    row_scale: float32 [.., M], which multiplies the sums of each row of a first.
    bias: float32, float16 or bfloat16 [N].
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb). None is what an operand that is whole knows of its own,
        else 'linear'. What it knows must not differ.
    out: the tensor to write, which has no byte of an input. Without it the framework of the first argument
        allocates a new one.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name. With out it must be out's dtype.
        None is the dtype of a 16-bit a, else float16.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). Codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble. Scale factors are float8_e4m3fn or uint8, one for 16 elements along K; their
    layout is 'linear', [rows, K/16], or 'blocked', in atoms of 128x4. L is an optional leading dimension, the
    batch; '..' are any dimensions or none. K is a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

def dual_gemm(
    a: _A, b1: Tensor, b2: Tensor, sfa: Tensor | None, sfb1: Tensor, sfb2: Tensor, *,
    alpha1: Scalar = 1.0, alpha2: Scalar = 1.0, row_scale: Tensor | None = None,
    bias1: Tensor | None = None, bias2: Tensor | None = None, activation: Activation = "silu",
    limit: float | None = None, activation_scale: float = 1.702, scale_layout: Layouts = "linear",
    out: _A | None = None, out_dtype: OutDtype = None,
) -> _A:
    """out = activation(alpha1 * a @ b1.T + bias1) * (alpha2 * a @ b2.T + bias2) in float32, rounded once. Returns
    [.., M, N].

    a: NVFP4 [.., M, K/2] with scale factors sfa; or float16 or bfloat16 [.., M, K] with sfa=None.
    b1, b2: NVFP4 with scale factors sfb1, sfb2: [N, K/2] for all of a, or [L, N, K/2] for an a [L, M, ..].
    alpha1, alpha2: a number, or float32 with one element or [N].
    row_scale: float32 [.., M], which multiplies both sums of each row of a first.
    bias1, bias2: None, or float16, bfloat16 or float32 [N].
    activation: 'silu', 'gelu', 'gelu_tanh', 'relu', 'relu2' (relu's square), 'identity' or 'swiglu_oai', with which
        it is gate * sigmoid(activation_scale * gate) * (up + 1).
    limit: a number above 0, with 'silu' and 'swiglu_oai': gates above it and ups beyond it, on both sides, become
        it before anything else.
    activation_scale: a number above 0, with 'swiglu_oai' alone.
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb1 and sfb2).
    out: the tensor to write, which has no byte of an input. Without it the framework of the first argument
        allocates a new one.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name. With out it must be out's dtype.
        None is the dtype of a 16-bit a, else float16.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). Codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble. Scale factors are float8_e4m3fn or uint8, one for 16 elements along K; their
    layout is 'linear', [rows, K/16], or 'blocked', in atoms of 128x4. L is an optional leading dimension, the
    batch; '..' are any dimensions or none. K is a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

@overload
def grouped_gemm(
    a: Sequence[_A], b: Sequence[Tensor], sfa: Sequence[Tensor | None] | None = None,
    sfb: Sequence[Tensor | None] | None = None, *, offsets: None = None, rows: None = None,
    rows_per_token: int = 1, expected_rows: None = None,
    alpha: float | Sequence[Scalar] | None = None, row_scale: Sequence[Tensor | None] | None = None,
    bias: Sequence[Tensor | None] | None = None, activation: ActivationAlone = "identity",
    scale_layout: Layouts = "linear", out: list[_A] | None = None,
    out_dtype: OutDtype | None = None, quantized: Literal[False] = False, global_scale: None = None,
    global_scale_inverse: None = None, data_dtype: None = None,
) -> list[_A]:
    """One gemm for each group or expert g: out_g = activation(alpha_g * a_g @ b_g.T + bias_g), rounded once.

    List form, a is a list: every group has its own M, N and K. b, sfa, sfb, row_scale, bias and out are lists too,
        alpha is a number or a list of numbers and float32 tensors. Returns the list of outputs, out itself where given.
    Contiguous form, a is a tensor [sum M, K/2]: expert g has rows offsets[g]..offsets[g+1]. offsets is int32 [G+1]
        on the device; the host does not read a GPU's. b is [G, N, K/2]. alpha is a number or float32 with one
        element, [G] or [G, N]; bias is [G, N]. The blocked sfa of each expert begin an atom. Returns [sum M, N];
        rows of no expert are not written.
    rows: int32 [P] on the device: a has M tokens, offsets are in 0..P, the result is [P, N], and its row p is made
        of token rows[p] // rows_per_token. So route's sorted_rows goes in as it is, with rows_per_token=k. Blocked
        sfa are then those of a as one matrix. A number that names no token is an error on the CPU and clamped on
        GPUs; rows of no expert may hold any.
    expected_rows: how many rows the offsets are expected to give to experts; None: all that they divide. For the choice
        of kernel and tile alone: any number of rows gives right results.
    row_scale: float32, one for each row of a, [sum M] or with rows [M], which multiplies the sums made of it first.
    Operands: both NVFP4; NVFP4 b with float16 or bfloat16 a (sfa=None); or both of one 16-bit type (no scale
        factors), b then with K or N innermost.
    activation: 'identity', 'silu', 'gelu', 'gelu_tanh', 'relu' or 'relu2' (relu's square), in float32. Of experts with
        gates see grouped_dual_gemm.
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).
    out: the tensor to write, which has no byte of an input. Without it the framework of the first argument
        allocates a new one.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name. With out it must be out's dtype.
        None is the dtype of a 16-bit a, else float16.
    quantized: the result of experts is quantized instead of rounded, for W4A4 products that follow. N is a multiple of
        16. Returns NVFP4(data [sum M, N/2], scales [sum M, N/16], global_scale), what quantize makes of the result in
        float32. out is then (data, scales), where an item that is None is allocated.
    global_scale, global_scale_inverse, data_dtype: with quantized, as in quantize, but not 'amax' or 'token'.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). Codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble. Scale factors are float8_e4m3fn or uint8, one for 16 elements along K; their
    layout is 'linear', [rows, K/16], or 'blocked', in atoms of 128x4. L is an optional leading dimension, the
    batch; '..' are any dimensions or none. K is a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

@overload
def grouped_gemm(
    a: Sequence[Tensor], b: Sequence[Tensor], sfa: Sequence[Tensor | None] | None = None,
    sfb: Sequence[Tensor | None] | None = None, *, offsets: None = None, rows: None = None,
    rows_per_token: int = 1, expected_rows: None = None,
    alpha: float | Sequence[Scalar] | None = None, row_scale: Sequence[Tensor | None] | None = None,
    bias: Sequence[Tensor | None] | None = None, activation: ActivationAlone = "identity",
    scale_layout: Layouts = "linear", out: tuple[_A, ...], out_dtype: OutDtype | None = None,
    quantized: Literal[False] = False, global_scale: None = None, global_scale_inverse: None = None,
    data_dtype: None = None,
) -> tuple[_A, ...]: ...
@overload
def grouped_gemm(
    a: _A, b: Tensor, sfa: Tensor | None = None, sfb: Tensor | None = None, *, offsets: Tensor,
    rows: Tensor | None = None, rows_per_token: int = 1, expected_rows: int | None = None,
    alpha: Scalar | None = None, row_scale: Tensor | None = None, bias: Tensor | None = None,
    activation: ActivationAlone = "identity", scale_layout: Layouts = "linear",
    out: _A | None = None, out_dtype: OutDtype | None = None, quantized: Literal[False] = False,
    global_scale: None = None, global_scale_inverse: None = None, data_dtype: None = None,
) -> _A: ...
@overload
def grouped_gemm(
    a: _A, b: Tensor, sfa: Tensor | None = None, sfb: Tensor | None = None, *, offsets: Tensor,
    rows: Tensor | None = None, rows_per_token: int = 1, expected_rows: int | None = None,
    alpha: Scalar | None = None, row_scale: Tensor | None = None, bias: Tensor | None = None,
    activation: ActivationAlone = "identity", scale_layout: Layouts = "linear",
    out: Sequence[_A | None] | None = None, out_dtype: None = None, quantized: Literal[True],
    global_scale: Scalar | None = None, global_scale_inverse: Scalar | None = None,
    data_dtype: CodesDtype = None,
) -> NVFP4[_A]: ...
@overload
def grouped_dual_gemm(
    a: _A, b: Tensor, sfa: Tensor | None, sfb: Tensor, offsets: Tensor, *,
    rows: Tensor | None = None, rows_per_token: int = 1, expected_rows: int | None = None,
    alpha: Scalar | None = None, row_scale: Tensor | None = None, bias: Tensor | None = None,
    gate_up: GateUp = "halves", activation: Activation = "silu", limit: float | None = None,
    activation_scale: float = 1.702, scale_layout: Layouts = "linear", out: _A | None = None,
    out_dtype: OutDtype | None = None, quantized: Literal[False] = False, global_scale: None = None,
    global_scale_inverse: None = None, data_dtype: None = None,
) -> _A:
    """dual_gemm of each expert's tokens: activation(alpha_gate * a_g @ gate_g.T + bias_gate) *
    (alpha_up * a_g @ up_g.T + bias_up) in float32, rounded once. Returns [sum M, N], with rows [P, N]; rows of no expert are not written.

    a: NVFP4 [sum M, K/2] with scale factors sfa; or float16 or bfloat16 [sum M, K] with sfa=None.
    b: NVFP4 [G, 2 N, K/2] with scale factors sfb: of each expert the N rows of gate, then the N rows of up. With
        gate_up='interleaved' a row of gate and one of up in turn, as gpt-oss has them, and linear sfb.
    offsets: int32 [G+1]: expert g has rows offsets[g]..offsets[g+1]. With blocked sfa each expert's begin an atom.
    rows, rows_per_token: as in grouped_gemm: int32 [P], row p is made of token rows[p] // rows_per_token.
    expected_rows: as in grouped_gemm.
    alpha: a number or float32 with one element, [G], [G, 2] (of gate, of up) or [G, 2 N], as b has its rows.
    row_scale: float32, one for each row of a, as in grouped_gemm.
    bias: None, or float16, bfloat16 or float32 [G, 2 N], as b has its rows: added before the activation.
    activation: 'silu', 'gelu', 'gelu_tanh', 'relu', 'relu2' (relu's square), 'identity' or 'swiglu_oai', with which
        it is gate * sigmoid(activation_scale * gate) * (up + 1).
    limit: a number above 0, with 'silu' and 'swiglu_oai': gates above it and ups beyond it, on both sides, become
        it before anything else.
    activation_scale: a number above 0, with 'swiglu_oai' alone.
    scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).
    out: the tensor to write, which has no byte of an input. Without it the framework of the first argument
        allocates a new one.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name. With out it must be out's dtype.
        None is the dtype of a 16-bit a, else float16.
    quantized: the result of experts is quantized instead of rounded, for W4A4 products that follow. N is a multiple of
        16. Returns NVFP4(data [sum M, N/2], scales [sum M, N/16], global_scale), what quantize makes of the result in
        float32. out is then (data, scales), where an item that is None is allocated.
    global_scale, global_scale_inverse, data_dtype: with quantized, as in quantize, but not 'amax' or 'token'.

    Tensors are DLPack objects (torch, NumPy, CuPy, ...). Codes are float4_e2m1fn_x2 or uint8, [.., K/2], the
    even element in the low nibble. Scale factors are float8_e4m3fn or uint8, one for 16 elements along K; their
    layout is 'linear', [rows, K/16], or 'blocked', in atoms of 128x4. L is an optional leading dimension, the
    batch; '..' are any dimensions or none. K is a multiple of 16.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

@overload
def grouped_dual_gemm(
    a: _A, b: Tensor, sfa: Tensor | None, sfb: Tensor, offsets: Tensor, *,
    rows: Tensor | None = None, rows_per_token: int = 1, expected_rows: int | None = None,
    alpha: Scalar | None = None, row_scale: Tensor | None = None, bias: Tensor | None = None,
    gate_up: GateUp = "halves", activation: Activation = "silu", limit: float | None = None,
    activation_scale: float = 1.702, scale_layout: Layouts = "linear",
    out: Sequence[_A | None] | None = None, out_dtype: None = None, quantized: Literal[True],
    global_scale: Scalar | None = None, global_scale_inverse: Scalar | None = None,
    data_dtype: CodesDtype = None,
) -> NVFP4[_A]: ...
@overload
def route(
    x: _A | None = None, w: Tensor | None = None, k: int | None = None, *, logits: _A | None = None,
    score: Score = "topk_softmax", correction_bias: Tensor | None = None, n_group: int = 1,
    topk_group: int = 1, renormalize: bool | None = None, scaling_factor: float = 1.0,
    per_expert_scale: Tensor | None = None, alpha: Scalar = 1.0, dense: bool = False,
    permutation: Literal[False] = False, expert_map: Tensor | None = None,
    num_local_experts: int | None = None, return_logits: Literal[False] = False,
    return_row_of: Literal[False] = False, out: Sequence[_A | None] | None = None,
    out_dtype: OutDtype = "float32",
) -> tuple[_A, _A]:
    """Select experts for each row: logits = alpha * x @ w.T, the k experts of largest logits, and their weights.

    x: [.., K], w: [N, K], each float16, bfloat16 or float32, multiplied in float32. M counts the rows of x. K is
        any number.
    k: how many experts each row selects, up to 32. Every call gives it.
    logits: [.., N], float16, bfloat16 or float32, in place of x and w: they are multiplied by alpha alone.
    score: 'topk_softmax': softmax over the selected. 'softmax_topk': softmax over all N. 'sigmoid' or
        'sqrt_softplus', sqrt(log(1 + exp(logit))): of each logit. 'logits': themselves.
    correction_bias: float32 [N], added to the scores by which experts are selected, not to weights. With
        'topk_softmax' these scores are the logits.
    n_group, topk_group: experts are in n_group expert groups of one size; those of the topk_group best can be
        selected.
    renormalize: whether the selected weights sum to 1. None: False with 'softmax_topk' and 'logits', else True.
    scaling_factor: multiplies the weights. per_expert_scale: float32 [N], multiplies those of each expert, last.
    alpha: a number or float32 with one element or [N].
    dense: weights become [.., N] with zeros elsewhere.
    permutation: also return counts, offsets and sorted_rows, which bring rows together by expert.
    expert_map: int32 [N] with permutation, the local index of each expert or -1. num_local_experts then takes the
        place of N in counts and offsets, and only rows of local experts are sorted. ids stay those of all N.
    return_logits: also return the logits that were selected from, float32 [.., N].
    return_row_of: with permutation also return row_of, which says where each selection is in sorted_rows.
    out: a tuple like the result. An item that is None is allocated.
    out_dtype: the weights' dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name.

    Returns (weights [.., k], ids int32 [.., k]), in selection order; with permutation also counts [N],
    offsets [N+1] and sorted_rows [M*k] (m*k + j for selection j of row m, sorted by expert; -1 behind the last),
    all int32; with return_row_of then row_of [M*k] (where sorted_rows has m*k + j, or -1); with return_logits last
    the logits. Of equal logits the lower expert's counts as the larger.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

@overload
def route(
    x: _A | None = None, w: Tensor | None = None, k: int | None = None, *, logits: _A | None = None,
    score: Score = "topk_softmax", correction_bias: Tensor | None = None, n_group: int = 1,
    topk_group: int = 1, renormalize: bool | None = None, scaling_factor: float = 1.0,
    per_expert_scale: Tensor | None = None, alpha: Scalar = 1.0, dense: bool = False,
    permutation: Literal[True], expert_map: Tensor | None = None,
    num_local_experts: int | None = None, return_logits: Literal[False] = False,
    return_row_of: Literal[False] = False, out: Sequence[_A | None] | None = None,
    out_dtype: OutDtype = "float32",
) -> tuple[_A, _A, _A, _A, _A]: ...
@overload
def route(
    x: _A | None = None, w: Tensor | None = None, k: int | None = None, *, logits: _A | None = None,
    score: Score = "topk_softmax", correction_bias: Tensor | None = None, n_group: int = 1,
    topk_group: int = 1, renormalize: bool | None = None, scaling_factor: float = 1.0,
    per_expert_scale: Tensor | None = None, alpha: Scalar = 1.0, dense: bool = False,
    permutation: Literal[False] = False, expert_map: Tensor | None = None,
    num_local_experts: int | None = None, return_logits: Literal[True],
    return_row_of: Literal[False] = False, out: Sequence[_A | None] | None = None,
    out_dtype: OutDtype = "float32",
) -> tuple[_A, _A, _A]: ...
@overload
def route(
    x: _A | None = None, w: Tensor | None = None, k: int | None = None, *, logits: _A | None = None,
    score: Score = "topk_softmax", correction_bias: Tensor | None = None, n_group: int = 1,
    topk_group: int = 1, renormalize: bool | None = None, scaling_factor: float = 1.0,
    per_expert_scale: Tensor | None = None, alpha: Scalar = 1.0, dense: bool = False,
    permutation: Literal[True], expert_map: Tensor | None = None,
    num_local_experts: int | None = None, return_logits: Literal[True],
    return_row_of: Literal[False] = False, out: Sequence[_A | None] | None = None,
    out_dtype: OutDtype = "float32",
) -> tuple[_A, _A, _A, _A, _A, _A]: ...
@overload
def route(
    x: _A | None = None, w: Tensor | None = None, k: int | None = None, *, logits: _A | None = None,
    score: Score = "topk_softmax", correction_bias: Tensor | None = None, n_group: int = 1,
    topk_group: int = 1, renormalize: bool | None = None, scaling_factor: float = 1.0,
    per_expert_scale: Tensor | None = None, alpha: Scalar = 1.0, dense: bool = False,
    permutation: Literal[True], expert_map: Tensor | None = None,
    num_local_experts: int | None = None, return_logits: bool = False, return_row_of: Literal[True],
    out: Sequence[_A | None] | None = None, out_dtype: OutDtype = "float32",
) -> tuple[_A, ...]: ...
def sort_by_expert(
    ids: _A, num_experts: int, *, expert_map: Tensor | None = None,
    num_local_experts: int | None = None, out: Sequence[_A | None] | None = None,
) -> tuple[_A, _A, _A, _A]:
    """The permutation that route returns, of ids that are there already.

    ids: int32 [.., k], which experts each row selects. A number that is no expert's belongs to nobody.
    num_experts: N, up to 1024.
    expert_map, num_local_experts: as in route.
    out: a tuple like the result. An item that is None is allocated.

    Returns (counts [N], offsets [N+1], sorted_rows [M*k], row_of [M*k]), all int32, as route has them. Selections
    of nobody are left out: row_of is -1 for them, and sorted_rows ends with as many -1.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

def combine(
    products: _A, row_of: Tensor, weights: Tensor, *, residual: Tensor | None = None,
    out: _A | None = None, out_dtype: OutDtype = None,
) -> _A:
    """The end of a mixture of experts, also called unpermute or finalize: each token's weighted sum of its rows.

    out[m] = sum_j weights[m, j] * products[row_of[m*k + j]] + residual[m] in float32, in the order of j, rounded
    once. Returns [.., H].

    products: [P, H], float16, bfloat16 or float32, contiguous along H: what the experts made of the rows that
        route's sorted_rows put together.
    row_of: int32 [M*k], as route returns it: which row each selection has. -1 adds nothing. A number that names no
        row is an error on the CPU and adds nothing on GPUs. Rows that nobody names may hold anything, even NaN.
    weights: [.., k], float16, bfloat16 or float32; k is any number, M counts the rows.
    residual: [.., H] of any of these dtypes, such as the result of shared experts.
    out: the tensor to write, which has no byte of an input. Without it the framework of the first argument
        allocates a new one.
    out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name. With out it must be out's dtype.
        None is the dtype of 16-bit products, else float16.
    The bytes are the same on every backend, and whatever other tokens there are.

    Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError
    (not on this machine). A message about an argument begins with its name. Nothing is written then.
    """

def explain(op: str, /, *args: Any, **kwargs: Any) -> dict[str, str | int | bool]:
    """What a call of the operator `op` with these arguments would use. Runs nothing and allocates no output.

    op: one of quantize dequantize to_blocked from_blocked gemv gemm dual_gemm grouped_gemm grouped_dual_gemm route sort_by_expert combine.

    Returns a dict with backend, kernel, why, batch_invariant and workspace_bytes. Where they apply it also has tile
    (its name, which NVFP4KERN_TILE can force), declined (why a more special backend has no kernel for the call),
    tile_m, tile_n, tile_k, grid, threads, stages, cluster, split (CTAs or warps that K of a tile is divided among),
    steps_per_cta and slices (that rows or batches are multiplied in, one after the other). Raises what the call would
    raise. On the CPU it reads offsets, rows and row_of, whose values calls check; it reads no other values.

    >>> explain('gemm', a, b, sfa, sfb)['kernel']
    """

def backends() -> list[Backend]:
    """The backends, the preferred one first: dicts with name, devices, available, why_not (None where available),
    code (what its kernels were compiled for) and needs (which driver they need, and which was found).
    """

def _tiles() -> dict[str, dict[str, Any]]:
    """What NVFP4KERN_TILE can name in this build, '<row>/<family>:<tile>' of every tile, and what is known of it.

    Every tile has row, family and tile. One of a GEMM has operators, of which it has kernels, and its numbers: tile_m,
    tile_n, tile_k, stages, cluster, split_k, warpgroups, ctas_per_mma, multicast. A router's has tile_m and tile_n. A
    number that its family has no use for is left out.
    """

def _peer_reduce(peers: Any, arena: Any, rank: int, partial: Any, out: Any, shots: int = 0) -> None:
    """out = the sum of all ranks' partial, in float32 in the order of the ranks, rounded once. All ranks call it
    alike. See nvfp4kern/distributed/peers.py, which makes peers and arena, and nk_peer_reduce_args in csrc/nk_peer.h.
    """

def _peer_dispatch(peers: Any, arena: Any, rank: int, tokens: Any, scales: Any, ids: Any, experts: int, out_tokens: Any, out_scales: Any, out_ids: Any, records: int = -1) -> None:
    """Send tokens to the ranks that have their experts. See nk_peer_dispatch_args in csrc/nk_peer.h."""

def _peer_combine(peers: Any, arena: Any, rank: int, products: Any, row_of: Any, ids: Any, weights: Any, residual: Any, experts: int, out: Any, records: int = -1) -> None:
    """Bring products back, and add them in the router's order. See nk_peer_combine_args in csrc/nk_peer.h."""

def warmup(device: object = None) -> None:
    """Load everything that first calls would load.

    device: 'cpu', 'cuda' (cuda:0), 'cuda:1', an object whose str() is one of these, or None for all devices.
    """

def competition_gemv(data: tuple[Any, ...]) -> torch.Tensor:
    """Write c and return it. data: (a, b, sfa, sfb, sfa_permuted, sfb_permuted, c)."""

def competition_gemm(data: tuple[Any, ...]) -> torch.Tensor:
    """Write c and return it. data: (a, b, sfa, sfb, sfa_permuted, sfb_permuted, c)."""

def competition_dual_gemm(data: tuple[Any, ...]) -> torch.Tensor:
    """Write c and return it.

    data: (a, b1, b2, sfa, sfb1, sfb2, sfa_permuted, sfb1_permuted, sfb2_permuted, c).
    """

def competition_group_gemm(data: tuple[Any, ...]) -> list[torch.Tensor]:
    """Write every c and return them as a list.

    data: (abc_tensors, sfasfb_tensors, sfasfb_reordered_tensors, problem_sizes), of each group one (a, b, c),
        (sfa, sfb), (sfa_permuted, sfb_permuted) and (m, n, k, 1).
    """
