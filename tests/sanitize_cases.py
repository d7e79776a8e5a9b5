"""Every operator in every kernel that plans pick at small and odd shapes, for sanitize_gpu.sh.

    python tests/sanitize_cases.py gpus | run | ran | embedded | bug

`gpus` prints the environment of each GPU that a row is watched on, `run` is for a sanitizer to
watch, `ran` prints the kernels that it runs, `embedded` all that the extension has; `bug` reads
past the end of an allocation, which memcheck must see.
"""

import ctypes
import itertools
import math
import os
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from cuda_calls import OPERATORS, leaves, mapped
from rows import TABLE

import nvfp4kern

FATBIN = (0xBA55ED50).to_bytes(4, "little")  # how one begins
M = (1, 5, 12, 20, 30, 50, 64, 100, 130, 300)
N = (17, 33, 100, 190, 256, 260, 520, 1100)
K = (48, 144, 528, 1024, 1296, 2064)
MOST = 4e7  # M N K of a case
LONG = [(5, 17, 16384), (1, 17, 65536), (1, 128, 65536)]  # K shared by a cluster
FLOATS = {"halves": torch.float16, "bfloats": torch.bfloat16, "floats": torch.float32}
PLAIN = {f"plain {name}": FLOATS[name] for name in ("halves", "bfloats")}


# --- Where tensors come from ---


def blank(shape, dtype, top=0, *, buffer=[]):  # noqa: B006
    """A view of one buffer: plans look at no values."""
    if not buffer:
        buffer.append(torch.empty(2**28, dtype=torch.uint8, device="cuda"))
    size = torch.Size(shape).numel() * dtype.itemsize
    return buffer[0][:size].view(dtype).view(shape)


def random(shape, dtype, top=0):
    """An allocation of its own; int32: offsets up to `top`. Filled by a copy, not by a kernel."""
    if dtype == torch.int32:
        return torch.linspace(0, top, *shape).to(dtype).cuda()
    if dtype == torch.uint8:
        return torch.randint(0, 256, shape, dtype=dtype).cuda()
    return torch.randn(shape).to(dtype).cuda()


# --- The operators: (function, arguments, options) of tensors from `new` ---


def operand(new, kind, *shape):
    if kind in FLOATS | PLAIN:
        return new(shape, (FLOATS | PLAIN)[kind]), None
    *rows, k = shape
    return new((*rows, k // 2), torch.uint8), new((*rows, k // 16), torch.uint8)


def weights(new, kind, *shape):
    return operand(new, kind if kind in PLAIN else "codes", *shape)


def blocked(new, rows, k, *lead):
    """Scale factors in whole atoms, of which there may be several matrices."""
    return new((*lead, -(-rows // 128) * 128 * (-(-k // 64) * 4)), torch.uint8)


def gemv(kind, new, m, n, k):
    batch = min(m, 3)
    (a, sfa), (b, sfb) = operand(new, "codes", batch, n, k), operand(new, kind, batch, 1, k)
    return nvfp4kern.gemv, (a, b, sfa, sfb), {}


def gemm(kind, new, m, n, k):
    (a, sfa), (b, sfb) = operand(new, kind, m, k), weights(new, kind, n, k)
    return nvfp4kern.gemm, (a, b, sfa, sfb), {}


def blocked_gemm(kind, new, m, n, k):
    function, (a, b, sfa, _), _ = gemm(kind, new, m, n, k)
    sfa = None if sfa is None else blocked(new, m, k)
    return function, (a, b, sfa, blocked(new, n, k)), {"scale_layout": "blocked"}


def dual_gemm(kind, new, m, n, k):
    (a, sfa), *both = operand(new, kind, m, k), *(weights(new, kind, n, k) for _ in range(2))
    (b1, sfb1), (b2, sfb2) = both
    return nvfp4kern.dual_gemm, (a, b1, b2, sfa, sfb1, sfb2), {"alpha1": 2.0**-16}


def biased_dual(kind, new, m, n, k):
    function, args, options = dual_gemm(kind, new, m, n, k)
    biases = {f"bias{i}": new((n,), torch.float32) for i in (1, 2)}
    return function, args, options | biases | {"limit": 7.0}


def listed(kind, new, *sizes):
    a, sfa = zip(*(operand(new, kind, m, k) for m, _, k in sizes), strict=True)
    b, sfb = zip(*(weights(new, kind, n, k) for _, n, k in sizes), strict=True)
    scales = [list(sf) if sf[0] is not None else None for sf in (sfa, sfb)]
    return nvfp4kern.grouped_gemm, (list(a), list(b), *scales), {}


def group_list(kind, new, m, n, k):
    return listed(kind, new, (m, n, k), (3, n + 1, 32))


def one_launch(kind, new, m, n, k):
    """Groups so alike that CTAs walk over their tiles."""
    return listed(kind, new, *[(m, n, k)] * 6)


def contiguous(kind, new, m, n, k):
    (a, sfa), (b, sfb) = operand(new, kind, m, k), weights(new, kind, 3, n, k)
    return nvfp4kern.grouped_gemm, (a, b, sfa, sfb), {"offsets": new((4,), torch.int32, m)}


def along_n(kind, new, m, n, k):
    """16-bit weights that lie as [experts, K, N]."""
    args = new((m, k), FLOATS[kind]), new((3, k, n), FLOATS[kind]).transpose(1, 2)
    return nvfp4kern.grouped_gemm, args, {"offsets": new((4,), torch.int32, m)}


def blocked_by_expert(new, m, n, k):
    function, (a, b, _, sfb), options = contiguous("codes", new, m, n, k)
    sfa = new(((m // 128 + 3) * 128 * (-(-k // 64) * 4),), torch.uint8)
    return function, (a, b, sfa, sfb), options | {"scale_layout": ("blocked", "linear")}


def blocked_weights(kind, new, m, n, k):
    function, (a, b, sfa, _), options = contiguous(kind, new, m, n, k)
    args = a, b, sfa, blocked(new, n, k, 3)
    return function, args, options | {"scale_layout": ("linear", "blocked")}


def by_rows(kind, new, m, n, k):
    function, args, options = contiguous(kind, new, m, n, k)
    tokens = [t if t is None else t[: -(-m // 2)].contiguous() for t in (args[0], args[2])]
    rows = new((m,), torch.int32, m - 1)
    options |= {"rows": rows, "rows_per_token": 2}
    return function, (tokens[0], args[1], tokens[1], args[3]), options


def scaled_by_token(make, kind, new, m, n, k):
    """gemm, or experts, with a row_scale."""
    function, args, options = make(kind, new, m, n, k)
    return function, args, options | {"row_scale": new((len(args[0]),), torch.float32)}


def stacked(kind, new, m, n, k):
    (a, sfa), (b, sfb) = operand(new, kind, m, k), weights(new, kind, 3, 2 * n, k)
    options = {"offsets": new((4,), torch.int32, m), "alpha": 2.0**-16}
    return nvfp4kern.grouped_dual_gemm, (a, b, sfa, sfb), options


def as_gpt_oss_has_it(kind, new, m, n, k):
    function, args, options = stacked(kind, new, m, n, k)
    bias = new((3, 2 * n), torch.bfloat16)
    gate = {"activation": "swiglu_oai", "limit": 7.0, "gate_up": "interleaved"}
    return function, args, options | gate | {"bias": bias}


def encoding(kind, new, m, n, k):
    function, args, options = stacked(kind, new, m, -(-n // 16) * 16, k)
    return function, args, options | {"quantized": True, "data_dtype": "uint8"}


def encoding_one(kind, new, m, n, k):
    function, args, options = contiguous(kind, new, m, -(-n // 16) * 16, k)
    encoded = {"quantized": True, "data_dtype": "uint8", "activation": "relu2"}
    return function, args, options | encoded


def shifted(new, rows, k, dtype, shift):
    """[rows, K], aligned or not."""
    return new((rows, k + 16), dtype)[:, shift : shift + k]


def route(options, kind, shift, new, m, n, k):
    n = min(n, 1024)
    args = (shifted(new, rows, k, FLOATS[kind], shift) for rows in (m, n))
    return nvfp4kern.route, (*args, min(n, 6)), options


def select(new, m, n, k):
    n = min(n, 1024)
    return nvfp4kern.route, (None, None, min(n, 6)), {"logits": new((m, n), torch.float32)}


def sort_by_expert(new, m, n, k):
    return nvfp4kern.sort_by_expert, (new((m * k,), torch.int32, n).view(m, k), min(n, 1024)), {}


def combine(kind, shift, residual, new, m, n, k):
    top = min(n, 10)
    products = shifted(new, m, k, FLOATS[kind], shift)
    args = products, new((m * top,), torch.int32, m - 1), new((m, top), torch.float32)
    options = {"residual": new((m, k), torch.float32)} if residual else {}
    return nvfp4kern.combine, args, options


def quantize(options, kind, shift, gated, new, m, n, k):
    x, up = (shifted(new, m, k, FLOATS[kind], shift) for _ in range(2))
    return nvfp4kern.quantize, (x,), options | ({"up": up} if gated else {})


def quantize_by_expert(kind, new, m, n, k):
    options = {"scale_layout": "blocked", "offsets": new((4,), torch.int32, m)}
    return nvfp4kern.quantize, (new((m, k), FLOATS[kind]),), options


def dequantize(dtype, new, m, n, k):
    return nvfp4kern.dequantize, ((*operand(new, "codes", m, k), 0.5),), {"out_dtype": dtype}


def to_blocked(new, m, n, k):
    return nvfp4kern.to_blocked, (operand(new, "codes", m, k)[1],), {}


def from_blocked(new, m, n, k):
    buffer = new((-(-m // 128) * 128, -(-k // 64) * 4), torch.uint8)
    return nvfp4kern.from_blocked, (buffer, m, k // 16), {}


ROUTES = [
    {},
    {"score": "softmax_topk", "dense": True},
    {"score": "softmax_topk", "renormalize": True, "out_dtype": "bfloat16"},
    {"score": "sigmoid", "permutation": True, "return_row_of": True, "return_logits": True},
    {"score": "sqrt_softplus", "scaling_factor": 2.5},
]
SCALED = [{"global_scale": scale} for scale in (None, "amax")]
SHIFTS = (0, 1)
TOKENS = ("codes", "halves", "bfloats")
OF_NVFP4 = (gemv, gemm, blocked_gemm, dual_gemm, biased_dual)
OF_NVFP4 += (stacked, as_gpt_oss_has_it, encoding, encoding_one, blocked_weights)
OF_ANY = (group_list, contiguous, by_rows)
BUILDERS = [
    *(partial(make, kind) for make, kind in itertools.product(OF_NVFP4, TOKENS)),
    *(partial(make, kind) for make, kind in itertools.product(OF_ANY, (*TOKENS, *PLAIN))),
    *(partial(scaled_by_token, make, "codes") for make in (gemm, by_rows, stacked, encoding)),
    *(partial(one_launch, kind) for kind in ("codes", "bfloats")),
    *(partial(along_n, kind) for kind in ("halves", "bfloats")),
    blocked_by_expert,
    *(partial(route, *how) for how in itertools.product(ROUTES, FLOATS, SHIFTS)),
    select,
    sort_by_expert,
    *(partial(combine, *how) for how in itertools.product(FLOATS, SHIFTS, (False, True))),
    *(partial(quantize, *how) for how in itertools.product(SCALED, FLOATS, SHIFTS, (False, True))),
    *(partial(quantize_by_expert, kind) for kind in FLOATS),
    *(partial(dequantize, dtype) for dtype in ("float16", "bfloat16", "float32")),
    to_blocked,
    from_blocked,
]


def of_table(name, new, m, n, k):
    """The call of the package's table."""
    function, *given = OPERATORS[name](np.random.default_rng(0), m, n, k)
    return function, *mapped(lambda t: t.cuda(), given)


def without_memory(shape, dtype, top=0):
    return torch.empty(shape, dtype=dtype, device="meta")


BUILT = {build(without_memory, 5, 33, 48)[0] for build in BUILDERS}
OTHERS = [
    partial(of_table, name)
    for name, make in OPERATORS.items()
    if make(np.random.default_rng(0), 5, 33, 48)[0] not in BUILT
]
"""The operators that have no builder here."""

UNCHOSEN = [
    tile for tile in nvfp4kern._C._tiles() if tile.startswith(("sm90/gemm:", "sm90/kind_f16:"))
]
"""Tiles that no plan chooses by itself for shapes as small as these."""
AT_ONCE = 6
"""Of them, in one process: to begin one takes longer than most tiles' cases."""


def label(build):
    """A builder in words."""
    if not isinstance(build, partial):
        return build.__name__
    return " ".join(getattr(arg, "__name__", str(arg)) for arg in (build.func, *build.args))


def forced_tiles():
    """The tiles that this process forces in turn, or the plans' own choice."""
    for tile in os.environ.get("SANITIZED_TILES", "").split(","):
        os.environ["NVFP4KERN_TILE"] = tile
        yield tile


def cases(forced):
    """(builder, shape): the smallest for each builder, kernel, and whether there is workspace; or,
    of a GPU of few SMs, so much that its prologue has a kernel for many rows.

    Where a row is forced, its own kernels only, and not those of the rows that stand in for it;
    where a tile is, its own.
    """
    row = os.environ.get("NVFP4KERN_BACKEND", "")
    shapes = sorted(itertools.product(M, N, K), key=math.prod)
    shapes = [shape for shape in shapes if math.prod(shape) <= MOST] + LONG
    seen = set()
    for build, shape in itertools.product(BUILDERS + OTHERS, shapes):
        function, args, options = build(blank, *shape)
        try:
            plan = nvfp4kern.explain(function.__name__, *args, **options)
        except nvfp4kern.BackendError:
            if forced or build in OTHERS:
                continue  # it cannot serve the call
            raise
        sms = os.environ.get("NVFP4KERN_SM_LIMIT")  # see sm90_gemm_prologue_rows()
        many = sms is not None and plan["workspace_bytes"] > int(sms) << 16
        key = build, plan["kernel"], plan["workspace_bytes"] > 0, many, plan.get("cluster")
        if forced and forced.partition(":")[2] != plan.get("tile"):
            continue  # another family
        if key not in seen and row in ("", plan["backend"]):
            seen.add(key)
            yield build, shape


# --- Commands ---


def gpus():
    for name in (row["name"] for row in nvfp4kern.backends() if row["available"]):
        for limits in TABLE[name].limits if name in TABLE else ():
            settings = {"BACKEND": name} | limits
            print(*(f"NVFP4KERN_{key}={value}" for key, value in settings.items()))
    here = {row["name"] for row in nvfp4kern.backends() if row["available"]}
    if "sm90" in here:
        for i in range(0, len(UNCHOSEN), AT_ONCE):
            tiles = ",".join(UNCHOSEN[i : i + AT_ONCE])
            print(f"NVFP4KERN_BACKEND=sm90 SANITIZED_TILES={tiles}")


def run_case(build, shape):
    """Reading a result back shows initcheck what was not written; rows of nobody never are.

    route counts from whatever its workspace holds, so for it torch fills new memory.
    """
    function, args, options = build(random, *shape)
    torch.use_deterministic_algorithms(function is nvfp4kern.route)
    results = leaves((function(*args, **options),))
    torch.cuda.synchronize()
    for result in results:
        if "offsets" not in options:
            result.view(torch.uint8).cpu()


def run():
    torch.manual_seed(0)
    for tile in forced_tiles():
        for build, shape in list(cases(tile)):
            print(tile, label(build), shape, file=sys.stderr, flush=True)  # to name the culprit
            run_case(build, shape)


def ran():
    gpu = [torch.profiler.ProfilerActivity.CUDA]  # torch's own calls are a million
    with torch.profiler.profile(activities=gpu, acc_events=True) as profile:
        run()
    print(*sorted({e.key for e in profile.key_averages() if re.match(r"sm\d+_", e.key)}), sep="\n")


def embedded():
    """Asks the driver: the extension holds fatbins as they are. Kernels of rows that run here, but
    for those between GPUs, which sanitize_peers.py runs."""
    rows = tuple(f"{row['name']}_" for row in nvfp4kern.backends() if row["available"])
    code = Path(nvfp4kern._C.__file__).read_bytes()
    driver = ctypes.CDLL("libcuda.so.1")
    torch.cuda.synchronize()
    for fatbin in re.finditer(re.escape(FATBIN), code):
        library, count, name = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_char_p()
        image, nothing = code[fatbin.start() :], (None, None, 0)
        if driver.cuLibraryLoadData(ctypes.byref(library), image, *nothing, *nothing):
            continue  # nothing for this GPU
        driver.cuLibraryGetKernelCount(ctypes.byref(count), library)
        found = (ctypes.c_void_p * count.value)()
        driver.cuLibraryEnumerateKernels(found, count, library)
        for kernel in found:
            driver.cuKernelGetName(ctypes.byref(name), ctypes.c_void_p(kernel))
            if name.value.decode().startswith(rows) and b"_peer_" not in name.value:
                print(name.value.decode())


def bug():
    """A matrix whose memory is cut short after its shape is known."""
    function, args, options = gemv("halves", random, 1, 300, 2048)
    args[0].untyped_storage().resize_(1024)
    function(*args, **options)
    torch.cuda.synchronize()


if __name__ == "__main__":
    {f.__name__: f for f in (gpus, run, ran, embedded, bug)}[sys.argv[1]]()
