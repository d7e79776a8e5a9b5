"""What sm_90 added, on the simulated GPU: mbarriers, bulk copies, clusters, tiles; their checks."""

import numpy as np
import pytest
from ptxsim import gpu
from ptxsim.sm90 import (
    DATA,
    MULTICAST,
    OWN_PLACE,
    SEEDS,
    SHOW,
    TILE,
    ZEROS,
    fetch,
    launch,
    start,
    tensor_map,
    wait,
)

CAPABILITY = "9.0"


def found(body, *arrays, **options):
    gpu.clear()
    launch(body, *(arrays or (DATA, ZEROS)), **options)
    return gpu.findings()


# --- mbarrier ---

HANDOVER = (
    start(arrivals=64)
    + OWN_PLACE
    + """
    setp.ge.u32 %p1, %r0, 64;
    @%p1 bra $consumer;
    st.shared.u32 [%r11], %r0;
    mbarrier.arrive.release.cta.shared::cta.b64 _, [%r2];
    exit;
    $consumer:
"""
    + wait(0)
    + "ld.shared.u32 %r12, [%r11+-256]; st.global.u32 [%rd11], %r12;"
)


def test_producers_hand_over_to_consumers():
    for _, out in launch(HANDOVER, DATA, ZEROS, block=128):
        assert (out[64:128] == np.arange(64)).all()
    assert gpu.findings() == set()


def test_no_wait_is_a_race():
    assert found(HANDOVER.replace(wait(0), ""), block=128) == {"race"}


def test_a_relaxed_arrival_releases_nothing():
    assert found(HANDOVER.replace("release.cta", "relaxed.cta"), block=128) == {"race"}


def test_waiting_for_the_phase_before_does_not_wait():
    assert "race" in found(HANDOVER.replace(wait(0), wait(0, parity=1)), block=128)


def test_too_few_arrivals_are_a_deadlock_that_names_the_barrier():
    assert found(HANDOVER.replace("[%r2], 64", "[%r2], 65"), block=128) == {"deadlock"}
    (finding,) = gpu.report()["findings"]
    assert "phase 0: 1 of 65 arrivals" in finding["text"]


def test_too_many_arrivals_are_an_error():
    body = start() + "mbarrier.arrive.shared::cta.b64 _, [%r2], 2;"
    assert found(body, block=32) == {"over-arrival"}


def test_barriers_must_be_initialised_and_stay_so():
    body = start() + "mbarrier.arrive.shared::cta.b64 _, [%r3];"
    assert found(body.replace("@%p0 mbarrier.init.shared::cta.b64 [%r3], 1;", "")) == {"mbarrier"}
    body = start() + "st.shared.u32 [%r2], 0; mbarrier.arrive.shared::cta.b64 _, [%r2];"
    assert "mbarrier" in found(body, block=1)


def test_a_barrier_is_initialised_before_others_use_it():
    body = start(arrivals=32) + "mbarrier.arrive.shared::cta.b64 _, [%r2];"
    assert found(body) == set()
    assert "race" in found(body.replace("bar.sync 0;", ""))


def test_a_barrier_is_not_initialised_again_amid_a_phase():
    again = "@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;"
    body = start(arrivals=2) + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r2];" + again
    assert found(body) == {"mbarrier-reuse"}
    settled = start(arrivals=2) + "@%p0 mbarrier.inval.shared::cta.b64 [%r2];"
    assert found(settled + again) == set()


# --- Bulk copies ---


def test_a_bulk_copy_lands_before_its_barrier_completes():
    for _, out in launch(start() + OWN_PLACE + fetch() + wait(0) + SHOW, DATA, ZEROS, block=256):
        assert (out[:256] == DATA[:256]).all()
    assert gpu.findings() == set()
    assert gpu.report()["async_bytes"] == 1024 * len(SEEDS)


def test_what_is_read_too_early_is_poison_or_the_data_and_always_found():
    body = start() + OWN_PLACE + fetch() + SHOW + wait(0)
    results = launch(body, DATA, ZEROS, block=256)
    assert {int(out[0]) for _, out in results} == {1, 0x7F7F7F7F}
    assert gpu.findings() >= {"in-flight", "race"}


def test_wrong_transaction_counts():
    body = start() + OWN_PLACE + fetch(1040) + wait(0)
    assert found(body, block=32) == {"deadlock"}
    body = start() + OWN_PLACE + fetch(1008) + wait(0) + SHOW
    assert found(body, block=256) & {"deadlock", "in-flight", "race"}
    body = start() + "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 1048576;"
    assert found(body) == {"transaction-count"}


def test_a_barrier_wants_a_fence_before_a_copy_completes_it():
    body = start() + OWN_PLACE + fetch() + wait(0)
    assert found(body) == set()
    body = body.replace("@%p0 fence.mbarrier_init.release.cluster;", "")
    assert found(body) == {"proxy-fence"}


@pytest.mark.parametrize(
    "change, code",
    [
        (("[%rd0], 1024", "[%rd0+7184], 1024"), "out-of-bounds"),
        (("[%r1], [%rd0]", "[%r1+15616], [%rd0]"), "out-of-bounds"),
        (("[%rd0], 1024", "[%rd0+8], 1024"), "misaligned"),
        (("[%rd0], 1024", "[%rd0], 1016"), "misaligned"),
        (("[%r1], [%rd0]", "[%r1+8], [%rd0]"), "misaligned"),
    ],
)
def test_bulk_copies_keep_to_bounds_and_alignment(change, code):
    assert code in found(start() + OWN_PLACE + fetch().replace(*change) + wait(0))


STORE = (
    start()
    + OWN_PLACE
    + """
    add.s32 %r12, %r0, 7;
    st.shared.u32 [%r11], %r12;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @!%p0 bra $done;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 1024;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    $done:
    bar.sync 0;
    st.shared.u32 [%r11], 0;
"""
)


def test_a_bulk_store_reads_shared_memory_as_late_as_it_may():
    for _, out in launch(STORE, DATA, ZEROS, block=256):
        assert (out[:256] == np.arange(256) + 7).all()
    assert gpu.findings() == set()


def test_a_bulk_store_wants_fence_barrier_and_wait():
    assert found(STORE.replace("fence.proxy.async.shared::cta;", ""), block=256) == {"proxy-fence"}
    assert "race" in found(STORE.replace("bar.sync 0;\n    @!%p0", "@!%p0"), block=256)
    gpu.clear()
    late = launch(STORE.replace("cp.async.bulk.wait_group.read 0;", ""), DATA, ZEROS, block=256)
    assert "in-flight" in gpu.findings()
    assert any(out is None or (out[1][:256] == 0).any() for out in late)


# --- Clusters ---

PAIR = {"grid": 2, "cluster": 2}
RING = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tile;
    mov.u32 %r4, %cluster_ctarank;
    mov.u32 %r5, %cluster_nctarank;
    mad.lo.s32 %r6, %r4, 100, %r0;
    shl.b32 %r10, %r0, 2;
    add.s32 %r11, %r1, %r10;
    st.shared.u32 [%r11], %r6;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    add.s32 %r7, %r4, 1;
    rem.u32 %r7, %r7, %r5;
    mapa.shared::cluster.u32 %r8, %r11, %r7;
    ld.shared::cluster.u32 %r9, [%r8];
    mov.u32 %r12, %ctaid.x;
    mad.lo.s32 %r12, %r12, 32, %r0;
    mul.wide.u32 %rd10, %r12, 4;
    add.s64 %rd11, %rd1, %rd10;
    st.global.u32 [%rd11], %r9;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("size", (1, 2, 4))
def test_ctas_of_a_cluster_read_each_other(size):
    for _, out in launch(RING, DATA, ZEROS, grid=8, cluster=size):
        want = [(cta % size + 1) % size * 100 + t for cta in range(8) for t in range(32)]
        assert list(out[:256]) == want
    assert gpu.findings() == set()


def test_cluster_barriers_are_needed_before_and_behind():
    before = RING.replace(
        "barrier.cluster.arrive.release.aligned;\n    barrier.cluster.wait.acquire.aligned;", ""
    )
    assert "race" in found(before, **PAIR)
    behind = RING[: RING.index("barrier.cluster.arrive.relaxed")]
    assert "exited-cta" in found(behind, **PAIR)
    assert "race" in found(RING.replace("arrive.release", "arrive.relaxed"), **PAIR)
    twice = RING.replace("barrier.cluster.wait.acquire.aligned;", "barrier.cluster.arrive.aligned;")
    assert "cluster-barrier" in found(twice, **PAIR)


def test_a_peer_is_no_shared_memory_of_ones_own():
    assert "out-of-bounds" in found(RING.replace("ld.shared::cluster", "ld.shared"), **PAIR)
    assert "out-of-bounds" in found(RING.replace("%r11, %r7;", "%r11, 5;"), **PAIR)


def test_multicast_reaches_every_cta_of_the_mask():
    for _, out in launch(MULTICAST, DATA, ZEROS, **PAIR, block=256):
        assert (out[:256] == DATA[:256]).all() and (out[256:512] == DATA[:256]).all()
    assert gpu.findings() == set()


def test_multicast_wants_the_peers_barrier_to_be_there():
    unsynchronised = MULTICAST.replace("barrier.cluster.arrive;\n    barrier.cluster.wait;", "")
    assert found(unsynchronised, **PAIR, block=256) & {"mbarrier", "race"}


SEND = (
    start()
    + """
    mov.u32 %r4, %cluster_ctarank;
    xor.b32 %r5, %r4, 1;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
    + OWN_PLACE
    + """
    mapa.shared::cluster.u32 %r6, %r11, %r5;
    mapa.shared::cluster.u32 %r7, %r2, %r5;
    mad.lo.s32 %r8, %r4, 1000, %r0;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r6], %r8, [%r7];
"""
    + wait(0)
    + """
    ld.shared.u32 %r12, [%r11];
    mad.lo.s32 %r5, %r4, 128, 0;
    cvt.u64.u32 %rd10, %r5;
    add.s64 %rd11, %rd11, %rd10;
    st.global.u32 [%rd11], %r12;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
)


def test_st_async_brings_data_and_signals_where_mbarriers_are_ready():
    relaxed = SEND.replace("cluster.arrive;", "cluster.arrive.relaxed;", 1)
    for _, out in launch(SEND, DATA, ZEROS, **PAIR) + launch(relaxed, DATA, ZEROS, **PAIR):
        assert list(out[:64]) == [1000 + i for i in range(32)] + list(range(32))
    assert gpu.findings() == set()
    assert "race" in found(relaxed.replace("@%p0 fence.mbarrier_init", "//"), **PAIR)


# --- Tiles ---


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("x, y", [(0, 0), (16, 5), (-8, 38), (56, -3)])
def test_tiles_land_swizzled_and_filled(width, x, y):
    rows = 512 // width
    matrix = np.arange(1, 40 * 64 + 1, dtype=np.uint16)
    body = TILE.replace("XX", str(x)).replace("YY", str(y))
    results = launch(
        body, matrix, ZEROS, block=256, seeds=range(4),
        params={"map": lambda m: tensor_map(m, (rows, width), 2 * width)},
    )  # fmt: skip
    padded = np.zeros((200, 300), np.uint16)
    padded[80:120, 100:164] = matrix.reshape(40, 64)
    want = padded[80 + y : 80 + y + rows, 100 + x : 100 + x + width].reshape(-1)
    offsets = np.arange(1024)
    places = offsets ^ ((offsets >> 7 & width // 8 - 1) << 4)
    expected = want.view(np.uint8)[places]  # its own inverse
    for _, out in results:
        np.testing.assert_array_equal(out[:256].view(np.uint8), expected)
    assert gpu.findings() == set()


def test_a_tensor_map_must_be_one():
    bad = {"map": lambda m: bytes(128)}
    body = TILE.replace("XX", "0").replace("YY", "0")
    launch(body, DATA, ZEROS, block=256, params=bad)
    assert gpu.findings() == {"tensor-map"}
    with pytest.raises(gpu.SimError, match="cuTensorMapEncodeTiled"):
        tensor_map([gpu.Memory(ZEROS.astype(np.uint16))], (1, 300))
