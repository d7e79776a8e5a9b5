"""Fences of the asynchronous proxy: each covers the memory that it names, and no other."""

import numpy as np
import pytest
from ptxsim import gpu

CAPABILITY = "9.0"

SHARED = ".shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 full;"
START = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tile;
    mov.u32 %r2, full;
    shl.b32 %r3, %r0, 2;
    add.s32 %r3, %r1, %r3;
    mov.u32 %r4, %cluster_ctarank;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.and.u32 %p1, %r4, 0, %p0;
    setp.eq.u32 %p2, %r4, 1;
"""
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
WAIT = "$wait: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0; @!%p9 bra $wait;"
CTA, CLUSTER = "fence.proxy.async.shared::cta;", "fence.proxy.async.shared::cluster;"
WHOLE, GLOBAL = "fence.proxy.async;", "fence.proxy.async.global;"
INITS = "fence.mbarrier_init.release.cluster;"
ONE_WAY = "fence.proxy.async::generic.{}.sync_restrict::shared::{}.cluster;"
RELEASE, ACQUIRE = ONE_WAY.format("release", "cta"), ONE_WAY.format("acquire", "cluster")
OTHERS = (  # of other proxies, other memory, or of none
    "",
    GLOBAL,
    INITS,
    "fence.proxy.alias;",
    "fence.acq_rel.cluster;",
    "membar.gl;",
)


def found(body, cluster=1, grid=None):
    gpu.clear()
    module = gpu.Module(gpu.kernel(START + body, ["p"], SHARED))
    for seed in range(8):
        gpu.seed(seed)
        memory = gpu.Memory(np.arange(256, dtype=np.uint32))
        module.launch("f", memory, grid=grid or cluster, cluster=cluster)
    return gpu.findings()


def stored(who):
    """A bulk store of the tile by the threads of a predicate."""
    return f"""
        @{who} cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 128;
        @{who} cp.async.bulk.commit_group;
        @{who} cp.async.bulk.wait_group.read 0;
    """


@pytest.mark.parametrize("fence", (CTA, CLUSTER, WHOLE, RELEASE, ACQUIRE))
def test_a_fence_of_shared_memory_covers_what_was_stored_there(fence):
    assert found("st.shared.u32 [%r3], %r0;" + fence + "bar.sync 0;" + stored("%p0")) == set()
    assert found("st.shared.u32 [%r3], %r0; bar.sync 0;" + fence + stored("%p0")) == set()


@pytest.mark.parametrize("fence", OTHERS)
def test_no_other_fence_does(fence):
    body = "st.shared.u32 [%r3], %r0;" + fence + "bar.sync 0;" + stored("%p0")
    assert found(body) == {"proxy-fence"}


def test_a_fence_before_the_store_is_none():
    body = CTA + "st.shared.u32 [%r3], %r0; bar.sync 0;" + stored("%p0")
    assert found(body) == {"proxy-fence"}


INTO_PEER = """
    mapa.shared::cluster.u32 %r5, %r3, 0;
    @%p2 st.shared::cluster.u32 [%r5], %r0;
"""


@pytest.mark.parametrize("fence", (CTA, CLUSTER, WHOLE, RELEASE, ACQUIRE))
def test_memory_of_a_peer_is_not_that_of_the_own_cta(fence):
    """The writer fences, in the other CTA; or the reader does, whose own memory it is."""
    clean = set() if fence not in (CTA, RELEASE) else {"proxy-fence"}
    assert found(INTO_PEER + fence + MEET + stored("%p1") + MEET, 2) == clean
    assert found(INTO_PEER + MEET + fence + stored("%p1") + MEET, 2) == set()


def loaded(who):
    """A bulk load to the tile by the threads of a predicate, for which one of them waits."""
    return f"""
        @{who} mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
        @{who} cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r1], [%rd0], 128, [%r2];
    """


@pytest.mark.parametrize("fence", (INITS, CTA, WHOLE))
def test_an_mbarrier_is_covered_by_the_fence_for_it_too(fence):
    body = "@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;"
    assert found(body + "@%p0 " + fence + "bar.sync 0;" + loaded("%p0") + WAIT) == set()


@pytest.mark.parametrize("fence", (*OTHERS[:2], *OTHERS[3:]))
def test_an_mbarrier_is_covered_by_no_other(fence):
    body = "@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;" + fence + "bar.sync 0;"
    assert found(body + loaded("%p0") + WAIT) == {"proxy-fence"}


def test_the_fence_of_initialisation_is_that_of_who_initialised():
    body = "@%p0 mbarrier.init.shared::cta.b64 [%r2], 1; bar.sync 0; @!%p0 {} bar.sync 0;"
    load = "setp.eq.u32 %p4, %r0, 1;" + loaded("%p4") + WAIT
    assert found(body.format(INITS) + load) == {"proxy-fence"}
    assert found(body.format(CTA) + load) == set()


def test_the_fence_of_initialisation_carries_no_other_store():
    """By a relaxed arrival others learn of mbarriers, not of what was stored beside them."""
    body = f"""
        @%p0 mbarrier.init.shared::cta.b64 [%r2], 64;
        st.shared.u32 [%r3], %r0;
        {INITS}
        barrier.cluster.arrive.{{}}.aligned;
        barrier.cluster.wait.aligned;
        xor.b32 %r8, %r4, 1;
        mapa.shared::cluster.u32 %r5, %r2, %r8;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
        mapa.shared::cluster.u32 %r5, %r3, %r8;
        {{}}
        {MEET}
    """
    read = "ld.shared::cluster.u32 %r9, [%r5];"
    assert found(body.format("relaxed", ""), 2) == set()
    assert found(body.format("release", read), 2) == set()
    assert found(body.format("relaxed", read), 2) == {"race"}


@pytest.mark.parametrize(
    "form",
    (
        "async::generic.release.sync_restrict::shared::cluster.cluster",
        "async::generic.acquire.cluster",
        "tensormap::generic.release.gpu",
    ),
)
def test_proxy_fences_that_are_not_modelled_are_refused(form):
    with pytest.raises(gpu.SimError, match="unknown instruction"):
        gpu.Module(gpu.kernel(f"fence.proxy.{form};")).kernel("f")


# --- Global memory: ordinary stores, then an asynchronous load of the same bytes ---

BARRIER = "@%p0 mbarrier.init.shared::cta.b64 [%r2], 1; @%p0 " + INITS + "bar.sync 0;"
OWN_WORD = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;"
PUT = OWN_WORD + "st.global.u32 [%rd1], %r0;"
ADD = OWN_WORD + "red.global.add.u32 [%rd1], 1;"


@pytest.mark.parametrize("put", (PUT, ADD), ids=("st", "red"))
@pytest.mark.parametrize("fence", (GLOBAL, WHOLE))
def test_a_fence_of_global_memory_covers_what_was_stored_there(put, fence):
    assert found(BARRIER + put + fence + "bar.sync 0;" + loaded("%p0") + WAIT) == set()
    assert found(BARRIER + put + "bar.sync 0;" + fence + loaded("%p0") + WAIT) == set()


@pytest.mark.parametrize("put", (PUT, ADD), ids=("st", "red"))
@pytest.mark.parametrize("fence", ("", CTA, CLUSTER, "fence.acq_rel.gpu;", "fence.proxy.alias;"))
def test_no_other_fence_covers_global_memory(put, fence):
    body = BARRIER + put + fence + "bar.sync 0;" + loaded("%p0") + WAIT
    assert found(body) == {"proxy-fence"}


def test_a_fence_of_global_memory_before_the_store_is_none():
    body = BARRIER + GLOBAL + PUT + "bar.sync 0;" + loaded("%p0") + WAIT
    assert found(body) == {"proxy-fence"}


def test_other_bytes_and_asynchronous_stores_want_no_fence_of_global_memory():
    beside = PUT.replace("[%rd1]", "[%rd1+128]")
    assert found(BARRIER + beside + "bar.sync 0;" + loaded("%p0") + WAIT) == set()
    over = "st.shared.u32 [%r3], %r0;" + CTA + "bar.sync 0;" + stored("%p0").replace(".read", "")
    assert found(BARRIER + PUT + over + "bar.sync 0;" + loaded("%p0") + WAIT) == set()


FROM_ANOTHER = """
    mov.u32 %r10, %ctaid.x;
    setp.eq.u32 %p4, %r10, 0;
    @!%p4 bra $reader;
    {put}
    @%p0 st.release.gpu.global.u32 [%rd0+512], 1;
    exit;
    $reader:
    ld.acquire.gpu.global.u32 %r11, [%rd0+512];
    setp.ne.u32 %p5, %r11, 1;
    @%p5 bra $reader;
    {get}
"""


@pytest.mark.parametrize("group", (1, 2))
def test_stores_of_another_cta_want_a_fence_of_either(group):
    """Of another cluster's, or of a peer's by a flag in memory, which clocks do not know."""

    def codes(put, get):
        load = get + loaded("%p0") + WAIT
        return found(BARRIER + FROM_ANOTHER.format(put=put, get=load) + "exit;", group, grid=2)

    assert codes(PUT + "bar.sync 0;", "") == {"proxy-fence"}
    assert codes(PUT + GLOBAL + "bar.sync 0;", "") == set()
    assert codes(PUT + "bar.sync 0;", GLOBAL) == set()
    assert codes(GLOBAL + PUT + "bar.sync 0;", "") == {"proxy-fence"}


def test_tiles_want_the_fence_too():
    tile = """
        mov.b64 %rd2, map;
        cvta.param.u64 %rd2, %rd2;
        @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
        @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r1], [%rd2, {0, ROW}], [%r2];
    """

    def codes(fence, row):
        gpu.clear()
        body = BARRIER + PUT + fence + "bar.sync 0;" + tile.replace("ROW", str(row)) + WAIT
        text = gpu.kernel(START + body, ["p"], SHARED)
        text = text.replace("f(.param .u64 p)", "f(.param .u64 p, .param .align 64 .b8 map[128])")
        for seed in range(4):
            gpu.seed(seed)
            memory = gpu.Memory(np.arange(512, dtype=np.uint16))
            record = gpu.tensor_map(memory, (16, 32), (4, 32), 16)
            gpu.Module(text).launch("f", memory, record)
        return gpu.findings()

    assert codes("", 1) == {"proxy-fence"}
    assert codes("", 2) == set()  # the stores end with the second row
    assert codes(GLOBAL, 1) == set()
