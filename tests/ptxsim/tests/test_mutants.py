"""Kernels with one synchronisation spoiled: the simulated GPU must notice.

python -m tests.ptxsim mutants tries larger samples.
"""

import json
import os
import signal

import anchors
import pytest
from ptxsim import build, gpu
from ptxsim.campaigns import mutants
from ptxsim.campaigns.mutations import LOGIC
from ptxsim.campaigns.served_kernel import HELPERS
from ptxsim.marks import COMPILES
from rows import ROWS

pytestmark = COMPILES

SAMPLE = {"gemm": 3, "sm100_kind_f16": 3}  # 6 of the others
SAMPLE |= {"sm100_kind_f16_rows": 3, "sm100_kind_f16_gated": 3}
SAMPLE |= {"sm90_experts": 3, "sm90_experts_gated": 3}
SAMPLE |= {name: 3 for group in mutants.GROUPS.values() for name in group}

TEXT = gpu.kernel(
    """
    mbarrier.init.shared::cta.b64 [%r2], 4;
    @%p0 bra $on;
    mbarrier.init.shared::cta.b64 [%r3], %r7;
    $on:
    bar.sync 0;
    { .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%r2], %r8;
    selp.u32 %r9, 1, 0, p; }
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    fence.acq_rel.gpu;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
    { .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%r3], 1;
    selp.u32 %r9, 1, 0, p; }
    """
)


@pytest.mark.parametrize("row", mutants.KEPT)
def test_what_is_kept_has_no_survivor_that_nobody_explained(row):
    kept = json.loads(mutants.RESULTS[row].read_text())
    assert set(kept) == {name for group in mutants.KEPT[row] for name in mutants.GROUPS[group]}
    for name, counts in kept.items():
        assert counts["caught"] > 0 and set(counts["survivors"]) <= set(mutants.EQUIVALENT[name])


def places_of(row):
    """All statements of a row's kernels and of what kernels share."""
    folders = (build.CSRC / row, build.CSRC / "cuda")
    paths = [path for folder in folders for path in sorted(folder.rglob("*.cu*"))]
    named = [anchors.named(path.read_text(), mutants.is_lasting) for path in paths]
    return {name for statements in named for _, name in statements}


@pytest.mark.parametrize("name", mutants.EQUIVALENT)
def test_every_explanation_is_of_a_place_in_the_sources(name):
    """Where a function gains or loses statements, someone looks at what was said of them again."""
    row = {"wgmma": "sm90", "tcgen05": "sm100"}.get(group := name.partition("_")[0], group)
    row = row if row in ROWS else "sm80"
    explained = {key.partition(", ") for key in mutants.EQUIVALENT[name]}
    assert {place for _, _, place in explained} <= places_of(row)
    assert {mutation for mutation, _, _ in explained} <= mutants.MUTATIONS.keys() | LOGIC.keys()


def test_every_helper_is_called_in_a_kernel():
    texts = [path.read_text() for path in build.CSRC.rglob("*.cu")]
    lines = [line.strip() for text in texts for line in text.split("\n")]
    for helper in HELPERS:
        assert any(line.startswith(helper) for line in lines), helper


def test_a_place_keeps_its_name():
    """Where comments, variables and lines change; not where the function has another like it."""
    source = """
struct stage { int at; __device__ void advance() { at = at + 1; } };
template <typename T> __device__ void store(T slot, const span &of = {})
{
    if (slot.full) __syncwarp(); /* one */
    each(slot, [&](int i) { mbarrier_wait(slot.full[i]); slot.at = i; });
    __syncwarp();
}
"""
    renamed = source.replace("slot", "stage_at_hand").replace(" /* one */", "\n    // two\n  ")
    names = [name for _, name in anchors.named(source, mutants.is_lasting)]
    assert names == [name for _, name in anchors.named(renamed, mutants.is_lasting)]
    assert names == ["advance: statement (1 of 2)", "advance: statement (2 of 2)", "",
                     "store: statement (1 of 3)", "store: __syncwarp (1 of 2)",
                     "store: statement (2 of 3)", "store: mbarrier_wait",
                     "store: statement (3 of 3)", "store: __syncwarp (2 of 2)", ""]  # fmt: skip
    more = source.replace("__syncwarp();\n}", "__syncwarp(); __syncwarp();\n}")
    assert "store: __syncwarp (1 of 2)" not in [
        n for _, n in anchors.named(more, mutants.is_lasting)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", mutants.TARGETS)
def test_mutants_are_noticed(name, campaign):
    sample = campaign.times(SAMPLE.get(name, 6))
    explained = set(mutants.EQUIVALENT.get(name, {}))
    for seeds in (3, 60):  # few schedules and draws notice nearly all
        result = mutants.campaign(name, sample, seed=campaign.seed, seeds=seeds)
        if set(result["survivors"]) <= explained:
            break
    assert result["caught"] > 0
    assert set(result["survivors"]) <= explained


@pytest.mark.parametrize(
    "name, becomes",
    [
        ("no barrier", [""]),
        ("no cluster barrier", ["\n    "]),
        ("an arrival more expected", ["add.s32 t, 4, 1;", "add.s32 t, %r7, 1;"]),
        ("an arrival less expected", ["add.s32 t, 4, -1;", "add.s32 t, %r7, -1;"]),
        ("the other phase", ["xor.b32 t, %r8, 1;", "xor.b32 t, 1, 1;"]),
        ("no wait at the mbarrier", 2 * ["setp.eq.u32 p, 0, 0;"]),
        ("waits for the next barrier", ["[%r2+8]", "[%r3+8]"]),
        ("arrives for its CTA alone", ["arrive.release.cta"]),
        ("waits for its CTA alone", ["acquire.cta"]),
        ("a fence for its CTA alone", ["fence.acq_rel.cta"]),
        ("no fence of memory", [""]),
    ],
)
def test_a_mutation_finds_its_places(name, becomes):
    """And what becomes of them is PTX that loads."""
    made = [m for m in mutants.mutants(TEXT, "f") if m.name == name]
    assert len(made) == len(becomes)
    for mutant, part in zip(made, becomes, strict=True):
        assert part in mutant.becomes
        assert (
            TEXT.split("\n")[mutant.line - 1] != mutant.applied(TEXT).split("\n")[mutant.line - 1]
        )
        for text in (mutant.applied(TEXT), mutant.reached(TEXT)):
            gpu.Module(text).kernel("f")


def test_a_crash_in_a_child_has_its_name():
    """And what it raises, or says, comes back."""
    with pytest.raises(mutants.CrashedError, match="SIGSEGV"):
        mutants.in_a_child(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        mutants.in_a_child(lambda: str(1 // 0))
    with pytest.raises(RuntimeError, match="too long"):
        mutants.in_a_child(lambda: os.kill(os.getpid(), signal.SIGPROF))
    assert mutants.in_a_child(lambda: "race out-of-bounds") == "race out-of-bounds"


def test_a_sample_takes_from_every_kind():
    made = [m for m in mutants.mutants(TEXT, "f")]
    kinds = {m.name for m in made}
    drawn = list(mutants.drawn(made, seed=3))
    assert {m.name for m in drawn[: len(kinds)]} == kinds and len(drawn) == len(made)
    assert drawn == list(mutants.drawn(made, seed=3)) != list(mutants.drawn(made, seed=4))
