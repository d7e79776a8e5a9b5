"""tcgen05 and tensor memory on the simulated GPU: what the instructions compute."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from ptxsim import gpu, sm100

CAPABILITY = "10.0"

SEEDS = range(6)


def launch(body, arrays, variables, seed=0, parameters=sm100.PARAMETERS, **options):
    """The last array after the kernel."""
    gpu.seed(seed)
    module = gpu.Module(gpu.kernel(body, parameters[: len(arrays)], variables))
    memory = [gpu.Memory(array) for array in arrays]
    module.launch("f", *memory, **({"block": 128} | options))
    return memory[-1].array.copy()


# --- mma, cp, commit, ld: a product of block-scaled e2m1 ---


def run_product(group, n, seed, operands=None, body=None, columns=128):
    operands = operands or sm100.product_operands(group, n, seed)
    got = sm100.run_product(body or sm100.product(group, n, columns), group, n, seed, operands)
    return got, sm100.exact_product(*operands)


def assert_close(got, want):
    """The accumulator is f32, rounded towards zero after each of four instructions."""
    np.testing.assert_allclose(got, want, rtol=0, atol=4 * np.abs(want).max() * 2.0**-23)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", (8, 64, 104))
def test_block_scaled_product(n, seed):
    columns = 256 if n > 96 else 128
    assert_close(*run_product(1, n, seed, columns=columns))
    assert gpu.findings("EWN") == set()
    assert gpu.report()["mmas"] == 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", (32, 128))
def test_block_scaled_product_of_a_pair(n, seed):
    assert_close(*run_product(2, n, seed, columns=256))
    assert gpu.findings("EWN") == set()
    assert gpu.report()["mmas"] == 4


@pytest.mark.parametrize("seed", SEEDS)
def test_each_cta_of_a_pair_reads_its_own_scales_of_b(seed):
    """The two copies of SFB differ: the rows of each CTA are scaled by its own."""
    a, b, sfa, sfb = sm100.product_operands(2, 64, seed)
    other = sm100.product_operands(2, 64, seed + 100)[3]
    rank = "mov.u32 %r40, %cluster_ctarank;"
    own = rank + "mul.wide.u32 %rd40, %r40, 2048; add.s64 %rd3, %rd3, %rd40;"
    body = sm100.changed(sm100.product(2, 64), rank, own)
    arrays = [*sm100.product_memory(a, b, sfa, sfb), np.zeros((256, 64), np.float32)]
    arrays[3] = np.concatenate([arrays[3], sm100.scale_atoms(other)])
    got = launch(body, arrays, sm100.product_variables(2, 64), seed, grid=2, cluster=2)
    assert_close(got[:128], sm100.exact_product(a[:128], b, sfa[:128], sfb))
    assert_close(got[128:], sm100.exact_product(a[128:], b, sfa[128:], other))
    assert gpu.findings("EWN") == set()


@pytest.mark.parametrize("which", (2, 3))
def test_the_sign_bit_of_a_scale_is_none(which):
    """ue4m3 has no sign: its uppermost bit means nothing, in scales of A and of B."""
    operands = list(sm100.product_operands(1, 64, 4))
    want = sm100.exact_product(*operands)
    operands[which] = operands[which] | 0x80 * (np.arange(16) % 3 == 0).astype(np.uint8)
    got = sm100.run_product(sm100.product(), operands=operands)
    assert_close(got, want)


def test_small_integers_are_exact():
    operands = sm100.product_operands(1, 64, 3, scales=(0x38, 0x39))  # all ones
    got, want = run_product(1, 64, 3, operands)
    np.testing.assert_array_equal(got, want)


def test_signs_and_accumulation_follow_the_descriptor_and_the_predicate():
    """-A B, then once more on top of it: the first instruction adds if its predicate says so."""
    bits = sm100.instruction(128, 64, b13=1)
    once, twice = (sm100.multiply(1, 64, bits=bits) for _ in range(2))
    again = twice.replace("setp.ne.u32 %p5, 0, 0;", "setp.eq.u32 %p5, 0, 0;")
    body = sm100.product().replace(sm100.multiply(1, 64), once + again)
    got, want = run_product(1, 64, 5, body=body)
    assert_close(got, -2 * want)


@pytest.mark.parametrize("form", ("scale_vec::4X", "block16.collector::a::discard"))
def test_other_spellings(form):
    assert_close(*run_product(1, 64, 0, body=sm100.product(form=form)))


@pytest.mark.parametrize("predicate, factor", [("1", 2), ("0", 1), ("!%p5", 1)])
def test_the_predicate_may_be_a_number_or_negated(predicate, factor):
    last = sm100.multiply(1, 64).replace("%p5;", f"{predicate};")
    last = re.sub("setp.ne.u32 %p5, ., 0;", "setp.eq.u32 %p5, 0, 0;", last)
    body = sm100.product().replace(sm100.commit(1), last + sm100.commit(1))
    operands = sm100.product_operands(1, 64, 0)
    got, want = run_product(1, 64, 0, operands, body)
    if factor == 2:
        assert_close(got, 2 * want)
    else:  # each of the four replaced the one before it
        a, b, sfa, sfb = operands
        assert_close(got, sm100.exact_product(a[:, 192:], b[:, 192:], sfa[:, 12:], sfb[:, 12:]))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="no ptxas")
@pytest.mark.parametrize("group", (1, 2))
def test_ptxas_takes_these_forms_too(group, tmp_path):
    text = gpu.kernel(sm100.product(group), sm100.PARAMETERS, sm100.product_variables(group, 64))
    path = tmp_path / "product.ptx"
    path.write_text(text.replace("sm_90a", "sm_100a"))
    subprocess.run(["ptxas", "-arch=sm_100a", path, "-o", tmp_path / "product.cubin"], check=True)


def test_a_nan_scale_poisons_its_row():
    a, b, sfa, sfb = sm100.product_operands(1, 64, 0)
    sfa[5, 3] = 0x7F
    got, _ = run_product(1, 64, 0, (a, b, sfa, sfb))
    assert np.isnan(got[5]).all() and not np.isnan(np.delete(got, 5, 0)).any()


# --- kind::f16 ---

HALVES = ["a_in", "b_in", "d_out"]
DEPTH = 64  # of the matrices: 128 bytes of a row along K, four instructions


def multiply_halves(group, bits, a=("%rd20",) * 4):
    body = ""
    for k in range(DEPTH // 16):
        body += sm100.descriptor("%rd20", "%r20", 32 * k)
        body += sm100.descriptor("%rd21", "%r21", 32 * k) + f"setp.ne.u32 %p5, {k}, 0;"
        body += f"tcgen05.mma.cta_group::{group}.kind::f16 [%r1], {a[k]}, %rd21, {bits}, %p5;"
    return body


def halves_kernel(group, rows, n, multiply, before=""):
    sizes = {"a": 2 * rows * DEPTH, "b": 2 * n // group * DEPTH}
    body = sm100.start(128, group) + "mov.u32 %r40, %cluster_ctarank;"
    for i, (name, size) in enumerate(sizes.items()):
        body += f"mul.wide.u32 %rd40, %r40, {size}; add.s64 %rd{i}, %rd{i}, %rd40;"
        body += f"mov.u32 %r{20 + i}, {name};" + sm100.fill(f"%r{20 + i}", f"%rd{i}", size)
    meet = sm100.CLUSTER_BARRIER if group == 2 else "bar.sync 0;"
    body += sm100.FENCE_PROXY + before + sm100.BEFORE + meet
    body += sm100.issuer(group, sm100.AFTER + multiply + sm100.commit(group))
    body += sm100.wait(0, "%r10") + sm100.AFTER + sm100.load(n, place="%r3") + sm100.WAIT_LOAD
    return body + sm100.show(n, "%rd2") + sm100.finish(128, group), sm100.declarations(**sizes)


def halves(seed, m, n):
    random = np.random.default_rng(seed)
    return [random.integers(-8, 9, (rows, DEPTH)).astype(np.float16) for rows in (m, n)]


def accumulators(got, group, m, n):
    """D [m][n] of what the threads loaded, a lane each: PTX ISA 9.7.16.10.5, layouts A, B, D, F."""
    lanes = got.reshape(group, 128, -1)
    if (group, m) == (1, 64):
        return np.concatenate([lanes[0, 32 * i : 32 * i + 16] for i in range(4)])
    if (group, m) == (2, 128):
        return np.concatenate(
            [np.concatenate([lanes[i, :64, : n // 2], lanes[i, 64:, : n // 2]], 1) for i in (0, 1)]
        )
    return lanes.reshape(128 * group, -1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("group, m", [(1, 64), (1, 128), (2, 128), (2, 256)])
def test_products_of_halves(group, m, seed):
    n = 64
    a, b = halves(seed, m, n)
    body, variables = halves_kernel(
        group, m // group, n, multiply_halves(group, sm100.instruction(m, n, "f16"))
    )
    arrays = [sm100.swizzled(a), sm100.swizzled(b), np.zeros((128 * group, n), np.float32)]
    got = launch(body, arrays, variables, seed, HALVES, grid=group, cluster=group)
    want = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(accumulators(got, group, m, n), want)
    assert gpu.findings() == set()


def test_bf16_with_k_in_rows():
    """A [k][m] and B [k][n], contiguous along m and n."""
    a, b = halves(7, 128, 64)
    short = [(x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    tiles = [
        np.ascontiguousarray(x.T.reshape(DEPTH // 8, 8, -1, 64).transpose(0, 2, 1, 3))
        for x in short
    ]
    bits = sm100.instruction(128, 64, "f16", b7=1, b10=1, b15=1, b16=1)
    layouts = {"%rd20": (2048, 1024), "%rd21": (1024, 1024)}
    multiply = ""
    for k in range(DEPTH // 16):
        for (name, (stride, leading)), place in zip(layouts.items(), ("%r20", "%r21"), strict=True):
            layout = 2 << 61 | 1 << 46 | (stride >> 4) << 32 | (leading >> 4) << 16
            multiply += sm100.descriptor(name, place, 2 * stride * k, layout)
        multiply += f"setp.ne.u32 %p5, {k}, 0;"
        multiply += f"tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd20, %rd21, {bits}, %p5;"
    body, variables = halves_kernel(1, 128, 64, multiply)
    arrays = [*(sm100.swizzled(x) for x in tiles), np.zeros((128, 64), np.float32)]
    got = launch(body, arrays, variables, parameters=HALVES)
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32).T)
    assert gpu.findings() == set()


@pytest.mark.parametrize("group", (1, 2))
def test_a_in_tensor_memory(group):
    """A warp's threads store their row of A, two halves a column, from column 96 on."""
    a, b = halves(9, 128 * group, 64)
    load = "mad.lo.s32 %r50, %r40, 128, %r0; mul.wide.u32 %rd50, %r50, 128;"
    load += "add.s64 %rd50, %rd3, %rd50;"
    load += "".join(f"ld.global.u32 %d{i}, [%rd50+{4 * i}];" for i in range(32))
    registers = ",".join(f"%d{i}" for i in range(32))
    load += f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r3+96], {{{registers}}};"
    load += "tcgen05.wait::st.sync.aligned;"
    places = [f"[%r1+{96 + 8 * k}]" for k in range(4)]
    multiply = multiply_halves(group, sm100.instruction(128 * group, 64, "f16"), a=places)
    body, variables = halves_kernel(group, 128, 64, multiply, before=load)
    arrays = [sm100.swizzled(a), sm100.swizzled(b), np.zeros((128 * group, 64), np.float32), a]
    gpu.seed(2)
    module = gpu.Module(gpu.kernel(body, [*HALVES, "rows"], variables))
    memory = [gpu.Memory(array) for array in arrays]
    module.launch("f", *memory, grid=group, cluster=group, block=128)
    want = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(memory[2].array, want)
    assert gpu.findings() == set()
