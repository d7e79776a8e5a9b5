"""The thread that issues the MMAs of an sm100 GEMM executes few instructions a stage.

A stage's MMAs take 256 to 512 cycles. Beside them one thread waits for the stage, copies its scale
factors, issues the MMAs and commits. Counted is a full stage's way round the loop in machine code,
the longest one that finds each barrier completed.
"""

from dataclasses import replace

import disassembly
import pytest

import nvfp4kern

MISSING = [tool for tool in ("cuobjdump", "nvdisasm") if not disassembly.find_tool(tool)]

MMA, COMMIT = "UTCOMMA", "UTCBAR"
FAMILIES = ["gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm"]
FAMILIES += ["list_gemm", "activated_grouped_gemm"]
MOST = 110
WIDE_DUAL = [
    "sm100_dual_gemm_p192",
    "sm100_dual_gemm_p192m2",
    "sm100_grouped_dual_gemm_p192",
]
MOST_OF_WIDE_DUAL = 125
"""Two atom rows of weights and two of tokens are 16 copies, for 8 MMAs. Others have 8 or 12."""


def numbers(kernel, word):
    return {i for i, one in enumerate(kernel) if word in one.text}


def longest_way(kernel, start, end, through):
    """Instructions from one to another by others, which have no loop; 0 if none lead there."""
    longest, reached, executed = 0, {start}, 0
    while reached:
        reached = {j for i in reached for j in kernel[i].follows}
        executed += 1
        if end in reached:
            longest = executed
        reached &= through
    return longest


def full_stage(kernel):
    """(MMAs, instructions from the first of them to the next stage's)

    A commit ends a stage, and another one a tile. Loops between commits wait again, or issue the
    MMAs of a last stage, which has fewer.
    """
    commits = numbers(kernel, COMMIT)
    between = [replace(one, follows=[i for i in one.follows if i not in commits]) for one in kernel]
    straight = set(range(len(kernel))) - commits - disassembly.in_loops(between)
    mmas = numbers(kernel, MMA) & straight
    if not mmas:
        raise ValueError("no full stage: all MMAs are in loops")
    first = min(mmas)
    there = {i: longest_way(kernel, first, i, straight) for i in commits}
    (commit,) = (i for i in commits if there[i])
    return len(mmas), there[commit] + longest_way(kernel, commit, first, straight)


PROGRAM = {  # what may come behind each
    "tile": ["step"],
    "step": ["wait"],
    "wait": ["wait again", "stage"],
    "wait again": ["wait again", "stage"],
    "stage": ["UTCOMMA first", "rest"],
    "rest": ["UTCOMMA rest", "UTCBAR stage"],
    "UTCOMMA rest": ["rest"],
    "UTCOMMA first": ["longer", "UTCOMMA second"],
    "longer": ["UTCOMMA second"],
    "UTCOMMA second": ["UTCBAR stage"],
    "UTCBAR stage": ["step", "last step"],
    "last step": ["UTCBAR tile"],
    "UTCBAR tile": ["tile", "exit"],
    "exit": [],
}


def instructions(program):
    names = list(program)
    return [
        disassembly.Instruction(name, [names.index(other) for other in follows])
        for name, follows in program.items()
    ]


def test_a_full_stage_is_counted_by_its_longest_way():
    # first, longer, second, commit; step, wait, stage
    assert full_stage(instructions(PROGRAM)) == (2, 7)


def test_a_stage_whose_mmas_are_all_in_loops_is_no_full_one():
    rolled = PROGRAM | {"UTCOMMA first": ["UTCOMMA second"], "longer": []}
    rolled["UTCOMMA second"] = ["UTCOMMA first", "UTCBAR stage"]
    with pytest.raises(ValueError, match="no full stage: all MMAs are in loops"):
        full_stage(instructions(rolled))


@pytest.mark.slow
@pytest.mark.skipif(
    bool(MISSING),
    reason=f"no {' and no '.join(MISSING)}: wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm",
)
def test_the_thread_that_issues_mmas_executes_few_instructions_a_stage():
    kernels = disassembly.kernels_of(nvfp4kern._C.__file__, archs=("sm_100f",))
    if not kernels:
        pytest.skip("a build without sm100")
    found = {name: full_stage(one) for name, one in kernels.items() if numbers(one, MMA)}
    assert {name.rpartition("_")[0] for name in found} == {f"sm100_{name}" for name in FAMILIES}
    most = dict.fromkeys(found, MOST) | dict.fromkeys(WIDE_DUAL, MOST_OF_WIDE_DUAL)
    assert most.keys() == found.keys()
    for name, (mmas, executed) in sorted(found.items()):
        assert mmas == (8 if "dual" in name else 4), name
        assert executed <= most[name], name
