"""Consumer Blackwell's block-scaled mma.sync, and what a GPU of compute capability 12 has not."""

import subprocess

import numpy as np
import pytest
from ptxsim import gpu
from ptxsim.marks import COMPILES
from ptxsim.sm100 import E2M1, e4m3

CAPABILITY = "12.0"
NAN = 0x7F7F7F7F  # four scales
FORM = "kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"
PARAMETERS = ["a_in", "b_in", "sfa_in", "sfb_in", "d_in_out"]
LANES = np.arange(32)
G, T = LANES // 4, LANES % 4


def instruction(rows=0, columns=0, byte=0, form=FORM):
    return f"""
        mma.sync.aligned.m16n8k64.row.col.{form} {{%r20,%r21,%r22,%r23}}, {{%r10,%r11,%r12,%r13}},
            {{%r14,%r15}}, {{%r20,%r21,%r22,%r23}}, %r16, {{{byte},{rows}}}, %r17, {{0,{columns}}};
    """


def body(multiply):
    """Each lane's registers of a, b, the scales and d, from arrays [lane][register]."""
    text = "mov.u32 %r0, %tid.x;"
    for i, size in enumerate((16, 8, 4, 4, 16)):
        text += f"mul.wide.u32 %rd1{i}, %r0, {size}; add.s64 %rd1{i}, %rd1{i}, %rd{i};"
    return f"""{text}
        ld.global.v4.u32 {{%r10,%r11,%r12,%r13}}, [%rd10];
        ld.global.v2.u32 {{%r14,%r15}}, [%rd11];
        ld.global.u32 %r16, [%rd12];
        ld.global.u32 %r17, [%rd13];
        ld.global.v4.u32 {{%r20,%r21,%r22,%r23}}, [%rd14];
        {multiply}
        st.global.v4.u32 [%rd14], {{%r20,%r21,%r22,%r23}};
    """


def eight(codes):
    """e2m1 codes [.., 8] as words, the first in the low bits."""
    return (codes.astype(np.uint32) << 4 * np.arange(8, dtype=np.uint32)).sum(-1, dtype=np.uint32)


def scale_words(scales):
    return np.ascontiguousarray(scales, np.uint8).view(np.uint32)[:, 0]


def product(a, sfa, b, sfb, d, rows=0, columns=0, multiply=None):
    """a [16][64], b [8][64] codes, scales [..][4], d [16][8]; NaN in lanes without scales."""
    a, b = a.reshape(16, 8, 8), b.reshape(8, 8, 8)  # row, k / 8, k % 8
    of_a = [eight(a[G + 8 * (q % 2), T + 4 * (q // 2)]) for q in range(4)]
    of_b = [eight(b[G, T + 4 * q]) for q in range(2)]
    of_sfa, of_sfb = np.full((2, 32), NAN, np.uint32)
    supplies = T // 2 == rows
    of_sfa[supplies] = scale_words(sfa)[(G + 8 * (T % 2))[supplies]]
    of_sfb[T == columns] = scale_words(sfb)
    of_d = [d[G + 8 * (q // 2), 2 * T + q % 2].astype(np.float32) for q in range(4)]
    memory = [gpu.Memory(np.stack(x, 1)) for x in (of_a, of_b, [of_sfa], [of_sfb], of_d)]
    module = gpu.Module(gpu.kernel(body(multiply or instruction(rows, columns)), PARAMETERS))
    module.launch("f", *memory)
    result = np.empty((16, 8), np.float32)
    for q in range(4):
        result[G + 8 * (q // 2), 2 * T + q % 2] = memory[4].read()[:, q]
    return result


def operands(seed, scales):
    random = np.random.default_rng(seed)
    a, b = (random.integers(0, 16, (rows, 64), np.uint8) for rows in (16, 8))
    sfa, sfb = (random.integers(*scales, (rows, 4), np.uint8) for rows in (16, 8))
    return a, sfa, b, sfb, random.integers(-64, 64, (16, 8)) / 4


def exact(a, sfa, b, sfb, d):
    return d + (E2M1[a] * e4m3(sfa).repeat(16, 1)) @ (E2M1[b] * e4m3(sfb).repeat(16, 1)).T


@pytest.mark.parametrize("rows", range(2))
@pytest.mark.parametrize("columns", range(4))
def test_sums_that_floats_hold_are_exact(rows, columns):
    given = operands(4 * rows + columns, (0x30, 0x48))
    assert (product(*given, rows=rows, columns=columns) == exact(*given)).all()
    assert gpu.report()["mmas"] == 1 and not gpu.findings("EWN")


@pytest.mark.parametrize("seed", range(4))
def test_every_scale_but_nan(seed):
    a, sfa, b, sfb, d = given = operands(seed, (0, 0x7F))
    magnitude = exact(a & 7, sfa, b & 7, sfb, np.abs(d))
    assert (np.abs(product(*given) - exact(*given)) <= magnitude * 2.0**-22).all()


def test_the_sign_of_a_scale_is_ignored():
    a, sfa, b, sfb, d = operands(0, (0x30, 0x48))
    signed = product(a, sfa | 0x80, b, sfb | 0x80, d)
    assert (signed == exact(a, sfa, b, sfb, d)).all()


@pytest.mark.parametrize("nan", [0x7F, 0xFF])
def test_a_nan_scale_spoils_its_row_or_its_column(nan):
    a, sfa, b, sfb, d = operands(0, (0x30, 0x48))
    want = exact(a, sfa, b, sfb, d)
    sfa[11, 1], sfb[6, 3] = nan, nan
    want[11], want[:, 6] = np.nan, np.nan
    assert np.array_equal(product(a, sfa, b, sfb, d), want, equal_nan=True)


@pytest.mark.parametrize("counts", [1, 0])
def test_both_answers_to_a_nan_scale_of_zeros(counts):
    gpu.configure(cc=CAPABILITY, nan_times_zero=counts)
    a, sfa, b, sfb, d = operands(0, (0x30, 0x48))
    a[11, 16:32] = 0
    b[6, 48:] = 8
    want = exact(a, sfa, b, sfb, d)
    sfa[11, 1], sfb[6, 3] = 0x7F, 0x7F
    if counts:
        want[11], want[:, 6] = np.nan, np.nan
    got = product(a, sfa, b, sfb, d)
    gpu.configure(cc=CAPABILITY, nan_times_zero=1)
    assert np.array_equal(got, want, equal_nan=True)


def test_lanes_that_come_apart_multiply_together():
    given = operands(0, (0x30, 0x48))
    apart = "setp.lt.u32 %p0, %r0, 9; @%p0 bra $late; add.u32 %r1, %r0, 1; $late:"
    assert (product(*given, multiply=apart + instruction()) == exact(*given)).all()


REFUSED = {
    instruction(byte=1): "byte",
    instruction(rows=2): "lanes",
    instruction(columns=4): "lanes",
    instruction(form=FORM.replace("ue4m3", "ue8m0")): "ue4m3",
    instruction(form=FORM.replace("4X", "2X")): "mxf4nvf4",
    "tcgen05.fence::after_thread_sync;": "capability 10.0",
    "wgmma.fence.sync.aligned;": "capability 9.0",
    """mov.u16 %h0, 1;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r1], [%rd0], 1024, [%r2], %h0;""": "multicast",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_it_has_not(text):
    with pytest.raises(gpu.SimError, match=REFUSED[text]):
        gpu.Module(gpu.kernel(body(text), PARAMETERS)).kernel("f")


@pytest.mark.parametrize("capability", ["9.0", "10.0"])
def test_no_other_capability_has_it(capability):
    gpu.configure(cc=capability)
    with pytest.raises(gpu.SimError, match="capability 12.0"):
        gpu.Module(gpu.kernel(body(instruction()), PARAMETERS)).kernel("f")
    gpu.configure(cc=CAPABILITY)


@pytest.mark.parametrize("capability", ["12.0", "12.1"])
def test_its_limits(capability):
    gpu.configure(cc=capability)
    module = gpu.Module(gpu.kernel("ret;", ()))
    module.launch("f", shared_bytes=99 * 1024)
    with pytest.raises(gpu.SimError, match="shared memory"):
        module.launch("f", shared_bytes=99 * 1024 + 1)
    with pytest.raises(gpu.SimError, match="clusters"):
        module.launch("f", grid=2, cluster=2)
    module.launch("f", grid=2, cluster=1)
    gpu.configure(cc=CAPABILITY)


@COMPILES
def test_ptxas_takes_the_instruction(tmp_path):
    text = gpu.kernel(body(instruction(1, 3)), PARAMETERS).replace("sm_90a", "sm_120f")
    path = tmp_path / "product.ptx"
    path.write_text(text)
    subprocess.run(["ptxas", "-arch=sm_120f", path, "-o", tmp_path / "product.cubin"], check=True)
