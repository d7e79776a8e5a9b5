"""gemv: D[m] = alpha[m] * sum_k A[m,k] b[k].

Every addition rounds to nearest: c = 1 on every backend.
"""

import numpy as np
import pytest
import torch
from dense_calls import gemv_operands, run_gemv
from generators import DTYPES, assert_ok, codes, floats, halves, rng_of, run, scale_bytes, scales

import nvfp4kern
from nvfp4kern.verify import data, reference

SHAPES = [(1, 16), (3, 48), (17, 80), (129, 256), (130, 4096)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", (None, 1, 3))
@pytest.mark.parametrize("m, k", SHAPES)
def test_exact_family_is_the_oracle_to_the_bit(device, m, k, batch, dtype):
    a, b = gemv_operands(rng_of(m, k), data.exact_family, m, k, batch)
    x, total = reference.matmul(a.values, b.values)
    assert data.is_exact(a.values, b.values, total)
    got = run_gemv(a, b, device, dtype=dtype)
    assert_ok(reference.check_bits(got, reference.round_to(x, dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("forms", [("linear", "blocked"), ("permuted", "strided")])
@pytest.mark.parametrize("m, k", SHAPES)
def test_full_range_is_within_the_bound(device, m, k, forms, dtype):
    a, b = gemv_operands(rng_of(m, k), data.full_range, m, k, 2)
    got = run_gemv(a, b, device, forms=forms, dtype=dtype)
    assert_ok(reference.check(got, reference.gemv(a.values, b.values), dtype))


WHOLE = [
    (128, 1024, None),
    (64, 2560, 3),
    (256, 1280, None),
    (384, 5120, 2),
    (250, 1024, 2),
    (1024, 256, None),
    (256, 16384, None),  # on few SMs more steps than slots
]


@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("m, k, batch", WHOLE)
def test_whole_tiles(device, m, k, batch, form):
    """sm90 reads most of these by tensor maps, whatever its SMs."""
    a, b = gemv_operands(rng_of(m, k), data.full_range, m, k, batch)
    got = run_gemv(a, b, device, forms=(form, "linear"), dtype="float32")
    assert_ok(reference.check(got, reference.gemv(a.values, b.values), "float32"))


def test_rows_and_batches_may_be_one(device):
    """Strides of zero."""
    a, b = gemv_operands(rng_of(12), data.full_range, 1, 512)
    rows = [codes(a, device), scales(a, "linear", rng_of(9), device)]
    got = run(
        nvfp4kern.gemv,
        rows[0].expand(2, 128, -1),
        codes(b, device).expand(2, 1, -1),
        rows[1].expand(2, 128, -1),
        scales(b, "linear", rng_of(9), device).expand(2, 1, -1),
        shape=(2, 128, 1),
        device=device,
        dtype="float32",
    )
    want = reference.gemv(a.values, b.values)
    for one in got.reshape(-1, 1, 1):
        assert_ok(reference.check(one, want, "float32"))


@pytest.mark.parametrize("kind", ("float", "one element", "per row"))
def test_alpha(device, kind):
    rng = rng_of(5)
    a, b = gemv_operands(rng, data.full_range, 27, 80, 2)
    value = {
        "float": 0.3,
        "one element": np.array([-1.7], np.float32),
        "per row": rng.standard_normal(27).astype(np.float32),
    }[kind]
    alpha = value if kind == "float" else floats(value, "float32", device)
    got = run_gemv(a, b, device, alpha=alpha, dtype="float32")
    assert_ok(reference.check(got, reference.gemv(a.values, b.values, alpha=value), "float32"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("b_dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("m, k", SHAPES)
def test_16_bit_vector(device, m, k, b_dtype, dtype):
    rng = rng_of(m, k)
    a = data.full_range(rng, 2, m, k)
    scale = 1e30 if b_dtype == "bfloat16" and dtype != "float16" else 1.0
    x = halves(rng, b_dtype, 2, 1, k, scale=scale)
    got = run_gemv(a, x, device, dtype=dtype)
    expected = reference.gemv(a.values, x.values, nvfp4=False)
    assert_ok(reference.check(got, expected, dtype))


def test_views_with_other_strides(device):
    rng = rng_of(8)
    wide, b = data.exact_family(rng, 12, 128), data.exact_family(rng, 1, 64)
    a = data.Operand(wide.codes[::2, :32], wide.scales[::2, :4])
    args = [
        torch.from_numpy(wide.codes).to(device)[::2, :32],
        codes(b, device, native=False),
        torch.from_numpy(wide.scales).to(device)[::2, :4],
        scale_bytes(b.scales, device, native=False),
    ]
    got = run(nvfp4kern.gemv, *args, shape=(6, 1), device=device)
    want = reference.gemv(a.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(got, want))


@pytest.mark.parametrize("far", ("codes", "scales"))
def test_rows_far_apart(device, far):
    """Further than the kernels for few tokens take them, whose offsets have 32 bits."""
    rows, k, stride = 6, 64, 7 << 20
    a, b = gemv_operands(rng_of(12), data.exact_family, rows, k)
    args = [codes(o, device, native=False) for o in (a, b)]
    args += [scale_bytes(o.scales, device, native=False) for o in (a, b)]
    near = args[0 if far == "codes" else 2]
    room = torch.zeros((rows - 1) * stride + near.shape[1], dtype=torch.uint8, device=device)
    apart = room.as_strided(near.shape, (stride, 1))
    apart.copy_(near)
    args[0 if far == "codes" else 2] = apart
    got = run(nvfp4kern.gemv, *args, shape=(rows, 1), device=device)
    assert_ok(reference.check_bits(got, reference.gemv(a.values, b.values).rounded("float16")))


def test_more_matrices_than_a_grid_has_y_or_z(device):
    batch, k = 65540, 16
    a, b = gemv_operands(rng_of(13), data.exact_family, 1, k, 4)
    args = [codes(o, device, native=False) for o in (a, b)]
    args += [scale_bytes(o.scales, device, native=False) for o in (a, b)]
    many = [x.repeat(batch // 4, *[1] * (x.ndim - 1)) for x in args]
    got = run(nvfp4kern.gemv, *many, shape=(batch, 1, 1), device=device)
    want = reference.gemv(a.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(got, np.tile(want, (batch // 4, 1, 1))))


def test_a_stride_that_leads_nowhere_costs_nothing(gpu):
    """One matrix, one row: any number may stand there, and the drop-ins' tensors have a 1."""
    a, b = (torch.zeros(rows * 64, dtype=torch.uint8, device=gpu.device) for rows in (32, 1))
    sfa, sfb = (torch.zeros(rows * 8, dtype=torch.uint8, device=gpu.device) for rows in (32, 1))
    kernels = {
        nvfp4kern.explain(
            "gemv",
            a.as_strided((1, 32, 64), (odd, 64, 1)),
            b.as_strided((1, 1, 64), (odd, odd, 1)),
            sfa.as_strided((1, 32, 8), (odd, 8, 1)),
            sfb.as_strided((1, 1, 8), (odd, odd, 1)),
        )["kernel"]
        for odd in (1, 7, 4096)
    }
    assert len(kernels) == 1 and "narrow" not in kernels.pop()


@pytest.mark.parametrize("far", ("codes", "scales"))
def test_how_far_apart_rows_may_be(gpu, far):
    """640 rows that a CTA of sm90's kernels has in sight must not be 4 GB apart."""
    limit = 6 << 20
    room = torch.zeros(limit + 16 + 64, dtype=torch.uint8, device=gpu.device)
    kernels = []
    for stride in (64, limit, limit + 16):
        a = room.as_strided((2, 64), (stride if far == "codes" else 64, 1))
        sfa = room.as_strided((2, 8), (stride if far == "scales" else 8, 1))
        plan = nvfp4kern.explain("gemv", a, room[:64].view(1, 64), sfa, room[:8].view(1, 8))
        kernels.append(plan["kernel"])
    assert kernels[0] == kernels[1]
    assert kernels[2].startswith("sm80") == (gpu.name in ("sm80", "sm90")), kernels


def test_how_many_rows_there_may_be(gpu):
    """Kernels of all rows but sm80 count them in 32 bits."""
    room = torch.zeros(64, dtype=torch.uint8, device=gpu.device)
    kernels = []
    for rows in (4096, 1 << 30, (1 << 30) + 1):
        a, sfa = room.as_strided((rows, 8), (0, 1)), room.as_strided((rows, 1), (0, 1))
        plan = nvfp4kern.explain("gemv", a, room[:8].view(1, 8), sfa, room[:1].view(1, 1))
        kernels.append(plan["kernel"])
    if gpu.name != "cpu":
        assert all(kernel.startswith(gpu.name) for kernel in kernels[:2]), kernels
    assert kernels[2].startswith("sm80") == (gpu.name != "cpu"), kernels


def test_what_tensor_maps_can_say(gpu):
    """Whole units of K, aligned scale factors, whole atoms of blocked ones, and rows that are not
    one and the same: others are copied."""
    room = torch.zeros(1 << 20, dtype=torch.uint8, device=gpu.device)

    def kernel(m=128, k=1024, layout="blocked", skip=0, shared=False):
        a, b = room[: m * k // 2].view(m, k // 2), room[: k // 2].view(1, k // 2)
        a = a[:1].expand(m, -1) if shared else a
        size = -(-m // 128) * 128 * k // 16 if layout == "blocked" else m * k // 16
        sf = room[skip : skip + size]
        sf = sf if layout == "blocked" else sf.view(m, k // 16)
        plan = nvfp4kern.explain(
            "gemv", a, b, sf, room[: k // 16].view(1, -1), scale_layout=(layout, "linear")
        )
        return plan["kernel"]

    tiled = [kernel(), kernel(layout="linear"), kernel(m=64, layout="linear")]
    copied = [kernel(m=64), kernel(k=1024 + 64), kernel(shared=True)]
    copied += [kernel(skip=4), kernel(layout="linear", skip=4)]
    if gpu.name == "sm90":
        assert all("_map_" in name for name in tiled), tiled
    assert not any("_map_" in name for name in copied), copied
