"""Spellings that compilers and public kernels write, beside what other tests use all the time."""

import numpy as np
import pytest
from ptxsim import gpu

CAPABILITY = "10.0"

OWN = """
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd8, %r0, 16;
    add.s64 %rd8, %rd0, %rd8;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd8];
"""


def compute(body, values, registers=(), parameter=".param .u64 p"):
    """Four words of each lane, changed by the body and stored from %r1.. again."""
    text = gpu.kernel(OWN + body, ["p"], " ".join(registers)).replace(".param .u64 p", parameter, 1)
    text = text.replace("\n}\n", "st.global.v4.u32 [%rd8], {%r1, %r2, %r3, %r4};\n}\n")
    memory = gpu.Memory(np.ascontiguousarray(values))
    gpu.Module(text).launch("f", memory)
    assert gpu.report()["findings"] == []
    return memory.array.copy()


def words(seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (32, 4), np.uint32)


@pytest.mark.parametrize(
    "parameter",
    (
        ".param .u64 .ptr .align 1 p",
        ".param .u64 .ptr .global .align 16 p",
        ".param .align 8 .u64 .ptr p",
    ),
)
def test_a_parameter_that_is_a_pointer(parameter):
    """Its alignment is that of what it points to: the next parameter lies where it lay."""
    assert (compute("", words(), parameter=parameter) == words()).all()
    text = gpu.kernel("st.global.u64 [%rd0], %rd1;", ["p", "q"])
    text = text.replace(".param .u64 p", parameter.replace("align 16", "align 256"))
    memory = gpu.Memory(np.zeros(1, np.uint64))
    gpu.Module(text).launch("f", memory, np.uint64(77))
    assert memory.array[0] == 77


def test_a_pointers_alignment_is_no_parameters():
    text = gpu.kernel("").replace(".u64 p", ".u64 .ptr .elsewhere p")
    with pytest.raises(gpu.SimError, match="declared .elsewhere"):
        gpu.Module(text).kernel("f")


def test_vectors_of_bytes():
    """A word into bytes and back in another order; half of one, with bytes left out."""
    body = """
        mov.b32 {b0, b1, b2, b3}, %r1;
        mov.b32 %r1, {b3, b0, b1, b2};
        cvt.u16.u32 %h1, %r2;
        mov.b16 {_, b0}, %h1;
        mov.b16 %h1, {b0, b3};
        cvt.u32.u16 %r2, %h1;
        mov.b32 {_, b1, _, _}, %r3;
        cvt.u32.u8 %r3, b1;
    """
    before, after = words(), compute(body, words(), [".reg .b8 b0, b1, b2, b3;"])
    was, got = (x.view(np.uint8).reshape(32, 4, 4) for x in (before, after))
    assert (got[:, 0] == was[:, 0][:, [3, 0, 1, 2]]).all()
    assert (got[:, 1, 0] == was[:, 1, 1]).all() and (got[:, 1, 1] == was[:, 0, 3]).all()
    assert (after[:, 2] == was[:, 2, 1]).all()


@pytest.mark.parametrize("lists", ("{b0, b1, b2}", "{b0, b1, b2, b3, b0}"))
def test_vectors_of_bytes_are_whole(lists):
    with pytest.raises(gpu.SimError, match=r"unknown instruction mov\.b32"):
        compute(f"mov.b32 {lists}, %r1;", words(), [".reg .b8 b0, b1, b2, b3;"])


@pytest.mark.parametrize(
    "policy",
    (
        "fractional.L2::evict_last.L2::evict_unchanged.b64 %rd5, 0.5",
        "fractional.L2::evict_first.b64 %rd5",
        "fractional.L2::evict_normal.L2::evict_first.b64 %rd5, 1.0",
    ),
)
def test_policies_change_nothing(policy):
    load = f"createpolicy.{policy}; ld.global.L2::cache_hint.u32 %r1, [%rd8], %rd5;"
    assert (compute(load, words()) == words()).all()


def test_a_refusal_names_the_source_line():
    text = gpu.kernel(".loc 1 42 7\nmultimem.red.relaxed.sys.global.add.f32 [%rd0], %f1;")
    text += '.file 1 "/somewhere/kernel.cu"\n'
    with pytest.raises(gpu.SimError, match=r"unknown instruction multimem.* \(kernel.cu:42\)"):
        gpu.Module(text).kernel("f")
    with pytest.raises(gpu.SimError, match=r"unknown instruction multimem\S+$"):
        gpu.Module(text.replace(".loc 1 42 7", "")).kernel("f")


# --- Tiles ---

TILE = """
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r1, tile;
    mov.u32 %r2, full;
    mov.b64 %rd2, map;
    cvta.param.u64 %rd2, %rd2;
    @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {bytes};
    @%p0 cp.async.bulk.tensor.2d.{form} [%r1], [%rd2, {{{at}}}], [%r2];
    bar.sync 0;
    $wait: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;
    @!%p9 bra $wait;
    shl.b32 %r3, %r0, 4;
    add.s32 %r4, %r1, %r3;
    ld.shared.v4.u32 {{%r5, %r6, %r7, %r8}}, [%r4];
    cvt.u64.u32 %rd3, %r3;
    add.s64 %rd3, %rd1, %rd3;
    st.global.v4.u32 [%rd3], {{%r5, %r6, %r7, %r8}};
"""
MATRIX = np.arange(40 * 64, dtype=np.uint16).reshape(40, 64)
INWARDS = "shared::cta.global{}.mbarrier::complete_tx::bytes"


def tile(form, at, box, swizzle=16):
    """512 bytes of shared memory behind a tile of box (rows, columns), and what was found."""
    bytes_ = 512 if "gather" in form else 2 * box[0] * box[1]
    shared = ".shared .align 1024 .b8 tile[512]; .shared .align 8 .b64 full;"
    text = gpu.kernel(TILE.format(form=form, at=at, bytes=bytes_), ["p", "out"], shared)
    text = text.replace("f(", "f(.param .align 64 .b8 map[128], ")
    matrix, out = gpu.Memory(MATRIX), gpu.Memory(np.zeros((4, 64), np.uint16))
    record = gpu.tensor_map(matrix, MATRIX.shape, box, swizzle)
    gpu.Module(text).launch("f", record, matrix, out)
    return out.array.copy(), {f["code"] for f in gpu.report()["findings"]}


@pytest.mark.parametrize("behind", ("", ".cta_group::1"))
def test_tiles_for_a_group_of_one(behind):
    got, codes = tile(INWARDS.format(".tile") + behind, "0, 5", (4, 64))
    assert (got == MATRIX[5:9]).all() and codes == set()


@pytest.mark.parametrize("swizzle", (16, 128))
def test_rows_are_gathered(swizzle):
    """Wherever they are, twice the same, and one that is not there."""
    rows = (7, 30, 7, 40)
    form = INWARDS.format(".tile::gather4") + ".cta_group::1"
    got, codes = tile(form, "0, " + ", ".join(map(str, rows)), (1, 64), swizzle)
    want = np.concatenate([MATRIX, np.zeros((1, 64), np.uint16)])[list(rows)]
    offsets = np.arange(512)
    places = offsets ^ ((offsets >> 7 & 7) << 4 if swizzle == 128 else 0)
    assert (got.view(np.uint8).reshape(-1)[places] == want.view(np.uint8).reshape(-1)).all()
    assert codes == set()


def test_a_gather_wants_a_box_of_one_row_and_five_coordinates():
    form = INWARDS.format(".tile::gather4")
    with pytest.raises(gpu.SimError, match="a box of several rows"):
        tile(form, "0, 1, 2, 3, 4", (2, 64))
    with pytest.raises(gpu.SimError, match="the number of coordinates"):
        tile(form, "0, 1", (1, 64))


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_puts_four_matrices_where_lanes_point(trans):
    """Lane 8j+i points to row i of matrix j, and reads it afterwards."""
    body = f"""
        mov.u32 %r5, tile;
        mad.lo.s32 %r5, %r0, 16, %r5;
        stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r5], {{%r1, %r2, %r3, %r4}};
        ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r5];
    """
    got = compute(body, words(3), [".shared .align 16 .b8 tile[512];"]).view(np.uint16)
    lane = np.arange(32).reshape(8, 4)  # by the row that its two elements are of
    given = words(3)[lane].view(np.uint16).reshape(8, 4, 4, 2)  # row, pair of columns, matrix, half
    matrices = given.transpose(2, 0, 1, 3).reshape(4, 8, 8)
    want = matrices.transpose(0, 2, 1) if trans else matrices
    np.testing.assert_array_equal(got.reshape(4, 8, 8), want)
