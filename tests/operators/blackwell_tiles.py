"""What every tile of Blackwell's GEMMs computes, for test_tiles.py."""

from functools import partial

from dense_tiles import check_dual, check_exact, check_full_range, check_list
from expert_tiles import check_activated_experts, check_experts, check_gated_experts
from generators import ORDERS, assert_ok, codes, rng_of, scales, values

import nvfp4kern
from nvfp4kern.verify import data, reference

TOKENS, WEIGHTS = 0, 1  # operands
BLOCKED = ("blocked", "blocked")
FORMS = [(a, b) for a in ("linear", "blocked") for b in ("linear", "blocked")]


def check_one_matrix(device, m, n, k, shared):
    """Operand `shared` has one matrix of codes for three batches, each with its scale factors."""
    rng = rng_of(m, n, k)
    a, b = data.exact_family(rng, 3, m, k), data.exact_family(rng, 3, n, k)
    (a, b)[shared].codes[1:] = (a, b)[shared].codes[0]
    given = [codes(a, device), codes(b, device)]
    given[shared] = given[shared][:1].expand(3, -1, -1)
    sf = [scales(o, "blocked", rng, device, 0x7F) for o in (a, b)]
    got = nvfp4kern.gemm(*given, *sf, scale_layout="blocked")
    want = reference.gemm(a.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(values(got), want))


def check_sm100_dual(device, c, mma_n, more):
    for forms in [*FORMS, ("strided", "permuted"), ("flat", "strided")]:
        full = {"make": data.full_range, "forms": forms, "byte": 0x7F, "dtype": "float32"}
        check_dual(device, c, mma_n + 3, 133, 288 + more, activation="identity", **full)
    check_dual(device, c, 5, 140, 2624 + more, forms=("blocked", "blocked"))
    check_dual(device, c, 2 * mma_n + 1, 129, 320 + more, batch=3, forms=("blocked", "linear"))
    for order in ORDERS:
        how = {"order": order, "dtype": "bfloat16", "activation": "gelu"}
        check_dual(device, c, 37, 264, 96 + more, **how)


def check_sm100_experts(device, c, mma_n):
    sizes = (mma_n + 3, 0, 1, 130, 0)
    for forms in FORMS:
        check_experts(device, c, sizes, 140, 320, forms)
        check_experts(device, c, sizes, 33, 288, forms, full=True)
    check_experts(device, c, (0,) * 40 + (5, 0, 7) + (1,) * 20, 130, 64)
    check_experts(device, c, (0, 0), 130, 64)


def check_sm100_gated_experts(device, c, mma_n):
    """N that is whole atoms, or whose ups begin inside of one; more rows than a tile's M."""
    for n, forms in [(75, FORMS[3]), (128, FORMS[3]), (300, FORMS[2]), (64, FORMS[1])]:
        check_gated_experts(device, c, (mma_n + 3, 0, 1, 70), n, 320, forms)
    check_gated_experts(device, c, (0, 9), 133, 288, FORMS[3], activation="identity")
    check_gated_experts(device, c, (5, 2 * mma_n + 1), 40, 2624, FORMS[0], activation="gelu")


def check_sm100_by_index(device, c, mma_n):
    """Tiles that end inside of four rows, experts that begin anywhere, one token for all rows."""
    for form in ("linear", "blocked", "strided"):
        sizes = (mma_n + 3, 0, 1, 130, 0)
        check_experts(device, c, sizes, 140, 320, (form, "linear"), tokens=47)
    full = {"full": True, "tokens": 200}
    check_experts(device, c, (mma_n + 3, 5), 33, 288, ("blocked", "linear"), **full)
    check_experts(device, c, (7, 2 * mma_n + 1, 1), 33, 2624, tokens=1)


def check_sm100_lists(device, c, mma_n):
    """Weights or tokens as operand M, any K, empty groups; scale factors of whole atoms or not."""
    sizes = [(3, 140, 64), (mma_n + 3, 270, 320), (0, 9, 32), (300, 17, 96), (1, 1, 1088)]
    for forms in FORMS[::3]:
        check_list(device, c, sizes, forms)
    check_list(device, c, sizes, ("blocked", "permuted"), data.full_range)
    check_list(device, c, [(65, 260, 64 * (1 + i % 3)) for i in range(5)], FORMS[-1])
    for order in ORDERS:
        check_list(device, c, [(5, 40, 32), (130, 48, 96)], FORMS[0], order=order)


def check_sm100_gemm(tile, device, c):
    """Tokens are operand N if they are few, operand M if weight rows are fewer. Each share of a
    split K has a step: `more` is those of the other shares."""
    mma_n, split_k, operators = tile["tile_m"], tile["split_k"], tile["operators"]
    more = tile["tile_k"] * (split_k - 1)
    exact = partial(check_exact, device, forms=BLOCKED)
    for m, n in [(mma_n + 3, 260), (300, mma_n // 2 + 1)]:
        for forms in FORMS:
            check_full_range(device, c, m, n, 288 + more, forms)
    exact(5, 140, 2624 * split_k)  # longer than the pipeline
    exact(2, 700, 32 + more)
    exact(2 * mma_n + 1, 129, 320 + more, batch=3)
    exact(mma_n, 1, 64 + more, dtype="bfloat16")
    for order in ORDERS:
        exact(37, 264, 96 + more, order=order)
        exact(264, 37, 96 + more, order=order, dtype="float32")
    for left in (3, 7, 11, 15):  # of sixteen columns: the last three are stored one by one
        for whole in (16, 32):
            exact(whole + left, 140, 96 + more, order="padded columns")
    for dtype in ("float16", "bfloat16", "float32"):  # whole sectors along M, or along N
        exact(272, 48, 96 + more, order="row", dtype=dtype)
        exact(272, 48, 96 + more, order="column", dtype=dtype)
    exact(264, 40, 96 + more)  # of every other row
    for shared in (TOKENS, WEIGHTS):  # operand M or N
        check_one_matrix(device, 9, 130, 128 + more, shared)
        check_one_matrix(device, 300, 40, 128 + more, shared)
    if "dual_gemm" in operators:
        check_sm100_dual(device, c, mma_n, more)
    if "grouped_gemm" in operators:
        check_sm100_experts(device, c, mma_n)
        check_sm100_by_index(device, c, mma_n)
    if "activated_grouped_gemm" in operators:
        check_activated_experts(device, c, (mma_n + 3, 0, 1, 70), 140, 320, BLOCKED)
        check_activated_experts(device, c, (5, 2 * mma_n + 1), 33, 288, tokens=47)
    if "list_gemm" in operators:
        check_sm100_lists(device, c, mma_n)
    if "grouped_dual_gemm" in operators:
        check_sm100_gated_experts(device, c, mma_n)
