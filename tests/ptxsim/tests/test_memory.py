"""Whose memory is whose: allocations apart, and what lanes of one warp may do at once."""

import numpy as np
import pytest
from ptxsim import gpu
from ptxsim.one_array import PLACE, SHARED, found

CAPABILITY = "9.0"


@pytest.mark.parametrize("behind", (1, 256, 4096, 1 << 20, 200 << 20))
def test_an_index_finds_no_other_allocation(behind):
    """Though there are many, some of them allocated just before and just behind."""
    around = [gpu.Memory(np.zeros(4096, np.uint8)) for _ in range(8)]
    offset = (1024 + behind - 1) // 4 * 4
    assert found(f"ld.global.u32 %r3, [%rd0+{offset}];", seeds=[0]) == {"out-of-bounds"}
    assert found(f"ld.global.u32 %r3, [%rd0+-{offset - 1020}];", seeds=[0]) == {"out-of-bounds"}
    assert found("ld.global.u32 %r3, [%rd0+1020];", seeds=[0]) == set()
    assert all((memory.array == 0).all() for memory in around)


def test_the_last_addresses_are_nobodys():
    """Though what lies behind them would be the first again."""
    used = "ld.global.u32 %r3, [%rd0];"  # the allocation looked up last is asked first
    last = "mov.u64 %rd1, -4; ld.global.u32 %r3, [%rd1];"
    assert found(used + last, seeds=[0]) == {"out-of-bounds"}
    assert found(
        used + last.replace("ld", "st").replace("%r3, [%rd1]", "[%rd1], %r3"), seeds=[0]
    ) == {"out-of-bounds"}


SAME = "st.shared.{} [%r2], {}; bar.warp.sync -1; ld.shared.u32 %r3, [%r2];"


@pytest.mark.parametrize("kind, value", [("u32", "7"), ("v2.u32", "{7, %r9}"), ("u16", "%h0")])
def test_lanes_that_store_the_same_at_once_do_not_race(kind, value):
    same = PLACE + "mov.u32 %r9, %ctaid.x; cvt.u16.u32 %h0, %r9;" + SAME.format(kind, value)
    assert found(same) == set()
    assert found(same.replace("%ctaid.x", "%tid.x").replace("7", "%r9")) == {"race"}


@pytest.mark.parametrize(
    "second",
    (
        "setp.eq.u32 %p0, %r0, 1; @%p0 st.shared.u32 [%r2], 7;",  # another store of another lane
        "setp.ne.u32 %p0, %r0, 1; @%p0 st.shared.u32 [%r1], 7;",  # one that meets the last's
    ),
)
def test_the_same_by_other_instructions_is_a_race(second):
    assert found(PLACE + "st.shared.u32 [%r2], 7;" + second) == {"race"}


def test_the_same_by_two_warps_is_a_race():
    assert found(PLACE + "st.shared.u32 [%r2], 7;", block=64) == {"race"}


INIT = PLACE + "setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;"


def test_an_mbarrier_is_initialised_once():
    again = INIT[INIT.index("@%p0") :]
    assert found(INIT + again) == {"mbarrier-reuse"}
    assert found(INIT + "@%p0 mbarrier.inval.shared::cta.b64 [%r2];" + again) == set()
    assert found(INIT + again.replace("[%r2]", "[%r2+8]")) == set()


def test_large_clusters_are_asked_for():
    module, memory = gpu.Module(gpu.kernel("", ["p"])), gpu.Memory(np.zeros(4))
    module.launch("f", memory, grid=8, cluster=8)
    with pytest.raises(gpu.SimError, match="NON_PORTABLE"):
        module.launch("f", memory, grid=16, cluster=16)
    module.allow_large_clusters("f")
    module.launch("f", memory, grid=16, cluster=16)


VECTORS = {
    "v8.b32": ("r", [f"%r{i}" for i in range(10, 18)], 4),
    "v4.b64": ("rd", ["%rd10", "%rd11", "%rd12", "%rd13"], 8),
}


@pytest.mark.parametrize("form", VECTORS)
def test_a_lane_stores_a_sector(form):
    """32 bytes at once, which are aligned as a whole."""
    kind, registers, size = VECTORS[form]
    loads = "".join(
        f"ld.global.u{8 * size} {name}, [%rd5+{size * i}];" for i, name in enumerate(registers)
    )
    body = f"""
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd5, %r0, 64; add.s64 %rd5, %rd0, %rd5; {loads}
        st.global.{form} [%rd5+OFFSET], {{{", ".join(registers)}}};
    """
    before = np.random.default_rng(0).integers(0, 2**32, (32, 16), np.uint32)
    memory = gpu.Memory(before)
    gpu.Module(gpu.kernel(body.replace("OFFSET", "32"), ["p"])).launch("f", memory)
    assert gpu.report()["findings"] == [] and gpu.report()["global_store_bytes"] == 32 * 32
    assert (memory.read() == np.concatenate([before[:, :8], before[:, :8]], 1)).all()
    with pytest.raises(gpu.SimError, match="misaligned"):
        gpu.Module(gpu.kernel(body.replace("OFFSET", "16"), ["p"])).launch("f", memory)


@pytest.mark.parametrize("form", ("shared.v8.b32", "global.v8.b64"))
def test_no_other_memory_and_no_more_than_a_sector(form):
    names = ", ".join(f"%{'rd' if form.endswith('64') else 'r'}{i}" for i in range(10, 18))
    address = "%r2" if form.startswith("shared") else "%rd0"
    text = gpu.kernel(PLACE + f"st.{form} [{address}], {{{names}}};", ["p"], SHARED)
    with pytest.raises(gpu.SimError, match=f"st.{form}: more bytes at once"):
        gpu.Module(text).kernel("f")
