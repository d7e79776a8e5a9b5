"""quantize by the recipe four_six, byte by byte against the float32 model."""

import numpy as np
import pytest
import torch
from generators import DTYPES, every_half, floats, hostile, raw, rng_of, unchanged, values

import nvfp4kern
from nvfp4kern.verify import data, four_six, reference

SCALES = (None, "amax", 1e-45, 2.0**-141, 1.2e-38, 1e-10, 0.013, 0.37, 1e10, 1.7e38, 3.4028235e38)
SMALLEST = (0, 2.0**-9, 0.0123, 448)


def check_bytes(
    x, dtype, device, scale=None, smallest=0, layout="linear", offsets=None, array=False
):
    given = floats(x, dtype, device)
    options = {"scale_layout": layout, "smallest_scale": smallest, "recipe": "four_six"}
    if offsets is not None:
        options["offsets"] = torch.tensor(offsets, dtype=torch.int32, device=device)
    with unchanged(given):
        s2 = floats([scale], "float32", device) if array else scale
        q = nvfp4kern.quantize(given, global_scale=s2, **options)
    want_codes, want_scales, want_s2 = four_six.quantize(x, scale, smallest)
    if offsets is not None:
        want_scales = reference.to_blocked_by_expert(want_scales, offsets)
    elif layout == "blocked":
        want_scales = reference.to_blocked(want_scales)
    np.testing.assert_array_equal(raw(q.scales), want_scales)
    np.testing.assert_array_equal(raw(q.data), want_codes)
    if scale == "amax":
        assert q.global_scale.item() == want_s2
    return q


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("linear", "blocked"))
@pytest.mark.parametrize("rows, k", [(1, 16), (3, 48), (17, 80), (130, 4176)])
def test_normal_data(device, rows, k, layout, dtype):
    x = data.halves(rng_of(1), dtype, rows, k)
    for scale in (None, 0.013, "amax"):
        check_bytes(x, dtype, device, scale, 2.0**-9, layout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smallest", SMALLEST)
@pytest.mark.parametrize("scale", SCALES)
def test_hostile_data(device, scale, smallest, dtype):
    check_bytes(hostile(rng_of(1), dtype), dtype, device, scale, smallest)


@pytest.mark.parametrize("smallest", (0, 2.0**-6))
@pytest.mark.parametrize("scale", (1e-10, 3.7e-21))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_all_blocks_are_beyond_the_largest_scale_factor(device, dtype, scale, smallest):
    x = np.full((2, 256), 3e38, np.float32) * np.where(np.arange(256) % 3, 1, -1)
    check_bytes(values(floats(x, dtype, "cpu")), dtype, device, scale, smallest)


@pytest.mark.parametrize("scale", (np.nan, np.inf, -np.inf, -1.0, -1e-45, 0.0, -0.0, 0.37, 1e-45))
def test_scale_in_an_array(device, scale):
    q = check_bytes(hostile(rng_of(3), "float32"), "float32", device, scale, array=True)
    if not 0 < scale < np.inf:
        assert (raw(q.scales) == 0x7F).all() and not raw(q.data).any()


@pytest.mark.parametrize("magnitude", (0.0, 1.4e-45, 1e-43, 1e-38, 1e-30, 1e30, 3.4e38))
def test_amax_at_both_ends(device, magnitude):
    x = (rng_of(4).uniform(-1, 1, (9, 64)) * np.float32(magnitude)).astype(np.float32)
    x.flat[7] = magnitude
    check_bytes(x, "float32", device, "amax", 2.0**-9)


@pytest.mark.parametrize("scale", (None, "amax", 1e-45, 2.0**-127, 0.37, 1e10))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_every_half(device, dtype, scale):
    check_bytes(every_half(dtype), dtype, device, scale)


ONES = 1 - 2.0**-24
"""A mantissa of ones alone."""


@pytest.mark.parametrize("scale", (None, 0.37, ONES, ONES / 3, 2.0**-120, 1e-30, 3e30))
def test_quotients_next_to_ties(device, scale):
    """Elements a step or two from where a code begins, with the scale factor of 6 and of 4."""
    s2 = np.float32(1 if scale is None else scale)
    x = np.zeros((2, 500, 16), np.float32)
    x[:, :, 0] = (rng_of(8).uniform(0.1, 300, 500) * s2).astype(np.float32)
    ties = ((reference.E2M1[:-1] + reference.E2M1[1:]) / 2).astype(np.float32)
    for part, target in zip(x, (6, 4), strict=True):
        with np.errstate(over="ignore"):
            _, sf, _ = four_six.encode_to(part, target, s2, np.float32(0))
        tie = np.resize(ties, 15) * (sf * s2)[:, None]
        part[:, 1:] = (tie.view(np.int32) + rng_of(9).integers(-2, 3, tie.shape, np.int32)).view(
            np.float32
        )
        largest = np.minimum(part[:, 1:], part[:, :1])  # so that the block keeps its largest
        part[:, 1:] = largest * rng_of(10).choice(np.float32([-1, 1]), largest.shape)
    check_bytes(x.reshape(10, 1600), "float32", device, scale)


@pytest.mark.parametrize("scale", (None, 0.37, ONES, ONES / 3, 2.0**-120, 3e30))
def test_largest_magnitudes_next_to_ties_of_scale_factors(device, scale):
    s2 = np.float32(1 if scale is None else scale)
    steps = reference.decode_scales(np.arange(127, dtype=np.uint8))
    ties = ((steps[:-1] + steps[1:]) / 2)[:, None, None]
    amax = (ties * np.float32([6, 4])[:, None] * s2 * (1 + 2.0**-24 * np.arange(-4, 5))).ravel()
    x = rng_of(11).uniform(-1, 1, (amax.size, 16)) * amax[:, None]
    x[:, 3] = amax
    check_bytes(x.astype(np.float32), "float32", device, scale)


@pytest.mark.parametrize(
    "offsets", ([0, 40], [0, 0, 3, 3, 200], [5, 130, 131, 131, 300], [0] * 6, [300, 300])
)
def test_an_atom_row_for_every_expert(device, offsets):
    x = data.halves(rng_of(10), "bfloat16", 300, 96)
    check_bytes(x, "bfloat16", device, "amax", 0, "blocked", offsets)


def test_batches_other_strides_and_no_rows(device):
    x = hostile(rng_of(7), "float32", 120).reshape(3, 40, 256)
    turned = floats(x.swapaxes(0, 1), "float32", device).transpose(0, 1)
    for at in (np.s_[:], np.s_[..., 1:129], np.s_[1, ::3], np.s_[:, :0]):
        q = nvfp4kern.quantize(turned[at], global_scale="amax", recipe="four_six")
        want_codes, want_scales, _ = four_six.quantize(x[at], "amax")
        np.testing.assert_array_equal(raw(q.scales), want_scales)
        np.testing.assert_array_equal(raw(q.data), want_codes)


def test_a_tie_goes_to_six(device):
    """Both are exact: 1 is 6/6 and 4/4 of a scale factor that E4M3 has."""
    x = torch.full((1, 16), 12.0, device=device)
    for first, scale, code in ((12.0, 0x40, 0x77), (4.0, 0x40, 0x74), (9.0, 0x44, 0x65)):
        x[0, 0] = first  # 4 is 2 of 6, and no code of 4; 9 is 3 of 4, and no code of 6
        q = nvfp4kern.quantize(x, recipe="four_six")
        assert raw(q.scales)[0, 0] == scale and raw(q.data)[0, 0] == code


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_no_block_is_worse_than_by_six(device, dtype):
    """Judged by what dequantises, in float64."""
    x = floats(4 * data.halves(rng_of(12), dtype, 64, 1024), dtype, device)

    def errors(recipe):
        q = nvfp4kern.quantize(x, recipe=recipe)
        differences = np.float64(values(nvfp4kern.dequantize(q, out_dtype="float32"))) - values(x)
        return np.square(differences).reshape(-1, 16).sum(axis=-1)

    six, either = errors("amax"), errors("four_six")
    assert (either <= six * (1 + 1e-6)).all()
    assert either.sum() < 0.85 * six.sum()


@pytest.mark.parametrize("options", ({"up": torch.ones(2, 16)}, {"global_scale_inverse": 2.0}))
def test_what_four_six_has_not(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}: given, expected None with recipe='four_six'"):
        nvfp4kern.quantize(torch.ones(2, 16), recipe="four_six", **options)
    with pytest.raises(ValueError, match="recipe: 'mse', expected 'amax' or 'four_six'"):
        nvfp4kern.quantize(torch.ones(2, 16), recipe="mse")
