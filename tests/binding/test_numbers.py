"""Numbers and words as arguments: rounding in any floating-point mode, and what is none."""

import ctypes
import warnings

import numpy as np
import pytest

import nvfp4kern as nk
import nvfp4kern.torch as nkt

CODES = np.full((1, 8), 0x22, np.uint8)  # 1.0
SCALE = np.full((1, 1), 0x38, np.uint8)  # 1.0
MODES = {"to nearest": 0, "down": 0x400, "up": 0x800, "to zero": 0xC00}  # of fenv.h on x86
LEAST = 2.0**-149  # denormal


def times_one(number):
    return nk.dequantize((CODES, SCALE, number), out_dtype="float32")[0, 0]


def numbers():
    rng = np.random.default_rng(0)
    exponents = rng.uniform(-152, 127.9, 3000)
    ties = np.exp2(rng.integers(-149, 127, 500)) * (1 + 2.0**-24)
    found = [0.0, 0.1, 1 / 3, 3.4028235e38, np.inf, 5e-324, LEAST / 2, np.nextafter(LEAST / 2, 1)]
    found += [
        1.5 * LEAST,
        2.5 * LEAST,
        2.0**-126 - LEAST / 2,
        2.0**-126,
        *np.exp2(exponents),
        *ties,
    ]
    return [sign * float(x) for x in found for sign in (1, -1)]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_number_is_rounded_to_nearest(mode):
    libm, found = ctypes.CDLL("libm.so.6"), []
    with np.errstate(all="ignore"):
        want = [np.float32(number).tobytes() for number in numbers()]
    values = numbers()
    if libm.fesetround(mode):
        pytest.skip("the modes have other numbers here")
    try:
        for number in values:
            found.append(times_one(number))
    finally:
        libm.fesetround(0)
    assert [x.tobytes() for x in found] == want


@pytest.mark.parametrize("number", [np.True_, np.False_, np.complex64(1 + 5j), np.complex128(1)])
def test_scalars_of_numpy_that_are_no_numbers(number):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the imaginary part is lost
        with pytest.raises(TypeError, match=f"^alpha: {type(number).__name__}, expected a number"):
            nk.gemm(CODES, CODES, SCALE, SCALE, alpha=number)
        with pytest.raises(TypeError, match="^alpha: "):
            nkt.arguments.number(number, "alpha")


@pytest.mark.parametrize("number", [np.float32(2), np.float64(2), np.float16(2), np.int8(2)])
def test_scalars_of_numpy_that_are_numbers(number):
    assert times_one(number) == 2


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: nk.explain("gemm\0x", CODES, CODES, SCALE, SCALE), ValueError, "op: 'gemm"),
        (lambda: nk.to_blocked(SCALE, **{"out\0x": None}), TypeError, "unexpected keyword"),
        (lambda: nk.warmup("cpu\0x"), ValueError, "device: 'cpu"),
        (
            lambda: nk.gemm(CODES, CODES, SCALE, SCALE, out_dtype="float32\0x"),
            ValueError,
            "out_dtype: 'float32",
        ),
        (
            lambda: nk.gemm(CODES, CODES, SCALE, SCALE, scale_layout="linear\0x"),
            ValueError,
            "scale_layout: 'linear",
        ),
    ],
)
def test_words_do_not_end_at_a_nul(call, error, text):
    with pytest.raises(error, match=text):
        call()
