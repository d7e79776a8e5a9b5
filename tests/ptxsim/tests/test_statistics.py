"""The figures of the simulated GPU that stand in for a profiler, on kernels counted by hand."""

import numpy as np
import pytest
from ptxsim import gpu
from ptxsim.one_array import PLACE, SHARED
from ptxsim.sm90 import DATA, MULTICAST, TILE, ZEROS, fetch, launch, start, tensor_map, wait

CAPABILITY = "9.0"


def counts(body, array, **options):
    module = gpu.Module(gpu.kernel(body, ["p"], SHARED))
    gpu.seed(0)
    module.launch("f", gpu.Memory(array), **options)
    return gpu.report()


def aligned(words):
    """An array for 128-byte aligned use: the kernel rounds its address up."""
    return np.zeros(words + 32, np.uint32)


ROUND_UP = "add.s64 %rd0, %rd0, 127; and.b64 %rd0, %rd0, -128; mov.u32 %r0, %tid.x;"
LANE = "mul.wide.u32 %rd5, %r0, {step}; add.s64 %rd5, %rd0, %rd5;"
BACKWARDS = "sub.u32 %r0, 31, %r0;" + LANE.format(step=4)


@pytest.mark.parametrize(
    "place, sectors, touched",
    [
        (LANE.format(step=4), 4, 4),
        (LANE.format(step=32), 32, 32),
        (LANE.format(step=0), 1, 1),
        (BACKWARDS, 4, 4),
        ("and.b32 %r1, %r0, 1; mul.wide.u32 %rd5, %r1, 64; add.s64 %rd5, %rd0, %rd5;", 2, 2),
    ],
)
def test_l2_is_asked_once_for_a_sector(place, sectors, touched):
    """Twice the same load, and a store to where it loaded from."""
    body = ROUND_UP + place + 2 * "ld.global.u32 %r3, [%rd5];" + "st.global.u32 [%rd5], %r3;"
    found = counts(body, aligned(512))
    assert found["global_load_bytes"] == 2 * 128 and found["global_store_bytes"] == 128
    assert found["l2_read_bytes"] == 2 * 32 * sectors
    assert found["l2_write_bytes"] == 32 * sectors
    assert found["touched_bytes"] == 32 * touched


def test_a_sector_of_many_ctas_is_touched_once():
    body = ROUND_UP + LANE.format(step=4) + "ld.global.u32 %r3, [%rd5];"
    found = counts(body, aligned(32), grid=5)
    assert found["l2_read_bytes"] == 5 * 128 and found["touched_bytes"] == 128


@pytest.mark.parametrize(
    "load, step, wavefronts",
    [
        ("ld.shared.u32 %r3, [%r4];", 4, 1),
        ("ld.shared.u32 %r3, [%r4];", 0, 1),
        ("ld.shared.u32 %r3, [%r4];", 8, 2),
        ("ld.shared.u32 %r3, [%r4];", 128, 32),
        ("ld.shared.v4.u32 {%r3, %r5, %r6, %r7}, [%r4];", 16, 4),
        ("ld.shared.v4.u32 {%r3, %r5, %r6, %r7}, [%r4];", 32, 8),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r5, %r6, %r7}, [%r4];", 16, 4),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r5, %r6, %r7}, [%r4];", 128, 32),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r4];", 64, 4),
        ("st.shared.u32 [%r4], %r0;", 4, 1),
        ("st.shared.u32 [%r4], %r0;", 12, 1),
    ],
)
def test_wavefronts_of_shared_memory(load, step, wavefronts):
    """Of the lanes that ask for 128 bytes at once, by the bank with most words."""
    gpu.configure(cc=CAPABILITY, wavefronts=1)
    body = f"mad.lo.u32 %r4, %r0, {step}, %r2; {load}"
    found = counts(PLACE + body, np.zeros(32, np.uint32))
    assert found["shared_wavefronts"] == wavefronts


def test_copies_under_way_at_a_wait():
    """Three groups, then two, then none."""
    copy = "cp.async.ca.shared.global [%r1+{0}], [%rd5+{0}], 4; cp.async.commit_group;"
    body = PLACE + "".join(copy.format(128 * i) for i in range(3))
    waits = "".join(f"cp.async.wait_group {n};" for n in (2, 0, 0))
    found = counts(body + waits, np.zeros(96, np.uint32))
    assert found["data_waits"] == 2 and found["stages_under_way"] == 2.5
    assert found["async_bytes"] == 384 and found["tma_bytes"] == 0


def test_bytes_of_bulk_copies():
    launch(start() + fetch() + wait(0), DATA, ZEROS, block=256, seeds=[0])
    found = gpu.report()
    assert found["tma_bytes"] == found["async_bytes"] == 1024
    assert found["l2_read_bytes"] in (1024, 1056)  # the array begins anywhere
    assert found["data_waits"] > 0 and found["stages_under_way"] == 1


def test_multicast_asks_l2_once():
    launch(MULTICAST, DATA, ZEROS, grid=2, cluster=2, block=256, seeds=[0])
    found = gpu.report()
    assert found["tma_bytes"] == 2048 and found["l2_read_bytes"] in (1024, 1056)


def test_bytes_of_tiles():
    """What lies outside the matrix is filled in, not fetched."""
    for y, inside in [(0, 16), (38, 2)]:
        gpu.clear()
        body = TILE.replace("XX", "0").replace("YY", str(y))
        launch(
            body, np.zeros(40 * 64, np.uint16), ZEROS, block=256, seeds=[0],
            params={"map": lambda m: tensor_map(m, (16, 32), 64)},
        )  # fmt: skip
        found = gpu.report()
        assert found["tma_bytes"] == 1024
        assert 64 * inside <= found["l2_read_bytes"] <= 96 * inside


def test_what_warps_wait_for():
    """One warp counts, the others stand at the barrier."""
    late = """
        setp.gt.u32 %p1, %r0, 31;
        @%p1 bra there;
        mov.u32 %r5, 0;
        more: add.u32 %r5, %r5, 1;
        setp.lt.u32 %p2, %r5, 20000;
        @%p2 bra more;
        there:
    """
    warps = counts(PLACE + late + "bar.sync 0;", np.zeros(128, np.uint32), block=128)["warps"]
    assert warps["barrier"] > warps["ready"] > 0
    assert warps["mbarrier"] == warps["cluster"] == warps["async"] == 0
    gpu.clear()
    warps = counts(PLACE + late, np.zeros(128, np.uint32), block=128)["warps"]
    assert warps["ready"] > 0 and warps["barrier"] == 0


def test_which_warp_waits_at_mbarriers():
    """Warp 1 tells when it has counted, warp 3 waits for it; one lane each."""
    body = """
        mov.u32 %r0, %tid.x;
        mov.u32 %r2, full;
        setp.eq.u32 %p0, %r0, 0;
        setp.eq.u32 %p1, %r0, 32;
        setp.eq.u32 %p2, %r0, 96;
        @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
        bar.sync 0;
        @!%p1 bra wait;
        mov.u32 %r5, 0;
        more: add.u32 %r5, %r5, 1;
        setp.lt.u32 %p3, %r5, 20000;
        @%p3 bra more;
        mbarrier.arrive.shared::cta.b64 _, [%r2];
        wait: @!%p2 bra done;
        again: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0;
        @!%p9 bra again;
        done:
    """
    text = gpu.kernel(body, declarations=".shared .align 8 .b64 full;")
    gpu.seed(0)
    gpu.Module(text).launch("f", gpu.Memory(aligned(1)), block=128)
    waits = gpu.report()["mbarrier_waits"]
    assert len(waits) == 32 and waits[3] > 0 and sum(waits) == waits[3]
