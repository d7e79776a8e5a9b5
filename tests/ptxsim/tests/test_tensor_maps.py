"""Tensor maps that a kernel edits: in shared memory, handed over by a copy with a fence, or where
they are. Whoever uses one wants a fence of its own."""

import shutil

import numpy as np
import pytest
from ptxsim import gpu

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

MATRIX = np.arange(2 * 40 * 32, dtype=np.uint16).reshape(2, 40, 32)
ROWS, COLUMNS = 4, 32
PLACES = """
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r1, tile;
    mov.u32 %r2, full;
    mov.u32 %r3, own;
    mov.b64 %rd2, map;
    cvta.param.u64 %rd2, %rd2;
    shl.b32 %r4, %r0, 2;
    cvt.u64.u32 %rd4, %r4;
    add.s64 %rd5, %rd2, %rd4;
    ld.u32 %r5, [%rd5];
    add.s32 %r6, %r3, %r4;
    add.s64 %rd6, %rd3, %rd4;
    @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
    @%p0 fence.mbarrier_init.release.cluster;
"""
"""Each lane has a word of the map, and its places in shared and in global memory."""
REPLACE = "@%p0 tensormap.replace.tile.{}.b1024.b{} [{}], {};"
SHARED = "st.shared.u32 [%r6], %r5; bar.warp.sync -1;"
PUBLISH = """
    bar.warp.sync -1;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
        [%rd3], [%r3], 128;
"""
GLOBAL = "st.global.u32 [%rd6], %r5; bar.warp.sync -1;"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd3], 128;"
USE = """
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
    @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r1], [%rd3, {0, 38}], [%r2];
    bar.sync 0;
    $wait: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;
    @!%p9 bra $wait;
    shl.b32 %r7, %r0, 3;
    add.s32 %r8, %r1, %r7;
    ld.shared.v2.u32 {%r9, %r10}, [%r8];
    cvt.u64.u32 %rd7, %r7;
    add.s64 %rd7, %rd1, %rd7;
    st.global.v2.u32 [%rd7], {%r9, %r10};
"""


@pytest.fixture(autouse=True)
def fresh():
    gpu.configure(cc="10.0")
    gpu.clear()


def in_shared(field, bits, value):
    return SHARED + REPLACE.format(f"{field}.shared::cta", bits, "%r3", value) + PUBLISH


def in_global(field, bits, value):
    return GLOBAL + REPLACE.format(f"{field}.global", bits, "%rd3", value)


def tile(edit, fence=ACQUIRE):
    """Rows 38 to 41 by a map of the first matrix that was edited, and what was found."""
    shared = ".shared .align 128 .b8 tile[256]; .shared .align 8 .b64 full;"
    shared += ".shared .align 128 .b8 own[128];"
    text = gpu.kernel(PLACES + edit + fence + USE, ["p", "out", "q", "scratch"], shared)
    text = text.replace("f(", "f(.param .align 64 .b8 map[128], ")
    matrix, out = gpu.Memory(MATRIX), gpu.Memory(np.zeros((ROWS, COLUMNS), np.uint16))
    scratch = gpu.Memory(np.zeros(128 + 64, np.uint8))
    record = gpu.tensor_map(matrix, MATRIX[0].shape, (ROWS, COLUMNS), 16)
    place = np.uint64(-(-scratch.address // 64) * 64)
    gpu.Module(text).launch("f", record, matrix, out, np.uint64(0), place)
    return out.array.copy(), {f["code"] for f in gpu.report()["findings"]}


def rows(array):
    return np.concatenate([array, np.zeros((ROWS, COLUMNS), np.uint16)])[38 : 38 + ROWS]


@pytest.mark.parametrize("edited", (in_shared, in_global))
def test_what_an_edited_map_describes(edited):
    """More rows; the second matrix; every other row."""
    whole = MATRIX.reshape(80, 32)
    got, codes = tile(edited("global_dim", 32, "1, 80"))
    assert (got == rows(whole)).all() and codes == set()
    there = f"add.s64 %rd8, %rd0, {MATRIX[0].nbytes};"
    got, codes = tile(there + edited("global_address", 64, "%rd8"))
    assert (got == rows(MATRIX[1])).all() and codes == set()
    got, codes = tile(edited("global_stride", 64, f"0, {2 * MATRIX[0, 0].nbytes}"))
    assert (got[:2] == whole[[76, 78]]).all() and not got[2:].any() and codes == set()


@pytest.mark.parametrize("edited", (in_shared, in_global))
@pytest.mark.parametrize(
    "fence",
    (
        "",
        "fence.proxy.async;",
        "fence.proxy.async.global;",
        "fence.proxy.tensormap::generic.release.gpu;",
    ),
)
def test_no_other_fence_hands_a_map_over(edited, fence):
    got, codes = tile(edited("global_dim", 32, "1, 80"), fence)
    assert (got == rows(MATRIX.reshape(80, 32))).all()  # it is there at once here
    assert codes == {"proxy-fence"}


def test_a_fence_before_the_edit_is_none():
    assert tile(ACQUIRE + in_shared("global_dim", 32, "1, 80"), "")[1] == {"proxy-fence"}


@pytest.mark.parametrize("value", ("5, 80", "4, 64"), ids=("no dimension", "no stride"))
def test_values_that_no_map_has(value):
    field, bits = ("global_dim", 32) if "80" in value else ("global_stride", 64)
    with pytest.raises(gpu.SimError, match=r"tensor-map.*tensormap\.replace with"):
        tile(in_shared(field, bits, value))


def test_an_edited_map_is_checked_when_it_is_used():
    with pytest.raises(gpu.SimError, match="another rank"):
        tile(in_shared("rank", 32, "0"))


@pytest.mark.parametrize(
    "text",
    (
        "tensormap.replace.tile.height.shared::cta.b1024.b32 [%r3], 4;",
        "tensormap.replace.tile.rank.shared::cta.b1024.b64 [%r3], %rd0;",
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r3], 4;",
        "tensormap.replace.im2col.rank.shared::cta.b1024.b32 [%r3], 4;",
        PUBLISH.replace("128;", "64;"),
    ),
)
def test_what_is_no_edit_is_refused(text):
    with pytest.raises(gpu.SimError, match="unknown instruction tensormap"):
        tile(text)
