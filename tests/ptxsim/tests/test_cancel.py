"""Cluster launch control, and tiles for pairs of CTAs (.cta_group::2), on the simulated GPU."""

import numpy as np
import pytest
from ptxsim import gpu, sm100

CAPABILITY = "10.0"

SEEDS = range(12)


# --- Cluster launch control ---

SHARED = """
    .shared .align 16 .b8 answer[16];
    .shared .align 8 .b64 told;
    .reg .b128 %q<2>;
"""
ASK = """
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 16;
    {meet}
    @%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{all}.b128
        [%r10], [%r11];
"""
TAKE = """
    $wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r11], %r6;
    @!%p9 bra $wait;
    xor.b32 %r6, %r6, 1;
    ld.shared.b128 %q0, [%r10];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q0;
"""
NEXT = """
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r3, %r4, %r5, _}, %q0;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r4, %q0;
    mov.u32 %r7, %cluster_ctaid.x;
    add.s32 %r3, %r3, %r7;
"""
COUNT = """
    mov.u32 %r7, %nctaid.x;
    mad.lo.s32 %r8, %r4, %r7, %r3;
    mul.wide.u32 %rd1, %r8, 4;
    add.s64 %rd1, %rd0, %rd1;
    @%p0 red.global.add.u32 [%rd1], 1;
"""


def persistent(size):
    """Each CTA counts at the places of the CTAs whose work it does."""
    meet = sm100.CLUSTER_BARRIER if size > 1 else "bar.sync 0;"
    ask = ASK.format(meet=meet, all=".multicast::cluster::all" if size > 1 else "")
    return f"""
        mov.u32 %r0, %tid.x;
        mov.u32 %r1, %cluster_ctarank;
        setp.eq.u32 %p0, %r0, 0;
        setp.eq.and.u32 %p1, %r1, 0, %p0;
        mov.u32 %r10, answer;
        mov.u32 %r11, told;
        mov.u32 %r6, 0;
        mov.u32 %r3, %ctaid.x;
        mov.u32 %r4, %ctaid.y;
        @%p0 mbarrier.init.shared::cta.b64 [%r11], 1;
        @%p0 fence.mbarrier_init.release.cluster;
        $again:
        {ask}
        {COUNT}
        {TAKE}
        @!%p2 bra $done;
        {NEXT}
        {meet}
        bra $again;
        $done:
    """ + ("barrier.cluster.arrive; barrier.cluster.wait;" if size > 1 else "")


def run(body, size=1, grid=(8, 3), seeds=SEEDS):
    module = gpu.Module(gpu.kernel(body, ["p"], SHARED))
    counts = []
    for seed in seeds:
        gpu.seed(seed)
        memory = gpu.Memory(np.zeros(grid[0] * grid[1], np.uint32))
        try:
            module.launch("f", memory, grid=grid, cluster=size, block=64)
        except gpu.SimError:
            continue
        counts.append(memory.array.copy())
    return counts


@pytest.mark.parametrize("size", (1, 2, 4))
def test_every_cluster_is_done_once(size):
    for counts in run(persistent(size), size):
        assert (counts == 1).all()
    assert gpu.findings() == set()
    assert gpu.report()["ctas"] < 24 * len(SEEDS)  # some were taken over


def test_the_answer_comes_late():
    early = persistent(1).replace("@!%p9 bra $wait;", "")
    run(early)
    assert gpu.findings() & {"in-flight", "race", "cancel"}


def test_nobody_asks_after_the_last_answer():
    run(persistent(1).replace("@!%p2 bra $done;", "@!%p2 bra $again;"))
    assert "cancel" in gpu.findings()


def test_the_first_cta_is_known_only_of_a_cluster_that_was_taken():
    run(persistent(1).replace("@!%p2 bra $done;", ""))
    assert "cancel" in gpu.findings()


def test_another_ctas_memory_is_no_place_for_the_answer():
    wrong = "mapa.shared::cluster.u32 %r12, %r10, 1;"
    body = (
        persistent(2)
        .replace("$again:", wrong + "$again:")
        .replace("[%r10], [%r11];", "[%r12], [%r11];")
    )
    run(body, 2)
    assert "out-of-bounds" in gpu.findings()


# --- Tiles for pairs ---

TILES = """
    .shared .align 1024 .b8 tile[1024];
    .shared .align 8 .b64 full;
"""
LOAD = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r10, tile;
    mov.u32 %r11, full;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.and.u32 %p1, %r1, 0, %p0;
    mov.b64 %rd20, map;
    cvta.param.u64 %rd20, %rd20;
    @%p0 mbarrier.init.shared::cta.b64 [%r11], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    and.b32 %r12, %r11, 0xFEFFFFFF;
    and.b32 %r13, %r1, 1;
    setp.eq.and.u32 %p2, %r13, 0, %p0;
    @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 2048;
"""
OWN = """
    mul.lo.s32 %r14, %r1, 8;
    @%p0 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r10], [%rd20, {0, %r14}], [%r12];
"""
TILE_NAME = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
MULTICAST = f"""
    mov.u16 %h1, 15;
    @%p1 {TILE_NAME}.multicast::cluster.cta_group::2 [%r10], [%rd20, {{0, 8}}], [%r12], %h1;
"""
SHOW = """
    setp.ne.u32 %p3, %r13, 0;
    @%p3 bra $shared;
    $wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r11], 0;
    @!%p9 bra $wait;
    $shared:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    shl.b32 %r15, %r0, 2;
    add.s32 %r16, %r15, %r10;
    ld.shared.u32 %r17, [%r16];
    mad.lo.s32 %r15, %r1, 1024, %r15;
    cvt.u64.u32 %rd21, %r15;
    add.s64 %rd21, %rd1, %rd21;
    st.global.u32 [%rd21], %r17;
"""


def load_tiles(body, size, seeds=SEEDS):
    """What the CTAs find in their tiles, of a matrix of 64 uint16 a row, eight rows a tile."""
    text = gpu.kernel(body, ["p0", "p1"], TILES)
    module = gpu.Module(text.replace("f(", "f(.param .align 64 .b8 map[128], ", 1))
    matrix, results = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64), []
    for seed in seeds:
        gpu.seed(seed)
        memory = [gpu.Memory(matrix), gpu.Memory(np.zeros((size, 8, 64), np.uint16))]
        record = gpu.tensor_map(memory[0], (64, 64), (8, 64), 16)
        try:
            module.launch("f", record, *memory, grid=size, cluster=size, block=256)
        except gpu.SimError:
            continue
        results.append(memory[1].array.copy())
    return matrix.reshape(8, 8, 64), results


def test_tiles_signal_the_even_cta_of_a_pair():
    tiles, results = load_tiles(LOAD + OWN + SHOW, 4)
    for result in results:
        np.testing.assert_array_equal(result, tiles[:4])
    assert len(results) == len(SEEDS) and gpu.findings() == set()


def test_a_multicast_signals_the_even_cta_of_each_pair():
    tiles, results = load_tiles(LOAD + MULTICAST + SHOW, 4)
    for result in results:
        np.testing.assert_array_equal(result, tiles[[1, 1, 1, 1]])
    assert len(results) == len(SEEDS) and gpu.findings() == set()


def test_without_the_group_each_cta_is_signalled():
    load_tiles(LOAD + MULTICAST.replace(".cta_group::2", "") + SHOW, 4)
    assert gpu.findings() & {"deadlock", "transaction-count"}
    gpu.clear()
    load_tiles(LOAD + OWN.replace(".cta_group::2", "") + SHOW, 4)
    assert gpu.findings() == {"mbarrier"}
