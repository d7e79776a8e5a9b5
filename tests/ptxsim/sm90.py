"""PTX of small kernels with mbarriers, bulk copies and tiles: for the tests of the simulator."""

import numpy as np

from . import gpu

SEEDS = range(16)
SHARED = """
    .shared .align 1024 .b8 tile[8192];
    .shared .align 1024 .b8 other[8192];
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 empty;
"""
START = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tile;
    mov.u32 %r2, full;
    mov.u32 %r3, empty;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r2], {arrivals};
    @%p0 mbarrier.init.shared::cta.b64 [%r3], {empties};
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
WAIT = """
    $wait{n}:
    mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barrier}], {parity};
    @!%p9 bra $wait{n};
"""
OWN_PLACE = """
    shl.b32 %r10, %r0, 2;
    add.s32 %r11, %r1, %r10;
    cvt.u64.u32 %rd10, %r10;
    add.s64 %rd11, %rd1, %rd10;
"""  # of this thread: r11 in the tile, rd11 in the second array


def start(arrivals=1, empties=1):
    return START.format(arrivals=arrivals, empties=empties)


def wait(n, parity=0, barrier="%r2"):
    return WAIT.format(n=n, barrier=barrier, parity=parity)


def launch(body, *arrays, params=(), seeds=SEEDS, **options):
    """The arrays after every seed; an error ends a seed."""
    names = [f"p{i}" for i in range(len(arrays))]
    text = gpu.kernel(body, names, SHARED)
    for name in params:  # tensor maps, by value
        text = text.replace("f(", f"f(.param .align 64 .b8 {name}[128], ", 1)
    module, results = gpu.Module(text), []
    for seed in seeds:
        gpu.seed(seed)
        memory = [gpu.Memory(array) for array in arrays]
        try:
            values = [params[name](memory) for name in reversed(list(params))] if params else []
            module.launch("f", *values, *memory, **options)
            results.append([m.array.copy() for m in memory])
        except gpu.SimError:
            results.append(None)
    return results


DATA = np.arange(1, 2049, dtype=np.uint32)

ZEROS = np.zeros(2048, np.uint32)

FETCH = """
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {expected};
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r1], [%rd0], 1024, [%r2];
"""

SHOW = "ld.shared.u32 %r12, [%r11]; st.global.u32 [%rd11], %r12;"


def fetch(expected=1024):
    return FETCH.format(expected=expected)


MULTICAST = (
    start()
    + OWN_PLACE
    + """
    mov.u32 %r4, %cluster_ctarank;
    mov.u32 %r5, %ctaid.x;
    mad.lo.s32 %r5, %r5, 1024, 0;
    cvt.u64.u32 %rd10, %r5;
    add.s64 %rd11, %rd11, %rd10;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    setp.eq.u32 %p1, %r4, 0;
    and.pred %p1, %p1, %p0;
    mov.u16 %h1, 3;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r1], [%rd0], 1024, [%r2], %h1;
"""
    + wait(0)
    + SHOW
)


def tensor_map(memory, box, swizzle=16):
    """Of a matrix of uint16 in the first array."""
    return gpu.tensor_map(memory[0], (40, 64), box, swizzle)


TILE = (
    start()
    + OWN_PLACE
    + """
    mov.b64 %rd20, map;
    cvta.param.u64 %rd20, %rd20;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
    @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r1], [%rd20, {XX, YY}], [%r2];
"""
    + wait(0)
    + SHOW
)
