/* The docstrings; inspect.signature() reads their first lines.
 * Written by build_tools/generate.py from operators.py; do not edit. */
#ifndef NK_PY_DOCS_H
#define NK_PY_DOCS_H

#define PY_DOC_TENSORS \
    "Tensors are DLPack objects (torch, NumPy, CuPy, ...). Codes are float4_e2m1fn_x2 or uint8, [.., K/2], the\n" \
    "even element in the low nibble. Scale factors are float8_e4m3fn or uint8, one for 16 elements along K; their\n" \
    "layout is 'linear', [rows, K/16], or 'blocked', in atoms of 128x4. L is an optional leading dimension, the\n" \
    "batch; '..' are any dimensions or none. K is a multiple of 16.\n"

#define PY_DOC_OUT \
    "out: the tensor to write, which has no byte of an input. Without it the framework of the first argument\n" \
    "    allocates a new one.\n" \
    "out_dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name. With out it must be out's dtype.\n"

#define PY_DOC_ERRORS \
    "Raises ValueError (shape, layout, option), TypeError (dtype, no tensor), BufferError (DLPack) or BackendError\n" \
    "(not on this machine). A message about an argument begins with its name. Nothing is written then.\n"

#define PY_DOC_DROP_IN(op) #op \
    "($module, data, /)\n" \
    "--\n\n" \
    "The custom_kernel of nvfp4kern.competition: takes the harness's tuple and returns its c.\n"

static const char py_doc_quantize[] =
    "quantize($module, /, x, *, up=None, global_scale=None, scale_layout='linear', offsets=None, out=None, "
    "data_dtype=None)\n"
    "--\n\n"
    "Quantise to NVFP4: x ~ code * scale factor * global scale. Returns NVFP4(data, scales, global_scale).\n\n"
    "x: [.., M, K] or one row [K], float16, bfloat16 or float32, contiguous along K.\n"
    "up: of x's shape and dtype, also contiguous along K; silu(x) * up, in float32, is then quantised instead of x.\n"
    "global_scale: what codes times scale factors are multiplied by. None is 1; a number above 0; a 1-element\n"
    "    float32 tensor on x's device; or 'amax': max|x| / 2688 over the finite x, computed on the device. The result\n"
    "    has 1.0, the argument itself, or the new 1-element tensor.\n"
    "scale_layout: 'linear': scales [.., M, K/16]. 'blocked': [.., M padded to 128, K/16 padded to 4]; padding is 0.\n"
    "offsets: int32 [G+1], with 'blocked' and x [M, K]. Expert g has rows offsets[g]..offsets[g+1], whose scale\n"
    "    factors begin an atom, as grouped_gemm expects. scales then have M//128 + G rows of atoms.\n"
    "out: (data, scales), with 'amax' also (data, scales, global_scale). An item that is None is allocated.\n"
    "data_dtype: 'uint8' for codes as bytes, which torch can index, compare and convert; None is float4_e2m1fn_x2\n"
    "    where the framework has it. With out it must be out's dtype.\n\n"
    "Scale factor of a block: e4m3(amax/6 / global_scale). Codes: e2m1(x / (scale factor * global_scale)). Both are\n"
    "rounded to nearest even and saturate.\n"
    "The bytes are the same on every backend.\n\n"
    PY_DOC_ERRORS;

static const char py_doc_dequantize[] =
    "dequantize($module, /, q, *, scale_layout='linear', out=None, out_dtype='float16')\n"
    "--\n\n"
    "code * scale factor * global scale in float32, rounded to out_dtype. Returns [.., M, K].\n\n"
    "q: NVFP4 or any tuple (data [.., M, K/2], scales, global_scale); global_scale is a number, a 1-element float32\n"
    "    tensor, or None for 1.\n"
    "scale_layout: 'linear' or 'blocked'.\n"
    PY_DOC_OUT
    "\n"
    PY_DOC_ERRORS;

static const char py_doc_to_blocked[] =
    "to_blocked($module, /, scales, *, out=None)\n"
    "--\n\n"
    "Scale factors from the linear layout, [L, rows, cols], to the blocked one; cols is K/16.\n\n"
    "Returns [L, rows padded to 128, cols padded to 4], a buffer of that many bytes whose padding is 0.\n"
    "out: a buffer of that shape, or any that operators take as 'blocked' scale factors.\n\n"
    PY_DOC_ERRORS;

static const char py_doc_from_blocked[] =
    "from_blocked($module, /, buffer, rows, cols, *, out=None)\n"
    "--\n\n"
    "Scale factors from the blocked layout to the linear one, [L, rows, cols]; cols is K/16.\n\n"
    "buffer: at least the padded size; [L, ...] for a batch, or the [32, 4, rest_m, 4, rest_k, L] view.\n\n"
    PY_DOC_ERRORS;

static const char py_doc_gemv[] =
    "gemv($module, /, a, b, sfa, sfb=None, *, alpha=1.0, scale_layout='linear', out=None, out_dtype='float16')\n"
    "--\n\n"
    "out[l, m] = alpha[m] * sum_k a[l, m, k] * b[l, k], accumulated in float32. Returns [L, M, 1].\n\n"
    "a: the matrix, NVFP4 [L, M, K/2] with scale factors sfa.\n"
    "b: the vector, NVFP4 [L, 1, K/2] with scale factors sfb; or float16 or bfloat16 [L, 1, K] with sfb=None.\n"
    "alpha: a number, or float32 with one element or [M].\n"
    "scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).\n"
    PY_DOC_OUT
    "\n"
    PY_DOC_TENSORS
    "\n"
    PY_DOC_ERRORS;

static const char py_doc_gemm[] =
    "gemm($module, /, a, b, sfa, sfb, *, alpha=1.0, bias=None, scale_layout='linear', out=None, out_dtype='float16')\n"
    "--\n\n"
    "out[.., m, n] = alpha[n] * sum_k a[.., m, k] * b[n, k] + bias[n], accumulated in float32. Returns [.., M, N].\n\n"
    "a: the tokens, NVFP4 [.., M, K/2] with scale factors sfa; or float16 or bfloat16 [.., M, K] with sfa=None.\n"
    "b: the weights, NVFP4 with scale factors sfb: [N, K/2] for all of a, or [L, N, K/2] for an a [L, M, ..].\n"
    "alpha: a number, or float32 with one element or [N].\n"
    "bias: float32, float16 or bfloat16 [N].\n"
    "scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).\n"
    PY_DOC_OUT
    "\n"
    PY_DOC_TENSORS
    "\n"
    PY_DOC_ERRORS;

static const char py_doc_dual_gemm[] =
    "dual_gemm($module, /, a, b1, b2, sfa, sfb1, sfb2, *, alpha1=1.0, alpha2=1.0, activation='silu', "
    "scale_layout='linear', out=None, out_dtype='float16')\n"
    "--\n\n"
    "out = activation(alpha1 * a @ b1.T) * (alpha2 * a @ b2.T) in float32, rounded once. Returns [.., M, N].\n\n"
    "a: NVFP4 [.., M, K/2] with scale factors sfa; or float16 or bfloat16 [.., M, K] with sfa=None.\n"
    "b1, b2: NVFP4 with scale factors sfb1, sfb2: [N, K/2] for all of a, or [L, N, K/2] for an a [L, M, ..].\n"
    "alpha1, alpha2: a number, or float32 with one element or [N].\n"
    "activation: 'silu', 'gelu', 'gelu_tanh', 'relu' or 'identity'.\n"
    "scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb1 and sfb2).\n"
    PY_DOC_OUT
    "\n"
    PY_DOC_TENSORS
    "\n"
    PY_DOC_ERRORS;

static const char py_doc_grouped_gemm[] =
    "grouped_gemm($module, /, a, b, sfa=None, sfb=None, *, offsets=None, rows=None, rows_per_token=1, alpha=None, "
    "bias=None, scale_layout='linear', out=None, out_dtype='float16')\n"
    "--\n\n"
    "One gemm for each group or expert g: out_g = alpha_g * a_g @ b_g.T + bias_g.\n\n"
    "List form, a is a list: every group has its own M, N and K. b, sfa, sfb, bias and out are lists too, alpha is a\n"
    "    number or a list of numbers and float32 tensors. Returns the list of outputs, out itself where given.\n"
    "Contiguous form, a is a tensor [sum M, K/2]: expert g has rows offsets[g]..offsets[g+1]. offsets is int32 [G+1]\n"
    "    on the device; the host does not read a GPU's. b is [G, N, K/2]. alpha is a number or float32 with one\n"
    "    element, [G] or [G, N]; bias is [G, N]. The blocked sfa of each expert begin an atom. Returns [sum M, N];\n"
    "    rows of no expert are not written.\n"
    "rows: int32 [P] on the device: a has M tokens, offsets are in 0..P, the result is [P, N], and its row p is made\n"
    "    of token rows[p] // rows_per_token. So route's sorted_rows goes in as it is, with rows_per_token=k. Blocked\n"
    "    sfa are then those of a as one matrix. A number that names no token is an error on the CPU and clamped on\n"
    "    GPUs; rows of no expert may hold any.\n"
    "Operands: both NVFP4; NVFP4 b with float16 or bfloat16 a (sfa=None); or both of one 16-bit type (no scale\n"
    "    factors), b then with K or N innermost.\n"
    "scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).\n"
    PY_DOC_OUT
    "\n"
    PY_DOC_TENSORS
    "\n"
    PY_DOC_ERRORS;

static const char py_doc_grouped_dual_gemm[] =
    "grouped_dual_gemm($module, /, a, b, sfa, sfb, offsets, *, rows=None, rows_per_token=1, alpha=None, "
    "activation='silu', scale_layout='linear', out=None, out_dtype=None, quantized=False, global_scale=None, "
    "data_dtype=None)\n"
    "--\n\n"
    "dual_gemm of each expert's tokens: activation(alpha_gate * a_g @ gate_g.T) * (alpha_up * a_g @ up_g.T) in\n"
    "float32, rounded once. Returns [sum M, N], with rows [P, N]; rows of no expert are not written.\n\n"
    "a: NVFP4 [sum M, K/2] with scale factors sfa; or float16 or bfloat16 [sum M, K] with sfa=None.\n"
    "b: NVFP4 [G, 2 N, K/2] with scale factors sfb: of each expert the N rows of gate, then the N rows of up.\n"
    "offsets: int32 [G+1]: expert g has rows offsets[g]..offsets[g+1]. With blocked sfa each expert's begin an atom.\n"
    "rows, rows_per_token: as in grouped_gemm: int32 [P], row p is made of token rows[p] // rows_per_token.\n"
    "alpha: a number or float32 with one element, [G], [G, 2] (of gate, of up) or [G, 2 N].\n"
    "activation: 'silu', 'gelu', 'gelu_tanh', 'relu' or 'identity'.\n"
    "scale_layout: 'linear', 'blocked', or a pair for (sfa, sfb).\n"
    PY_DOC_OUT
    "    Without both it is float16.\n"
    "quantized: the result is quantized instead of rounded, for W4A4 products that follow. With silu alone, and N a\n"
    "    multiple of 16. Returns NVFP4(data [sum M, N/2], scales [sum M, N/16], global_scale), what quantize makes of\n"
    "    the result in float32. out is then (data, scales), where an item that is None is allocated.\n"
    "global_scale, data_dtype: with quantized, as in quantize, but not 'amax'.\n\n"
    PY_DOC_TENSORS
    "\n"
    PY_DOC_ERRORS;

static const char py_doc_route[] =
    "route($module, /, x=None, w=None, k=None, *, logits=None, score='topk_softmax', correction_bias=None, n_group=1, "
    "topk_group=1, renormalize=None, scaling_factor=1.0, alpha=1.0, dense=False, permutation=False, expert_map=None, "
    "num_local_experts=None, return_logits=False, return_row_of=False, out=None, out_dtype='float32')\n"
    "--\n\n"
    "Select experts for each row: logits = alpha * x @ w.T, the k experts of largest logits, and their weights.\n\n"
    "x: [.., K], w: [N, K], each float16, bfloat16 or float32, multiplied in float32. M counts the rows of x. K is\n"
    "    any number.\n"
    "k: how many experts each row selects, up to 32. Every call gives it.\n"
    "logits: [.., N], float16, bfloat16 or float32, in place of x and w: they are multiplied by alpha alone.\n"
    "score: 'topk_softmax': softmax over the selected. 'softmax_topk': softmax over all N. 'sigmoid': of each logit.\n"
    "correction_bias: float32 [N] with 'sigmoid': added to the scores by which experts are selected, not to weights.\n"
    "n_group, topk_group: experts are in n_group expert groups of one size; those of the topk_group best can be\n"
    "    selected.\n"
    "renormalize: whether the selected weights sum to 1. None: False with 'softmax_topk', else True.\n"
    "scaling_factor: multiplies the weights. alpha: a number or float32 with one element or [N].\n"
    "dense: weights become [.., N] with zeros elsewhere.\n"
    "permutation: also return counts, offsets and sorted_rows, which bring rows together by expert.\n"
    "expert_map: int32 [N] with permutation, the local index of each expert or -1. num_local_experts then takes the\n"
    "    place of N in counts and offsets, and only rows of local experts are sorted. ids stay those of all N.\n"
    "return_logits: also return the logits that were selected from, float32 [.., N].\n"
    "return_row_of: with permutation also return row_of, which says where each selection is in sorted_rows.\n"
    "out: a tuple like the result. An item that is None is allocated.\n"
    "out_dtype: the weights' dtype: 'float16', 'bfloat16' or 'float32', or a dtype object of that name.\n\n"
    "Returns (weights [.., k], ids int32 [.., k]), in selection order; with permutation also counts [N],\n"
    "offsets [N+1] and sorted_rows [M*k] (m*k + j for selection j of row m, sorted by expert; -1 behind the last),\n"
    "all int32; with return_row_of then row_of [M*k] (where sorted_rows has m*k + j, or -1); with return_logits last\n"
    "the logits. Of equal logits the lower expert's counts as the larger.\n\n"
    PY_DOC_ERRORS;

static const char py_doc_sort_by_expert[] =
    "sort_by_expert($module, /, ids, num_experts, *, expert_map=None, num_local_experts=None, out=None)\n"
    "--\n\n"
    "The permutation that route returns, of ids that are there already.\n\n"
    "ids: int32 [.., k], which experts each row selects. A number that is no expert's belongs to nobody.\n"
    "num_experts: N, up to 1024.\n"
    "expert_map, num_local_experts: as in route.\n"
    "out: a tuple like the result. An item that is None is allocated.\n\n"
    "Returns (counts [N], offsets [N+1], sorted_rows [M*k], row_of [M*k]), all int32, as route has them. Selections\n"
    "of nobody are left out: row_of is -1 for them, and sorted_rows ends with as many -1.\n\n"
    PY_DOC_ERRORS;

static const char py_doc_combine[] =
    "combine($module, /, products, row_of, weights, *, residual=None, out=None, out_dtype='float16')\n"
    "--\n\n"
    "The end of a mixture of experts, also called unpermute or finalize: each token's weighted sum of its rows.\n\n"
    "out[m] = sum_j weights[m, j] * products[row_of[m*k + j]] + residual[m] in float32, in the order of j, rounded\n"
    "once. Returns [.., H].\n\n"
    "products: [P, H], float16, bfloat16 or float32, contiguous along H: what the experts made of the rows that\n"
    "    route's sorted_rows put together.\n"
    "row_of: int32 [M*k], as route returns it: which row each selection has. -1 adds nothing. A number that names no\n"
    "    row is an error on the CPU and adds nothing on GPUs. Rows that nobody names may hold anything, even NaN.\n"
    "weights: [.., k], float16, bfloat16 or float32; k is any number, M counts the rows.\n"
    "residual: [.., H] of any of these dtypes, such as the result of shared experts.\n"
    PY_DOC_OUT
    "The bytes are the same on every backend, and whatever other tokens there are.\n\n"
    PY_DOC_ERRORS;

static const char py_doc_explain[] =
    "explain($module, op, /, *args, **kwargs)\n"
    "--\n\n"
    "What a call of the operator `op` with these arguments would use. Runs nothing and allocates no output.\n\n"
    "op: one of quantize dequantize to_blocked from_blocked gemv gemm dual_gemm grouped_gemm grouped_dual_gemm route "
    "sort_by_expert combine.\n\n"
    "Returns a dict with backend, kernel, why, batch_invariant and workspace_bytes. Where they apply it also has tile\n"
    "(its name, which NVFP4KERN_TILE can force), declined (why a more special backend has no kernel for the call),\n"
    "tile_m, tile_n, tile_k, grid, threads, stages, cluster, split (CTAs or warps that K of a tile is divided among)\n"
    "and steps_per_cta. Raises what the call would raise. On the CPU it reads offsets, rows and row_of, whose values\n"
    "calls check; it reads no other values.\n\n"
    ">>> explain('gemm', a, b, sfa, sfb)['kernel']\n";

static const char py_doc_backends[] =
    "backends($module, /)\n"
    "--\n\n"
    "The backends, the preferred one first: dicts with name, devices, available, why_not (None where available),\n"
    "code (what its kernels were compiled for) and needs (which driver they need, and which was found).\n";

static const char py_doc__tiles[] =
    "_tiles($module, /)\n"
    "--\n\n"
    "What NVFP4KERN_TILE can name in this build, '<row>/<family>:<tile>' of every tile, and what is known of it.\n\n"
    "Every tile has row, family and tile. One of a GEMM has operators, of which it has kernels, and its numbers: "
    "tile_m,\n"
    "tile_n, tile_k, stages, cluster, split_k, warpgroups, ctas_per_mma, multicast. A router's has tile_m and tile_n. "
    "A\n"
    "number that its family has no use for is left out.\n";

static const char py_doc_warmup[] =
    "warmup($module, /, device=None)\n"
    "--\n\n"
    "Load everything that first calls would load.\n\n"
    "device: 'cpu', 'cuda' (cuda:0), 'cuda:1', an object whose str() is one of these, or None for all devices.\n";

#endif
