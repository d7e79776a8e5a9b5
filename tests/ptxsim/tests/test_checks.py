"""Every check of the simulated GPU: a kernel where it must fire, and a twin where it must not."""

import numpy as np
import pytest
from ptxsim import gpu
from ptxsim.one_array import PLACE, SEEDS, SHARED, found

CAPABILITY = "9.0"


GENERIC = PLACE + "cvt.u64.u32 %rd6, %r1; cvta.shared.u64 %rd6, %rd6;"

# name: (code, a kernel that must fire, its twin, launch)
BOUNDS = {
    "load behind the end": (
        "out-of-bounds",
        PLACE + "ld.global.u32 %r3, [%rd5+900];",
        PLACE + "ld.global.u32 %r3, [%rd5+896];",
        {},
    ),
    "store before the beginning": (
        "out-of-bounds",
        PLACE + "st.global.u32 [%rd5+-4], %r0;",
        PLACE + "st.global.u32 [%rd5+0], %r0;",
        {},
    ),
    "vector across the end": (
        "out-of-bounds",
        "ld.global.v4.u32 {%r3,%r4,%r5,%r6}, [%rd0+1024];",
        "ld.global.v4.u32 {%r3,%r4,%r5,%r6}, [%rd0+1008];",
        {},
    ),
    "vector at no multiple of its size": (
        "misaligned",
        "ld.global.v4.u32 {%r3,%r4,%r5,%r6}, [%rd0+8];",
        "ld.global.v2.u32 {%r3,%r4}, [%rd0+8];",
        {},
    ),
    "shared store behind the end": (
        "out-of-bounds",
        PLACE + "st.shared.u32 [%r1+4000], %r0;",
        PLACE + "st.shared.u32 [%r1+3968], %r0;",
        {},
    ),
    "generic address of shared memory": (
        "out-of-bounds",
        GENERIC + "st.u32 [%rd6+4096], %r0;",
        GENERIC + "st.u32 [%rd6+3968], %r0;",
        {},
    ),
    "atomic behind the end": (
        "out-of-bounds",
        "atom.global.add.u32 %r3, [%rd0+1024], 1;",
        "atom.global.add.u32 %r3, [%rd0+1020], 1;",
        {},
    ),
    "trap": ("trap", "setp.eq.u32 %p0, 0, 0; @%p0 trap;", "setp.eq.u32 %p0, 0, 1; @%p0 trap;", {}),
}

EXCHANGE = PLACE + "st.shared.u32 [%r1], %r0; {} xor.b32 %r4, %r1, {}; ld.shared.u32 %r3, [%r4];"
REUSE = PLACE + (
    "st.shared.u32 [%r1], %r0; bar.sync 0; xor.b32 %r4, %r1, 128; ld.shared.u32 %r3, [%r4]; {} "
    "st.shared.u32 [%r1], %r3;"
)
NAMED = (
    PLACE
    + """
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra $consumer;
    st.shared.u32 [%r1], %r0;
    bar.arrive 1, 64;
    exit;
    $consumer:
    {}
    ld.shared.u32 %r3, [%r1+-128];
"""
)
WARP_WRITE = (
    PLACE
    + """
    setp.lt.u32 %p0, %r0, 32;
    @%p0 st.shared.u32 [%r2], %r0;
"""
)

RACES = {
    "another warp's store": (
        "race",
        EXCHANGE.format("", 128),
        EXCHANGE.format("bar.sync 0;", 128),
        {"block": 64},
    ),
    "another lane's store": (
        "race",
        EXCHANGE.format("", 4),
        EXCHANGE.format("bar.warp.sync -1;", 4),
        {},
    ),
    "a barrier of the warp does not reach another": (
        "race",
        EXCHANGE.format("bar.warp.sync -1;", 128),
        EXCHANGE.format("bar.sync 1, 64;", 128),
        {"block": 64},
    ),
    "a store over what others may still read": (
        "race",
        REUSE.format(""),
        REUSE.format("bar.sync 0;"),
        {"block": 64},
    ),
    "producer and consumer": (
        "race",
        NAMED.replace("st.shared.u32 [%r1], %r0;", "")
        .replace("exit;", "st.shared.u32 [%r1], %r0; exit;")
        .format("bar.sync 1, 64;"),
        NAMED.format("bar.sync 1, 64;"),
        {"block": 64},
    ),
    "lanes that store to one place": (
        "race",
        WARP_WRITE,
        WARP_WRITE.replace("setp.lt.u32 %p0, %r0, 32", "setp.lt.u32 %p0, %r0, 1"),
        {"block": 64},
    ),
    "atomics do not race with atomics": (
        "race",
        PLACE + "st.shared.u32 [%r2], 0; atom.shared.add.u32 %r3, [%r2], 1;",
        PLACE + "atom.shared.add.u32 %r3, [%r2], 1;",
        {"block": 64},
    ),
}

COPY = (
    PLACE
    + """
    shl.b32 %r5, %r0, 4;
    add.s32 %r5, %r5, %r2;
    mul.wide.u32 %rd6, %r0, 16;
    add.s64 %rd6, %rd0, %rd6;
    cp.async.cg.shared.global [%r5], [%rd6], 16;
    cp.async.commit_group;
"""
)

HINTED = COPY.replace(
    "cp.async", "createpolicy.fractional.L2::evict_first.b64 %rd7, 1.0; cp.async", 1
)
HINTED = HINTED.replace("global [%r5], [%rd6], 16", "global.L2::cache_hint [%r5], [%rd6], 16, %rd7")

COPIES = {
    "with a policy, no wait": (
        "in-flight",
        HINTED + "ld.shared.u32 %r3, [%r5];",
        HINTED + "cp.async.wait_group 0; ld.shared.u32 %r3, [%r5];",
        {},
    ),
    "with a policy, behind the end": (
        "out-of-bounds",
        HINTED.replace("[%rd6], 16,", "[%rd6+528], 16, 16,"),
        HINTED.replace("[%rd6], 16,", "[%rd6+528], 16, 0,"),
        {},
    ),
    "no wait": (
        "in-flight",
        COPY + "ld.shared.u32 %r3, [%r5];",
        COPY + "cp.async.wait_group 0; ld.shared.u32 %r3, [%r5];",
        {},
    ),
    "too many groups left": (
        "in-flight",
        COPY + "cp.async.wait_group 1; ld.shared.u32 %r3, [%r5];",
        COPY + "cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %r3, [%r5];",
        {},
    ),
    "not committed": (
        "in-flight",
        COPY.replace("cp.async.commit_group;", "")
        + "cp.async.wait_group 0; ld.shared.u32 %r3, [%r5];",
        COPY.replace("cp.async.commit_group;", "") + "cp.async.wait_all; ld.shared.u32 %r3, [%r5];",
        {},
    ),
    "waited for by another thread only": (
        "race",
        COPY + "cp.async.wait_group 0; xor.b32 %r6, %r5, 16; ld.shared.u32 %r3, [%r6];",
        COPY + "cp.async.wait_group 0; bar.sync 0; xor.b32 %r6, %r5, 16; ld.shared.u32 %r3, [%r6];",
        {},
    ),
    "into what others may still read": (
        "race",
        PLACE + "xor.b32 %r4, %r1, 128; ld.shared.u32 %r3, [%r4];" + COPY,
        PLACE + "xor.b32 %r4, %r1, 128; ld.shared.u32 %r3, [%r4]; bar.sync 0;" + COPY,
        {"block": 64},
    ),
    "source behind the end": (
        "out-of-bounds",
        COPY.replace("[%rd6], 16", "[%rd6+528], 16"),
        COPY.replace("[%rd6], 16", "[%rd6+512], 16"),
        {},
    ),
}

HALF = "setp.ge.u32 %p0, %r0, 32;"
BARRIERS = {
    "half of the threads never come": (
        "deadlock",
        PLACE + HALF + "@%p0 bra $wait; bar.sync 1, 64; $wait: bar.sync 0;",
        PLACE + HALF + "@%p0 bra $wait; bar.sync 1, 32; $wait: bar.sync 0;",
        {"block": 64},
    ),
    "two counts for one barrier": (
        "barrier-count",
        PLACE + HALF + "@%p0 bra $other; bar.sync 1, 64; exit; $other: bar.sync 1, 96;",
        PLACE + HALF + "@%p0 bra $other; bar.sync 1, 64; exit; $other: bar.sync 1, 64;",
        {"block": 64},
    ),
    "a count that is no multiple of a warp": (
        "barrier-count",
        "bar.sync 1, 33;",
        "bar.sync 1, 32;",
        {},
    ),
    "lanes of a warp come apart to an aligned barrier": (
        "diverged-aligned",
        PLACE + "setp.gt.u32 %p0, %r0, 7; @%p0 bra $b; bar.sync 0; exit; $b: bar.sync 0;",
        PLACE + "setp.gt.u32 %p0, %r0, 7; @%p0 bra $b; barrier.sync 0; exit; $b: barrier.sync 0;",
        {},
    ),
    "a lane that is not in its own mask": (
        "not-a-member",
        "redux.sync.add.u32 %r3, %r0, 0xffff;",
        PLACE + "setp.lt.u32 %p0, %r0, 16; @%p0 redux.sync.add.u32 %r3, %r0, 0xffff;",
        {},
    ),
    "members that never come": (
        "deadlock",
        PLACE + "setp.lt.u32 %p0, %r0, 16; @%p0 bra $in; bar.sync 0; exit; $in: bar.warp.sync -1;",
        PLACE + "setp.lt.u32 %p0, %r0, 16; @%p0 bra $in; exit; $in: bar.warp.sync -1;",
        {},
    ),
    "a shuffle from a lane that does not take part": (
        "inactive-lane",
        PLACE + "setp.lt.u32 %p0, %r0, 16; @%p0 shfl.sync.bfly.b32 %r3, %r0, 16, 31, 0xffff;",
        PLACE + "setp.lt.u32 %p0, %r0, 16; @%p0 shfl.sync.bfly.b32 %r3, %r0, 8, 31, 0xffff;",
        {},
    ),
    "a branch marked uniform": (
        "diverged-uniform",
        PLACE + "setp.lt.u32 %p0, %r0, 16; @%p0 bra.uni $a; $a:",
        PLACE + "setp.lt.u32 %p0, %r0, 32; @%p0 bra.uni $a; $a:",
        {},
    ),
    "spinning for what nobody does": (
        "livelock",
        "$spin: ld.volatile.global.u32 %r3, [%rd0+4]; setp.eq.u32 %p0, %r3, 1; @%p0 bra $spin;",
        PLACE
        + """
            mov.u32 %r4, %ctaid.x;
            setp.eq.u32 %p1, %r4, 2;
            @%p1 st.global.u32 [%rd0+4], 5;
            $spin: ld.volatile.global.u32 %r3, [%rd0+4]; setp.eq.u32 %p0, %r3, 1; @%p0 bra $spin;
        """,
        {"grid": 3},
    ),
}

SHARES = (
    PLACE
    + """
    setp.ge.u32 %p0, %r0, 128;
    @%p0 bra $more;
    setmaxnreg.dec.sync.aligned.u32 {};
    exit;
    $more:
    setmaxnreg.inc.sync.aligned.u32 136;
"""
)
REGISTERS = {  # of 512 threads: 128 each at launch
    "registers that nobody has given back": (
        "deadlock",
        SHARES.format(112),
        SHARES.format(104),
        {"block": 512},
    ),
    "an increase to fewer registers": (
        "setmaxnreg",
        "setmaxnreg.inc.sync.aligned.u32 120;",
        "setmaxnreg.dec.sync.aligned.u32 120;",
        {"block": 512},
    ),
}

SEND = (
    PLACE
    + """
    st.shared.u32 [%r1], %r0;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.eq.u32 %p0, %r0, 0;
    @!%p0 bra $on;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 128;
    cp.async.bulk.commit_group;
    {}
    $on:
    bar.sync 0;
    st.shared.u32 [%r1], 0;
"""
)
STORES = {  # whenever they land
    "written before a bulk store was waited for": (
        "in-flight",
        SEND.format(""),
        SEND.format("cp.async.bulk.wait_group.read 0;"),
        {},
    ),
    "written after a wait for other bulk stores": (
        "in-flight",
        SEND.format("cp.async.bulk.wait_group.read 1;"),
        SEND.format("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 1;"),
        {},
    ),
}

ALL = BOUNDS | RACES | COPIES | BARRIERS | REGISTERS | STORES


@pytest.mark.parametrize("name", ALL)
def test_it_fires(name):
    code, bad, _, launch = ALL[name]
    assert code in found(bad, **launch)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("seed", SEEDS)
def test_it_fires_whatever_the_seed(name, seed):
    code, bad, _, launch = STORES[name]
    assert code in found(bad, seeds=[seed], **launch)


@pytest.mark.parametrize("name", ALL)
def test_its_twin_is_clean(name):
    _, _, good, launch = ALL[name]
    assert found(good, **launch) == set()


# --- What reports say, and poison ---


def test_an_error_says_where():
    body = PLACE + "setp.eq.u32 %p0, %r0, 37;\n@%p0 st.global.u32 [%rd0+4096], %r0;"
    assert found(body, seeds=[3], grid=2, block=64) == {"out-of-bounds"}
    (finding,) = gpu.report()["findings"]
    lines = gpu.kernel(body, ["p"], SHARED).split("\n")
    assert "st.global.u32 [%rd0+4096]" in lines[finding["line"] - 1]
    assert (finding["kernel"], finding["warp"], finding["lane"]) == ("f", 1, 5)
    assert (finding["seed"], finding["launch"], finding["severity"]) == (3, 0, "E")
    assert finding["text"].startswith("writes 4 bytes") and "3072 bytes behind" in finding["text"]


def test_a_source_line_is_that_of_loc():
    text = gpu.kernel(
        ".loc 1 42 7, function_name $L1, inlined_at 2 9 1\nld.global.u32 %r1, [%rd0+4096];"
    )
    text += '.file 1 "/somewhere/inner.cuh"\n.file 2 "/somewhere/outer.cu"\n'
    with pytest.raises(gpu.SimError, match=r"inner.cuh:42, inlined at outer.cu:9"):
        gpu.Module(text).launch("f", gpu.Memory(np.zeros(4)))


def test_a_deadlock_shows_who_waits_for_what():
    body = PLACE + HALF + "@%p0 bra $wait; bar.sync 1, 64; $wait: bar.sync 0;"
    found(body, seeds=[0], block=64)
    (finding,) = gpu.report()["findings"]
    assert "warp 0 lanes ffffffff" in finding["text"] and "barrier 1, 32 of 64" in finding["text"]
    assert "warp 1 lanes ffffffff" in finding["text"] and "barrier 0, 32 of 64" in finding["text"]


def test_unwritten_shared_memory_is_poison_and_noted():
    body = PLACE + "ld.shared.u32 %r3, [%r1]; st.global.u32 [%rd5], %r3;"
    assert found(body, seeds=[0], severities="N") == {"uninitialised"}
    assert found(body, seeds=[0]) == set()
    module, memory = (
        gpu.Module(gpu.kernel(body, ["p"], SHARED)),
        gpu.Memory(np.zeros(32, np.uint32)),
    )
    module.launch("f", memory)
    assert (memory.array == 0x7F7F7F7F).all()


def test_a_copy_lands_late_or_early_but_never_before_its_wait_for_certain():
    """What a thread reads before it has waited is poison or the data, as the seed wills."""
    body = COPY + "ld.shared.u32 %r3, [%r5]; cp.async.wait_all; st.global.u32 [%rd5], %r3;"
    module, seen = gpu.Module(gpu.kernel(body, ["p"], SHARED)), set()
    for seed in range(6):
        gpu.seed(seed)
        memory = gpu.Memory(np.arange(256, dtype=np.uint32))
        module.launch("f", memory)
        seen |= {int(x == 0x7F7F7F7F) for x in memory.array[:32]}
    assert seen == {0, 1}


def test_launches_are_checked():
    module = gpu.Module(gpu.kernel("", ["p"]))
    memory = gpu.Memory(np.zeros(4))
    for launch, why in [
        ({"block": 1025}, "1024 threads"),
        ({"grid": (1, 65536)}, "too large a grid"),
        ({"shared_bytes": 300_000}, "more shared memory"),
        ({"grid": 3, "cluster": 2}, "no multiple of the cluster"),
        ({"grid": 32, "cluster": 32}, "more than 16 CTAs"),
    ]:
        with pytest.raises(gpu.SimError, match=why):
            module.launch("f", memory, **launch)
    gpu.configure(cc="8.0")
    with pytest.raises(gpu.SimError, match="clusters need"):
        module.launch("f", memory, grid=2, cluster=2)
