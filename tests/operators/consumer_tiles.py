"""What every tile of consumer Blackwell's GEMMs computes, for test_tiles.py."""

import blackwell_kind_f16 as of_halves
import numpy as np
from blackwell_tiles import FORMS
from dense_calls import run_gemm
from dense_tiles import check_dual, check_exact, check_full_range, check_list
from expert_tiles import check_experts, check_experts_of_one_matrix, check_gated_experts
from generators import ORDERS, SCALE_FORMS, assert_ok, rng_of

from nvfp4kern.verify import data, reference

ANYWHERE = [*FORMS, ("strided", "permuted"), ("flat", "strided")]  # rows at any address


def check_nans_of_zeros(device, m, n, k):
    """Zero codes under a NaN scale: whatever the hardware makes of them, its sums are NaN."""
    rng = rng_of(m, n, k)
    a, b = (data.exact_family(rng, rows, k) for rows in (m, n))
    want = reference.gemm(a.values, b.values).rounded("float32")
    for operand, row, block in ((a, m - 1, 0), (a, 1, k // 16 - 1), (b, n // 2, 3), (b, 0, 0)):
        operand.codes[row, 16 * block : 16 * block + 16] = 0
        operand.scales[row, block] = rng.choice([0x7F, 0xFF])
    want[[m - 1, 1]], want[:, [n // 2, 0]] = np.nan, np.nan
    spoiled = np.isnan(want)
    got = run_gemm(a, b, device, forms=FORMS[1], dtype="float32")
    assert_ok(reference.check_bits(got[~spoiled], want[~spoiled]))
    assert np.isnan(got[spoiled]).all()


def check_sm120_dense(device, c, tokens):
    for forms in ANYWHERE:
        check_full_range(device, c, tokens + 3, 133, 304, forms)
        full = {"make": data.full_range, "forms": forms, "byte": 0x7F, "dtype": "float32"}
        check_dual(device, c, tokens + 3, 75, 304, activation="identity", **full)
    check_full_range(device, c, 9, 70, 1104, FORMS[1])
    check_nans_of_zeros(device, tokens + 3, 133, 304)
    for m, n, k in ((tokens, 128, 128), (2 * tokens + 1, 260, 1312), (1, 1, 16), (5, 129, 80)):
        check_exact(device, m, n, k, batch=3 if k == 80 else None, forms=FORMS[2])
        check_dual(device, c, m, n, k, forms=FORMS[1])
    for order in ORDERS:
        how = {"order": order, "dtype": "bfloat16", "activation": "gelu"}
        check_dual(device, c, tokens - 3, 136, 96, **how)


def check_sm120_experts(device, c, tokens):
    sizes = (tokens + 3, 0, 1, 130, 0)
    for forms in FORMS:
        check_experts(device, c, sizes, 140, 320, forms)
        check_experts(device, c, sizes, 33, 304, forms, full=True)
    check_experts(device, c, (0,) * 40 + (5, 0, 7) + (1,) * 20, 130, 64)
    check_experts(device, c, (0, 0), 130, 64)
    check_experts_of_one_matrix(device, c, (3, 0, 9), 140, 512, FORMS[1])
    for form in ("linear", "blocked", "strided"):
        check_experts(device, c, sizes, 140, 320, (form, "linear"), tokens=47)
    check_experts(device, c, (7, 2 * tokens + 1, 1), 33, 1104, tokens=1)
    for n, forms in [(75, FORMS[3]), (128, FORMS[3]), (300, FORMS[2]), (64, FORMS[1])]:
        check_gated_experts(device, c, (tokens + 3, 0, 1, 70), n, 320, forms)
    check_gated_experts(device, c, (0, 9), 133, 304, FORMS[3], activation="identity")
    check_gated_experts(device, c, (4, 0, 7, 1), 128, 96, FORMS[1], tokens=6)


def check_sm120_gemm(tile, device, c):
    tokens = tile["tile_m"]
    check_sm120_dense(device, c, tokens)
    check_sm120_experts(device, c, tokens)
    sizes = [(3, 140, 64), (tokens + 3, 270, 320), (0, 9, 32), (300, 17, 96), (1, 1, 1088)]
    for forms in (FORMS[0], FORMS[3], ("blocked", "permuted")):
        check_list(device, c, sizes, forms, data.full_range)
    check_list(device, c, [(2, 70, 64 * (1 + i % 3)) for i in range(33)], FORMS[-1])
    for order in ORDERS:
        check_list(device, c, [(5, 40, 32), (130, 48, 96)], FORMS[0], order=order)


def check_16_bit_dense(device, c, tokens, dtype):
    for form in SCALE_FORMS:
        of_halves.check_gemm(device, c, dtype, tokens + 3, 133, 304, form, full=True)
        full = {"activation": "identity", "full": True}
        of_halves.check_dual(device, c, dtype, 9, 75, 176, form, **full)
    for m, n, k in ((tokens, 128, 64), (2 * tokens + 1, 260, 1312), (1, 1, 16), (5, 129, 80)):
        lead = (3,) if k == 80 else ()
        of_halves.check_gemm(device, c, dtype, m, n, k, "blocked", lead=lead, out=dtype)
    of_halves.check_gemm(device, c, dtype, 9, 260, 48, "linear", row_bytes=33)
    of_halves.check_poison(device, dtype, 9, 130, 208)
    for order in ORDERS:
        of_halves.check_gemm(device, c, dtype, 37, 264, 96, "blocked", order=order)
        how = {"order": order, "activation": "gelu", "out": dtype}
        of_halves.check_dual(device, c, dtype, 2 * tokens + 1, 129, 96, "flat", lead=(2,), **how)


def check_sm120_kind_f16(tile, device, c):
    tokens = tile["tile_m"]
    sizes = [(tokens + 3, 133, 288), (0, 64, 32), (1, 1, 1408), (2 * tokens + 5, 260, 96)]
    for dtype in of_halves.DTYPES:
        check_16_bit_dense(device, c, tokens, dtype)
        full = {"make": data.full_range, "out": dtype}
        check_list(device, c, sizes, ("linear", "linear"), dtype=dtype, **full)
        check_list(device, c, [*sizes, (9, 70, 160)] * 7, ("linear", "blocked"), dtype=dtype)
        of_experts = (tokens + 3, 0, 1, 130, 0)
        check_experts(device, c, of_experts, 140, 320, ("linear", "blocked"), dtype)
        check_experts(device, c, of_experts, 33, 304, dtype=dtype, full=True, out=dtype)
        check_experts(device, c, of_experts, 140, 320, dtype=dtype, tokens=47)
        for form, n in (("linear", 133), ("blocked", 128), ("flat", 40), ("permuted", 200)):
            how = {"full": True, "tokens": 31}
            check_gated_experts(device, c, of_experts, n, 288, ("linear", form), dtype, **how)
    check_experts(device, c, (0,) * 40 + (5, 0, 7) + (1,) * 20, 130, 64, dtype="float16")
    check_experts(device, c, (0, 0), 130, 64, dtype="bfloat16")
    activation = {"activation": "gelu", "full": True, "tokens": 4}
    check_gated_experts(device, c, (7,), 70, 160, ("linear", "blocked"), "float16", **activation)
