"""Order in tensor memory: kernels whose synchronisation lacks something, and their clean twins."""

import pytest
from ptxsim import gpu, sm100
from ptxsim.sm100 import AFTER, BEFORE, WAIT_LOAD, changed, found

CAPABILITY = "10.0"

N = 64
ONCE, PAIR = sm100.product(), sm100.product(2, N)

# Thread 0 issues, all warps load, thread 0 issues again once all have loaded, all load again.
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r11];"
COMMIT, MULTIPLY = sm100.commit(1), sm100.multiply(1, N)
LOAD = sm100.load(N, place="%r3") + WAIT_LOAD
FIRST, SECOND = sm100.wait("first", "%r10"), sm100.wait("second", "%r10", 1)
EMPTY = sm100.wait("empty", "%r11") + AFTER
TWICE = (
    sm100.start(barriers=("full", "empty"), arrivals=(1, 128))
    + sm100.fill_product(1, N)
    + sm100.issuer(1, sm100.copy_scales(1, N) + MULTIPLY + COMMIT)
    + FIRST
    + AFTER
    + LOAD
    + BEFORE
    + ARRIVE
    + sm100.issuer(1, EMPTY + MULTIPLY + COMMIT, "again")
    + SECOND
    + AFTER
    + LOAD
    + sm100.show(N, "%rd4")
    + sm100.finish()
)


@pytest.mark.parametrize("body, group", [(ONCE, 1), (TWICE, 1), (PAIR, 2)])
def test_the_kernels_that_are_spoiled_below_are_clean(body, group):
    assert found(body, group, "EWN", range(40)) == set()


SPOILED = {  # name: code, kernel, what is replaced, by what
    "ld without waiting for the commit": ("race", TWICE, FIRST, ""),
    "ld with a barrier for a commit": ("in-flight", ONCE, sm100.wait(0, "%r10"), "bar.sync 0;"),
    "no after_thread_sync before ld": ("tcgen05-fence", TWICE, FIRST + AFTER, FIRST),
    "no after_thread_sync before mma": ("tcgen05-fence", TWICE, EMPTY, EMPTY[: -len(AFTER)]),
    "no before_thread_sync behind ld": ("tcgen05-fence", TWICE, BEFORE + ARRIVE, ARRIVE),
    "mma over what others may still load": ("race", TWICE, EMPTY, AFTER),
    "mma over a load nobody waited for": ("in-flight", TWICE, WAIT_LOAD, ""),
    "commit before the products": ("in-flight", ONCE, MULTIPLY + COMMIT, COMMIT + MULTIPLY),
    "another lane's commit": (
        "in-flight",
        ONCE,
        COMMIT + "\n$issued:",
        "\n$issued: bar.warp.sync -1; setp.eq.u32 %p6, %r0, 1; @%p6 " + COMMIT,
    ),
    "waiting for the phase before": ("race", TWICE, SECOND, SECOND.replace("1;", "0;")),
    "a pair without after_thread_sync": ("tcgen05-fence", PAIR, AFTER, ""),
    "a pair's odd CTA that does not wait": (
        "race",
        PAIR,
        sm100.wait(0, "%r10"),
        "setp.eq.u32 %p7, %r40, 1; @%p7 bra $on;" + sm100.wait(0, "%r10") + "$on:",
    ),
    "freed while others load": ("race", ONCE, BEFORE + "\n        bar.sync 0;", ""),
    "no proxy fence": ("proxy-fence", ONCE, sm100.FENCE_PROXY, ""),
    "no barrier behind the stores": ("race", ONCE, sm100.FENCE_PROXY + "bar.sync 0;", ""),
    "stores to what products may read": (
        "in-flight",
        ONCE,
        COMMIT,
        COMMIT + "st.shared.u32 [%r20], %r0;",
    ),
    "a barrier initialised again": (
        "mbarrier-reuse",
        ONCE,
        COMMIT,
        COMMIT + "mbarrier.inval.shared::cta.b64 [%r10]; mbarrier.init.shared::cta.b64 [%r10], 1;",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_missing_is_found(name):
    code, body, old, new = SPOILED[name]
    assert code in found(changed(body, old, new), 2 if body == PAIR else 1)


# --- What one thread issues, without a commit in between ---

WHOLE = sm100.wait("between", "%r11") + AFTER  # what was committed before is done
ALSO = sm100.commit(1, "%r11")


def again(bits=None, d="%r1", scales="%r30"):
    """One more product of the first slices of K, added to D at some columns."""
    form = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16"
    operands = sm100.descriptor("%rd20", "%r20") + sm100.descriptor("%rd21", "%r21")
    bits = bits or sm100.instruction(128, N)
    return operands + f"{form} [{d}], %rd20, %rd21, {bits}, [{scales}], [%r31], 1;"


def copy_again(to):
    source = sm100.descriptor("%rd20", "%r22", 0, sm100.PLAIN)
    return source + f"tcgen05.cp.cta_group::1.32x128b.warpx4 [{to}], %rd20;"


def behind(second, between=""):
    """The product, then something else of the same thread, then its commit."""
    body = sm100.start(barriers=("full", "empty")) + sm100.fill_product(1, N)
    first = sm100.copy_scales(1, N) + MULTIPLY + between
    return (
        body
        + sm100.issuer(1, first + second + COMMIT)
        + sm100.wait(0, "%r10")
        + AFTER
        + LOAD
        + sm100.finish()
    )


OVERTAKING = {  # what comes behind the product
    "mma of another N": again(sm100.instruction(128, 32)),
    "mma whose D begins elsewhere": again(sm100.instruction(128, 32), "%r1+16"),
    "mma whose D lies over scales that are still read": again(
        sm100.instruction(128, 8), "%r1+64", "%r30+12"
    ),
    "mma whose scales are still written": again(sm100.instruction(128, 8), "%r1+96", "%r1"),
    "cp over D": copy_again("%r1"),
    "cp behind a cp that nothing has read": copy_again("%r1+112") + copy_again("%r1+112"),
}


@pytest.mark.parametrize("name", OVERTAKING)
def test_other_pairs_wait_for_a_commit(name):
    second = OVERTAKING[name]
    assert "tcgen05-order" in found(behind(second), severities="W")
    body = behind(second, ALSO + WHOLE)
    if "behind a cp" in name:
        body = behind(changed(second, "%rd20;", "%rd20;" + ALSO + WHOLE))
    assert found(body) - {"scale-copies"} == set()  # D is no matrix of scales


def test_pairs_that_run_in_order_want_nothing():
    """mma behind mma of the same D, mma behind cp; D of another mma beside it."""
    assert found(behind(again() + again())) == set()
    assert found(behind(copy_again("%r1+112") + again(scales="%r1+112"))) == set()


def test_cp_behind_mma_is_a_setting():
    """Over scales that an mma reads: public kernels count on it, the manual does not list it."""
    body = behind(copy_again("%r30") + again())
    assert found(body) == set()
    gpu.configure(cc="10.0", cp_behind_mma=0)
    assert found(body) == {"tcgen05-order"}
    assert found(behind(copy_again("%r30") + again(), ALSO + WHOLE)) == set()


def test_operands_may_be_overwritten_once_the_products_are_done():
    assert found(changed(ONCE, AFTER, AFTER + "@%p0 st.shared.u32 [%r20], %r0;")) == set()


def test_relaxed_arrivals_order_tensor_memory():
    body = changed(TWICE, ARRIVE, ARRIVE.replace("arrive", "arrive.relaxed.cta"))
    assert found(body) == set()
    relaxed = EMPTY.replace("parity.shared", "parity.relaxed.cta.shared")
    assert found(changed(body, EMPTY, relaxed)) == set()
    assert "tcgen05-fence" in found(changed(body, BEFORE, ""))


# --- ld and st ---

PUT = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%r0};"
GET = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%d0}, [%r3];"
WAIT_STORE = "tcgen05.wait::st.sync.aligned;"
ACCESSES = {
    "ld behind st": (PUT, WAIT_STORE, GET),
    "st behind st": (PUT, WAIT_STORE, PUT),
    "st behind ld": (PUT + WAIT_STORE + GET, WAIT_LOAD, PUT),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_a_warps_loads_and_stores_wait_for_each_other(name):
    first, wait, second = ACCESSES[name]
    end = WAIT_STORE + WAIT_LOAD + sm100.finish()
    assert found(sm100.start() + first + second + end) == {"in-flight"}
    assert found(sm100.start() + first + wait + second + end) == set()
    other = WAIT_LOAD if wait == WAIT_STORE else WAIT_STORE
    assert found(sm100.start() + first + other + second + end) == {"in-flight"}


# All warps store the scales of A and B, which thread 0 uses.
SCALES = "mov.u32 %d0, 0x38383838;" + "".join(
    f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3+{N + i}], {{%d0}};" for i in range(32)
)
MEET = "bar.sync 0;"
STORED = (
    sm100.start()
    + sm100.fill_product(1, N)
    + SCALES
    + WAIT_STORE
    + BEFORE
    + MEET
    + AFTER
    + sm100.issuer(1, f"add.s32 %r30, %r1, {N}; add.s32 %r31, %r30, 16;" + MULTIPLY + COMMIT)
    + sm100.wait(0, "%r10")
    + sm100.finish()
)


def test_products_of_what_threads_stored():
    whole = WAIT_STORE + BEFORE + MEET + AFTER
    assert found(STORED) == set()
    assert "in-flight" in found(changed(STORED, whole, BEFORE + MEET + AFTER))
    assert "tcgen05-fence" in found(changed(STORED, whole, WAIT_STORE + MEET + AFTER))
    assert "tcgen05-fence" in found(changed(STORED, whole, WAIT_STORE + BEFORE + MEET))
    assert "race" in found(changed(STORED, whole, WAIT_STORE + BEFORE + AFTER))


def test_the_four_copies_of_scales_are_the_same():
    other = SCALES.replace("0x38383838", "0x40404040").replace("tcgen05.st", "@%p1 tcgen05.st")
    assert "scale-copies" in found(changed(STORED, SCALES, SCALES + WAIT_STORE + other))


def test_a_load_before_the_commit_finds_poison_or_the_sums():
    """And never what was there before."""
    ready = sm100.FENCE_PROXY + "bar.sync 0;"
    old = "mov.u32 %d0, 0xBF800000;" + "".join(
        f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3+{i}], {{%d0}};" for i in range(N)
    )
    body = changed(ONCE, ready, old + WAIT_STORE + BEFORE + ready + AFTER)
    body = changed(body, sm100.wait(0, "%r10"), "bar.sync 0;")
    body = changed(body, sm100.finish(), sm100.wait(0, "%r10") + sm100.finish())
    operands, kinds = sm100.product_operands(1, N, 0), set()  # of seeds: with poison, without
    want = sm100.run_product(ONCE, operands=operands)
    for seed in range(12):
        got = sm100.run_product(body, seed=seed, operands=operands)
        poison = got.view("uint32") == 0x7F7F7F7F
        assert (poison | (got == want)).all()
        kinds.add(bool(poison.any()))
    assert kinds == {False, True}


def test_registers_hold_poison_until_the_wait():
    body = changed(ONCE, WAIT_LOAD + sm100.show(N, "%rd4"), sm100.show(N, "%rd4") + WAIT_LOAD)
    body = changed(body, AFTER, AFTER + "".join(f"mov.u32 %d{i}, 0;" for i in range(N)))
    for seed in range(6):
        assert (sm100.run_product(body, seed=seed).view("uint32") == 0x7F7F7F7F).all()
