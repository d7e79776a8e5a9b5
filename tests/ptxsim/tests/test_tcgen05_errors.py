"""Misuse of tensor memory and tcgen05 that ends a launch, each beside a kernel that is fine."""

import numpy as np
import pytest
from ptxsim import gpu, sm100
from ptxsim.sm100 import AFTER, WAIT_LOAD, changed, found

CAPABILITY = "10.0"

N = 64
ONCE, PAIR = sm100.product(), sm100.product(2, N)
ALONE = sm100.start() + sm100.finish()
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 128;"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 128;"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
GET = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%d0}, [%r1];"
FREE = "bar.sync 0; @%p1 " + DEALLOC
COMMIT = sm100.commit(1)
READ = sm100.wait(0, "%r10") + AFTER + sm100.load(N, place="%r3") + WAIT_LOAD


MEMORY = {  # name: code, kernel, what is replaced, by what
    "ld behind the allocation": ("tmem-unallocated", ONCE, "[%r3];", "[%r3+65];"),
    "ld of columns that are not there": ("tmem-unallocated", ONCE, "[%r3];", "[%r3+500];"),
    "D behind the allocation": ("tmem-unallocated", ONCE, "block16 [%r1]", "block16 [%r1+72]"),
    "scales behind it": ("tmem-unallocated", ONCE, "%r30, %r1, 64", "%r30, %r1, 125"),
    "nothing allocated": ("tmem-unallocated", sm100.start(), ALLOC, "mov.u32 %r1, 0;" + GET),
    "used once it is free": ("tmem-unallocated", ONCE, AFTER, AFTER + FREE),
    "freed under way": ("tmem-unallocated", ONCE, "$issued:\n", "$issued:\n" + FREE),
    "never freed": ("tmem-leak", ALONE, DEALLOC, ""),
    "another size freed": ("tmem-dealloc", ALONE, DEALLOC, DEALLOC.replace("128", "64")),
    "another address freed": ("tmem-dealloc", ALONE, DEALLOC, "xor.b32 %r1, %r1, 32;" + DEALLOC),
    "freed twice": ("tmem-dealloc", ALONE, DEALLOC, DEALLOC + DEALLOC),
    "48 columns": ("tmem-alloc", ALONE, "[%r5], 128", "[%r5], 48"),
    "16 columns": ("tmem-alloc", ALONE, "[%r5], 128", "[%r5], 16"),
    "1024 columns": ("tmem-alloc", ALONE, "[%r5], 128", "[%r5], 1024"),
    "lanes that disagree": ("tmem-alloc", ALONE, "[%r5], 128", "[%r5], %r0"),
    "after relinquish": ("tmem-alloc", ALONE, RELINQUISH, RELINQUISH + ALLOC),
    "a larger one later": ("tmem-alloc", ALONE, ALLOC, ALLOC.replace("128", "64") + ALLOC),
    "another quarter's lanes": ("tmem-lanes", ONCE, "[%r3];", "[%r1];"),
    "half of a quarter": ("tmem-lanes", ONCE, "[%r3];", "[%r3+1048576];"),
    "lanes at different addresses": ("tmem-lanes", ONCE, "[%r3];", "[%r0];"),
    "D from a lane on": ("tmem-lanes", ONCE, "block16 [%r1]", "block16 [%r1+2097152]"),
    "cp from a lane on": ("tmem-lanes", ONCE, "warpx4 [%r30+0]", "warpx4 [%r30+2097152]"),
    "part of a warp": ("deadlock", ONCE, "tcgen05.ld", "@%p2 tcgen05.ld"),
    "lanes that have gone": ("diverged-aligned", ONCE, "tcgen05.ld", "@%p2 exit; tcgen05.ld"),
}
OPERANDS = {
    "a base offset": ("descriptor", ONCE, str(sm100.SW128), str(sm100.SW128 | 1 << 49)),
    "no version": ("descriptor", ONCE, str(sm100.SW128), str(sm100.SW128 & ~(1 << 46))),
    "an absolute offset": ("descriptor", ONCE, str(sm100.PLAIN), str(sm100.PLAIN | 1 << 52)),
    "far away": ("out-of-bounds", ONCE, "%r60, %r20, 96;", "%r60, %r20, 65536;"),
    "a commit too few": ("deadlock", ONCE, "[%r10], 1;", "[%r10], 2;"),
    "a commit to no barrier": ("mbarrier", ONCE, "b64 [%r10];\n$issued", "b64 [%r20];\n$issued"),
    "products under way at the end": ("exited-cta", ONCE, READ, ""),
    "D added to before it is written": (
        "uninitialised",
        ONCE,
        "setp.ne.u32 %p5, 0, 0;",
        "setp.eq.u32 %p5, 0, 0;",
    ),
    "A that was not kept": ("collector", ONCE, "block16 [", "block16.collector::a::use ["),
}
CASES = MEMORY | OPERANDS


@pytest.mark.parametrize("name", CASES)
def test_misuse_is_found(name):
    code, body, old, new = CASES[name]
    assert code in found(changed(body, old, new), severities="EWN")


INSTRUCTIONS = {
    "M of 64": (1, sm100.instruction(0, N)),
    "N of 264": (1, sm100.instruction(128, 264)),
    "e4m3": (1, sm100.instruction(128, N) ^ 1 << 8),
    "ue8m0": (1, sm100.instruction(128, N, b23=1)),
    "transposed": (1, sm100.instruction(128, N, b15=1)),
    "sparse": (1, sm100.instruction(128, N, b2=1)),
    "N of 8 for a pair": (2, sm100.instruction(256, 8)),
    "M of 128 for a pair": (2, sm100.instruction(128, N)),
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instruction_descriptors_are_checked(name):
    group, bits = INSTRUCTIONS[name]
    body = sm100.product(group, N, bits=bits)
    assert found(body, group, seeds=range(2)) == {"instruction-descriptor"}


def test_a_collector_that_was_filled_may_be_used():
    fill = changed(ONCE, "block16 [", "block16.collector::a::fill [")
    assert found(fill, severities="EWN") == set()


# --- Pairs ---

RANK = "mov.u32 %r40, %cluster_ctarank;"
PAIR_ALONE = RANK + sm100.start(group=2) + sm100.finish(group=2)
PAIRS = {  # name: code, kernel, CTAs
    "issued by the odd one": (
        "cta-pair",
        changed(PAIR, "%p6, %r40, 0, %p0", "%p6, %r40, 1, %p0"),
        2,
    ),
    "without a peer": ("cta-pair", PAIR_ALONE, 1),
    "different sizes": (
        "cta-pair",
        changed(
            PAIR_ALONE, "tcgen05.alloc", "mad.lo.s32 %r7, %r40, 128, 128; tcgen05.alloc"
        ).replace("[%r5], 128", "[%r5], %r7"),
        2,
    ),
    "allocated before a cluster barrier": (
        "cta-pair",
        changed(PAIR_ALONE, sm100.CLUSTER_BARRIER, ""),
        2,
    ),
    "freed before the peer has come": (
        "cta-pair",
        RANK
        + sm100.start(group=2).replace(
            "$allocated:\n        " + sm100.CLUSTER_BARRIER, "$allocated:"
        )
        + "@!%p1 bra $freed;"
        + DEALLOC.replace("group::1", "group::2")
        + "$freed:"
        + sm100.CLUSTER_BARRIER,
        2,
    ),
    "the peer never comes": (
        "deadlock",
        changed(PAIR_ALONE, "@!%p1 bra", "setp.eq.and.u32 %p1, %r40, 0, %p1; @!%p1 bra"),
        2,
    ),
    "the peer has exited": (
        "exited-cta",
        RANK + "setp.eq.u32 %p6, %r40, 1; @%p6 exit;" + sm100.multiply(2, N),
        2,
    ),
    "a commit to one that has exited": (
        "commit-exited",
        sm100.start(32, 2)
        + RANK
        + sm100.finish(32, 2)
        + "setp.eq.u32 %p6, %r40, 1; @%p6 exit;"
        + sm100.commit(2),
        2,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name):
    code, body, group = PAIRS[name]
    assert code in found(body, group)


@pytest.mark.parametrize("seed", range(10))
def test_different_sizes_are_found_whether_or_not_one_goes_ahead(seed):
    code, body, group = PAIRS["different sizes"]
    assert code in found(body, group, seeds=[seed])


def test_a_commit_that_nobody_waits_for_ends_nothing():
    """Public kernels commit to barriers of their own CTA and exit: a warning, and D is right."""
    body = sm100.start(barriers=("full", "empty")) + ONCE[len(sm100.start()) :]
    body = changed(body, "$issued:", sm100.commit(1, "%r11") + "\n$issued:")
    assert found(body, seeds=range(40)) == {"commit-exited"}
    operands = sm100.product_operands(1, N, 0)
    got = sm100.run_product(body, operands=operands)
    assert (got == sm100.run_product(ONCE, operands=operands)).all()
    heard = changed(body, sm100.finish(), sm100.wait("heard", "%r11") + sm100.finish())
    assert found(heard, seeds=range(40)) == set()


def test_a_pair_that_only_allocates_is_clean():
    assert found(PAIR_ALONE, 2, seeds=range(30)) == set()


# --- Allocation ---

FOUR = """
    mov.u32 %r0, %tid.x;
    shr.u32 %r2, %r0, 5;
    shl.b32 %r6, %r2, 2;
    mov.u32 %r5, address;
    add.s32 %r5, %r5, %r6;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], {columns};
    ld.shared.u32 %r1, [%r5];
    {between}
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, {columns};
"""


def test_alloc_waits_until_columns_are_free():
    """Four warps want some, together more than there is or not."""
    assert found(FOUR.format(columns=512, between="nanosleep.u32 9;")) == set()
    assert found(FOUR.format(columns=128, between="bar.sync 0;")) == set()
    assert found(FOUR.format(columns=256, between="bar.sync 0;")) == {"deadlock"}


@pytest.mark.parametrize("anywhere", (0, 1))
def test_allocations_lie_anywhere(anywhere):
    gpu.configure(cc="10.0", tmem_anywhere=anywhere)
    body = sm100.start(32) + "st.global.u32 [%rd4], %r1;" + sm100.finish(32)
    places = {int(sm100.run_product(body, seed=seed).view(np.uint32)[0, 0]) for seed in range(12)}
    assert len(places) > 4 if anywhere else places == {0}
    gpu.configure(cc="10.0", tmem_anywhere=1)


# --- What is not modelled is an error with its line ---

MMA = "tcgen05.mma.cta_group::1.kind::"
REJECTED = {
    "tcgen05.shift.cta_group::1.down [%r1];": "not modelled",
    ALLOC + DEALLOC.replace("group::1", "group::2"): "same .cta_group",
    MMA + "mxf8f6f4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;": "kind",
    MMA + "mxf4nvf4.block_scale.scale_vec::2X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;": "4X",
    MMA + "f16 [%r1], %rd1, %rd2, %r2, {%r1,%r1,%r1,%r1}, %p1;": "",
    "tcgen05.ld.sync.aligned.32x32b.x3.b32 {%r1,%r2,%r3}, [%r4];": "count",
    "tcgen05.ld.sync.aligned.16x64b.x2.pack::16b.b32 {%r1,%r2}, [%r4];": "16b",
    "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1}, [%r4];": "registers",
    "tcgen05.cp.cta_group::1.32x128b [%r1], %rd1;": "shape",
    "tcgen05.cp.cta_group::1.128x128b.b8x16.b4x16_p64 [%r1], %rd1;": "decompression",
}


@pytest.mark.parametrize("text", REJECTED)
def test_what_is_not_modelled_is_rejected(text):
    with pytest.raises(gpu.SimError, match=f"line .*unknown instruction.*{REJECTED[text]}"):
        found(text)


def test_older_gpus_have_none_of_it():
    gpu.configure(cc="9.0")
    with pytest.raises(gpu.SimError, match="compute capability 10.0"):
        found("tcgen05.fence::before_thread_sync;")
