"""Scopes of releases and acquires (PTXSIM_SCOPES): what is too weak is found, what is stronger than
needed is counted."""

import numpy as np
import pytest
from ptxsim import gpu, sm100

CAPABILITY = "10.0"

SHARED = """
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 ready;
"""
START = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tile;
    mov.u32 %r2, full;
    mov.u32 %r3, ready;
    mov.u32 %r4, %cluster_ctarank;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.and.u32 %p1, %r4, 0, %p0;
    setp.eq.and.u32 %p2, %r4, 1, %p0;
    @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
    @%p0 mbarrier.init.shared::cta.b64 [%r3], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r5, %r2, 0;
    mov.u32 %r8, %cluster_nctarank;
    sub.u32 %r8, %r8, 1;
    mapa.shared::cluster.u32 %r6, %r1, %r8;
"""  # r5: the barrier of CTA 0, r6: the tile of CTA 1; p1, p2: the first thread of each
END = """
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
"""


def found(body, scopes=1, grid=2, cluster=2, block=64, seeds=range(8)):
    gpu.configure(cc=CAPABILITY, scopes=scopes)
    gpu.clear()
    module = gpu.Module(gpu.kernel(START + body + END, ["p"], SHARED))
    for seed in seeds:
        gpu.seed(seed)
        memory = gpu.Memory(np.zeros(256, np.uint32))
        module.launch("f", memory, grid=grid, cluster=cluster, block=block)
    return gpu.findings()


def wait(acquire, barrier="%r2", name="told"):
    return f"""
        ${name}: mbarrier.try_wait.parity.{acquire}.shared::cta.b64 %p9, [{barrier}], 0;
        @!%p9 bra ${name};
    """


def handed(
    release, acquire, put="st.shared.u32 [%r1], 7;", get="ld.shared::cluster.u32 %r9, [%r6];"
):
    """CTA 1 does something and arrives at CTA 0, which waits and does something with it."""
    return f"""
        @!%p2 bra $on;
        {put}
        mbarrier.arrive.{release}.shared::cluster.b64 _, [%r5];
        $on: @!%p1 bra $end;
        {wait(acquire)}
        {get}
        $end:
    """


CLUSTER = ("release.cluster", "acquire.cluster")
NARROW = (
    ("release.cta", "acquire.cluster"),
    ("release.cluster", "acquire.cta"),
    ("release.cta", "acquire.cta"),
)
RELAXED = (
    ("relaxed.cluster", "acquire.cluster"),
    ("release.cluster", "relaxed.cluster"),
)


def test_a_release_and_an_acquire_of_the_cluster_order_its_ctas():
    assert found(handed(*CLUSTER)) == set()


@pytest.mark.parametrize("order", NARROW + RELAXED)
def test_weaker_ones_do_not(order):
    assert found(handed(*order)) == {"race"}
    assert found(handed(*order), scopes=0) == (set() if order in NARROW else {"race"})


def test_a_release_and_an_acquire_are_of_the_cta_unless_they_say_more():
    default = handed(*CLUSTER).replace("arrive.release.cluster", "arrive")
    assert found(default) == {"race"}
    assert found(handed(*CLUSTER).replace("parity.acquire.cluster", "parity")) == {"race"}


def test_a_release_tells_what_its_thread_has_learned():
    """Of the other warp of its CTA by a barrier, which the release of the cluster passes on."""
    body = """
        setp.eq.u32 %p3, %r0, 32;
        setp.eq.and.u32 %p3, %r4, 1, %p3;
        @%p3 st.shared.u32 [%r1], 7;
        bar.sync 0;
    """
    body += handed(*CLUSTER, put="")
    assert found(body) == set()
    assert found(body.replace("arrive.release.cluster", "arrive.release.cta")) == {"race"}


def test_threads_of_one_cta_need_no_more_than_its_scope():
    body = """
        setp.eq.u32 %p3, %r0, 32;
        @%p3 st.shared.u32 [%r1], 7;
        @%p3 mbarrier.arrive.release.cta.shared::cta.b64 _, [%r2];
        @!%p0 bra $end;
    """
    body += wait("acquire.cta") + "ld.shared.u32 %r9, [%r1]; $end:"
    assert found(body) == set()


def test_a_read_is_over_where_any_release_says_so():
    """CTA 0 may write then; a relaxed arrival may overtake the read."""
    over = ("ld.shared.u32 %r9, [%r1];", "st.shared::cluster.u32 [%r6], 7;")
    assert found(handed("release.cta", "acquire.cta", *over)) == set()
    assert found(handed("relaxed.cluster", "acquire.cta", *over)) == {"race"}


SENT = """
    mapa.shared::cluster.u32 %r7, %r1, 0;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p2 st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r7], %r0, [%r5];
    @!%p1 bra $end;
"""


def test_what_another_cta_stores_asynchronously_wants_an_acquire_of_the_cluster():
    """PTX: complete_tx releases to the cluster."""
    read = "ld.shared.u32 %r9, [%r1]; $end:"
    assert found(SENT + wait("acquire.cluster") + read) == set()
    assert found(SENT + wait("acquire.cta") + read) == {"race"}


def test_a_multicast_wants_none():
    body = f"""
        @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
        barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
        mov.u16 %h1, 3;
        @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
            [%r1], [%rd0], 128, [%r2], %h1;
        {wait("acquire.cta")}
        ld.shared.u32 %r9, [%r1];
    """
    assert found(body) == set()


# --- Products of a pair: the even CTA's read what the odd one has brought ---

N = 64
SIZES = {"a": 128 * sm100.K // 2, "b": N // 2 * sm100.K // 2, "sfa": 2048, "sfb": 2048}


def copied(order, acquire="acquire.cta"):
    """Copies bring the operands; the odd CTA waits for its own and arrives at the even one."""
    body = sm100.start(128, 2, barriers=("full", "empty"), arrivals=(1, 2))
    body += "mov.u32 %r40, %cluster_ctarank; setp.eq.and.u32 %p7, %r40, 1, %p0;"
    for i, (name, size) in enumerate(SIZES.items()):
        body += f"mov.u32 %r{20 + i}, {name};"
        if name != "sfb":
            body += f"mul.wide.u32 %rd40, %r40, {size}; add.s64 %rd{i}, %rd{i}, %rd40;"
    expected = sum(SIZES.values())
    body += f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], {expected};"
    body += "@%p7 mbarrier.arrive.shared::cta.b64 _, [%r11];"
    for i, size in enumerate(SIZES.values()):
        body += f"""
            @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
                [%r{20 + i}], [%rd{i}], {size}, [%r11];
        """
    tell = wait("acquire.cta", "%r11", "own") + "mapa.shared::cluster.u32 %r45, %r11, 0;"
    tell += f"mbarrier.arrive.{order}.shared::cluster.b64 _, [%r45];"
    multiply = sm100.copy_scales(2, N) + sm100.multiply(2, N) + sm100.commit(2)
    return (
        body
        + f"@!%p7 bra $relayed; {tell} $relayed:"
        + sm100.issuer(2, wait(acquire, "%r11", "both") + multiply)
        + sm100.wait(0, "%r10")
        + sm100.AFTER
        + sm100.load(N, place="%r3")
        + sm100.WAIT_LOAD
        + sm100.show(N, "%rd4")
        + sm100.finish(128, 2)
    )


@pytest.mark.parametrize("scopes", (0, 1))
@pytest.mark.parametrize("order", ("relaxed.cluster", "release.cta", "release.cluster"))
def test_any_arrival_passes_on_that_copies_have_landed(order, scopes):
    """To products, as DeepGEMM and CUTLASS rely on."""
    gpu.configure(cc=CAPABILITY, scopes=scopes)
    assert sm100.found(copied(order), 2) == set()
    assert sm100.found(copied(order, "relaxed.cluster"), 2) == {"race"}


def written(order):
    """The odd CTA writes a word of B over what the copy has brought."""
    return sm100.changed(
        copied(order, "acquire.cluster"),
        "mapa.shared::cluster.u32 %r45",
        "st.shared.u32 [%r21], 0; fence.proxy.async.shared::cta; mapa.shared::cluster.u32 %r45",
    )


def test_what_threads_have_stored_wants_a_release():
    gpu.configure(cc=CAPABILITY, scopes=1)
    assert sm100.found(written("release.cluster"), 2) == set()
    for order in ("release.cta", "relaxed.cluster"):
        assert "race" in sm100.found(written(order), 2)


def test_that_fenced_stores_want_any_release_is_a_setting():
    """Public kernels count on it, PTX does not say so."""
    gpu.configure(cc=CAPABILITY, scopes=1, fenced_stores=1)
    assert sm100.found(written("release.cta"), 2) == set()
    assert "race" in sm100.found(written("relaxed.cluster"), 2)
    unfenced = sm100.changed(written("release.cta"), "fence.proxy.async.shared::cta;", "")
    assert "race" in sm100.found(unfenced, 2)


# --- What is counted ---


def counts(body, **options):
    """{opcode: (executed, needed)}"""
    assert found(body, seeds=[0], **options) == set()
    places = gpu.report()["scopes"]
    return {p["opcode"].partition(".shared")[0]: (p["executed"], p["needed"]) for p in places}


ARRIVE, WAIT = "mbarrier.arrive.release.cluster", "mbarrier.try_wait.parity.acquire.cluster"


def test_what_is_needed_is_counted():
    of = counts(handed(*CLUSTER))
    assert of == {ARRIVE: (1, 1), WAIT: (1, 1)}
    assert counts(handed(*CLUSTER), scopes=0) == {}


def test_what_is_stronger_than_needed_is_counted():
    over = ("ld.shared.u32 %r9, [%r1];", "st.shared::cluster.u32 [%r6], 7;")
    assert counts(handed("release.cluster", "acquire.cluster", *over))[ARRIVE] == (1, 0)
    assert counts(handed("release.cta", "acquire.cluster", *over)) == {WAIT: (1, 0)}
    own = handed(*CLUSTER).replace("[%r5]", "[%r2]").replace("%p2 bra", "%p1 bra")
    own = own.replace("[%r6]", "[%r1]").replace("ld.shared::cluster", "ld.shared")
    assert counts(own) == {ARRIVE: (1, 0), WAIT: (1, 0)}
    gpu.configure(cc=CAPABILITY, scopes=1)
    gpu.clear()
    assert sm100.found(copied("release.cluster"), 2, seeds=[0]) == set()
    (arrival,) = (p for p in gpu.report()["scopes"] if p["opcode"].startswith(ARRIVE))
    assert (arrival["executed"], arrival["needed"]) == (1, 0)


def test_a_cluster_barrier_releases_what_somebody_needs_or_nothing():
    meet = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    name = meet.partition(";")[0]
    read = "@%p1 ld.shared::cluster.u32 %r9, [%r6];"
    assert counts("@%p2 st.shared.u32 [%r1], 7;" + meet + read) == {name: (128, 1)}
    assert counts("@%p2 st.shared.u32 [%r1+4], 7;" + meet + "@%p1 st.shared.u32 [%r1], 7;") == {
        name: (128, 0)
    }


# --- Flags in global memory ---

PLACE = """
    mov.u32 %r10, %ctaid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.s64 %rd1, %rd0, %rd1;
    setp.eq.u32 %p5, %r10, 0;
"""


def flagged(before, put, get, behind):
    """CTA 0 stores a word a thread and sets a flag by one thread; CTA 1 waits for it and loads."""
    return f"""
        {PLACE}
        @!%p5 bra $reader;
        st.global.u32 [%rd1], %r0;
        bar.sync 0;
        @!%p0 bra $end;
        {before}
        {put} [%rd0+512], 1;
        bra $end;
        $reader:
        @!%p0 bra $met;
        $again: {get} %r11, [%rd0+512];
        setp.ne.u32 %p6, %r11, 1;
        @%p6 bra $again;
        {behind}
        $met: bar.sync 0;
        ld.global.u32 %r12, [%rd1];
        $end:
    """


FENCE = "fence.acq_rel.{};"
SET, GET = "st.relaxed.{}.global.u32", "ld.relaxed.{}.global.u32"
BY_FENCES = (FENCE, SET, GET, FENCE)
BY_ACCESSES = ("", "st.release.{}.global.u32", "ld.acquire.{}.global.u32", "")
BY_ATOMICS = (FENCE, "red.relaxed.{}.global.add.u32", GET, "fence.sc.{};")


@pytest.mark.parametrize("forms", (BY_FENCES, BY_ACCESSES, BY_ATOMICS))
def test_flags_reach_as_far_as_all_their_scopes(forms):
    def codes(scope, weak=None, to="cta", cluster=1):
        scopes = [to if i == weak else scope for i in range(4)]
        body = flagged(*(form.format(s) for form, s in zip(forms, scopes, strict=True)))
        return found(body, cluster=cluster)

    assert codes("gpu") == codes("sys") == set()
    assert codes("cluster", cluster=2) == set()
    assert codes("cluster") == {"race"}
    for weak in (i for i, form in enumerate(forms) if form):
        assert codes("gpu", weak) == {"race"}
        assert codes("gpu", weak, "cluster") == {"race"}
        assert codes("gpu", weak, "cluster", cluster=2) == set()


def test_a_flag_passes_on_what_another_told():
    """CTA 0 tells 1, which tells 2, which loads what 0 has stored."""

    def codes(first, second):
        body = f"""
            {PLACE}
            mul.wide.u32 %rd2, %r10, 4;
            add.s64 %rd2, %rd0, %rd2;
            @!%p0 bra $end;
            @!%p5 bra $again;
            st.global.u32 [%rd0], 7;
            {first}
            st.relaxed.gpu.global.u32 [%rd0+516], 1;
            bra $end;
            $again: ld.relaxed.gpu.global.u32 %r11, [%rd2+512];
            setp.ne.u32 %p6, %r11, 1;
            @%p6 bra $again;
            {second}
            st.relaxed.gpu.global.u32 [%rd2+516], 1;
            setp.ne.u32 %p6, %r10, 2;
            @%p6 bra $end;
            ld.global.u32 %r12, [%rd0];
            $end:
        """
        return found(body, grid=3, cluster=1)

    assert codes("fence.acq_rel.gpu;", "fence.acq_rel.gpu;") == set()
    assert codes("fence.acq_rel.gpu;", "fence.acq_rel.cta;") == {"race"}
    assert codes("fence.acq_rel.cta;", "fence.acq_rel.gpu;") == {"race"}


def test_flags_want_fences_on_both_sides():
    gpu_wide = [form.format("gpu") for form in BY_FENCES]
    assert found(flagged("", *gpu_wide[1:]), cluster=1) == {"race"}
    assert found(flagged(*gpu_wide[:3], ""), cluster=1) == {"race"}
    assert found(flagged("", *gpu_wide[1:3], ""), scopes=0, cluster=1) == set()
    plain = flagged(
        "fence.acq_rel.gpu;", "st.volatile.global.u32", "ld.volatile.global.u32", "membar.gl;"
    )
    assert found(plain, cluster=1) == set()


def test_fences_of_the_gpu_are_counted():
    of = counts(flagged(*(form.format("gpu") for form in BY_FENCES)), cluster=1)
    assert of["fence.acq_rel.gpu"][1] > 0
    assert counts("fence.acq_rel.gpu;")["fence.acq_rel.gpu"] == (128, 0)


def test_atomics_pass_on_what_others_told_before():
    """Each CTA stores and counts; the last one loads what all have stored."""

    def codes(fence):
        body = f"""
            mov.u32 %r10, %ctaid.x;
            mul.wide.u32 %rd1, %r10, 4;
            add.s64 %rd1, %rd0, %rd1;
            @!%p0 bra $end;
            st.global.u32 [%rd1], 7;
            {fence}
            atom.global.add.u32 %r11, [%rd0+512], 1;
            {fence}
            setp.ne.u32 %p6, %r11, 3;
            @%p6 bra $end;
            ld.global.v4.u32 {{%r20,%r21,%r22,%r23}}, [%rd0];
            $end:
        """
        return found(body, grid=4, cluster=1)

    assert codes("fence.acq_rel.gpu;") == set()
    assert codes("fence.acq_rel.cta;") == codes("") == {"race"}
