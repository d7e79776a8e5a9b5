"""PTX spoiled mechanically, one place at a time: what keeps asynchronous work in order.

A mutation is a pattern of one instruction (or of a few, with nothing but `.loc` and comments in
between) and what becomes of it. Registers that a mutation needs are declared in a block of its own.
"""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    name: str
    line: int  # of the PTX
    start: int
    end: int
    becomes: str

    def applied(self, text):
        return text[: self.start] + self.becomes + text[self.end :]

    def reached(self, text):
        """With a trap in its place instead: what no test executes cannot be noticed."""
        return text[: self.start] + "trap; " + text[self.start :]


def body(text, kernel):
    """From where to where a kernel goes."""
    begin = text.index(f".entry {kernel}(")
    return begin, text.index("\n}", begin)


def mutants(text, kernel, mutations):
    """Every place of a kernel where one of `mutations` applies."""
    begin, end = body(text, kernel)
    for name, (pattern, becomes) in mutations.items():
        for match in re.compile(pattern).finditer(text, begin, end):
            spoiled = becomes(match) if callable(becomes) else match.expand(becomes)
            line = text.count("\n", 0, match.start()) + 1
            yield Mutant(name, line, match.start(), match.end(), spoiled)


def source_of(text, mutant):
    """The kernel file and the line of it (with the next one) that a mutant is of."""
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', text))
    location = re.findall(r"\.loc\s+(.*)", text[: mutant.start])[-1]
    for file, line in re.findall(r"(?:^|inlined_at )(\d+) (\d+)", location):
        if files[file].endswith((".cu", "_tile.cuh")):
            source = Path(files[file])
            here, after = source.read_text().split("\n")[int(line) - 1 : int(line) + 1]
            return f"{source.name}: {here.strip()} {after.strip()}"
    raise ValueError(f"line {mutant.line}, {location}: not of a kernel file")


def changed(kind, operation, operand, instruction):
    """An instruction whose operand t is `operand` after an operation with a number."""
    return f"{{ .reg .{kind} t; {operation.format(f't, {operand}')}; {instruction} }}"


def add(operand, number, instruction, kind="b32"):
    return changed(kind, f"add.s{kind[1:]} {{}}, {number}", operand, instruction)


REGISTER = r"(%r\d+)"
WAIT = rf"(mbarrier\.try_wait\.parity\S* (%?\w+), \[){REGISTER}(\], )(%r\d+|\d+);"
COPY = (
    rf"(cp\.async\.bulk\.\S*complete_tx::bytes\S* \[){REGISTER}(\], [^;]*?\[){REGISTER}(\][^;]*;)"
)
WRAP = r"(setp\.eq\.s32\s+(%p\d+), %r\d+, )(\d+)(;\s+selp\.u32\s+%r\d+, )1(, 0, \2;)"

# What sm_90 has and sm_100 too.
ASYNC = {
    "no wait": (WAIT, r"setp.eq.u32 \2, 0, 0;"),
    "the other phase": (
        WAIT,
        lambda m: changed("b32", "xor.b32 {}, 1", m[5], f"{m[1]}{m[3]}{m[4]}t;"),
    ),
    "waits for the next barrier": (WAIT, r"\1\3+8\4\5;"),
    "waits without acquiring": (
        WAIT,
        lambda m: re.sub(r"\.acquire", ".relaxed", m[0]),
    ),
    "an arrival more expected": (
        r"(mbarrier\.init\S* \[%r\d+\], )(%r\d+|\d+);",
        lambda m: add(m[2], 1, f"{m[1]}t;"),
    ),
    "an arrival less expected": (
        r"(mbarrier\.init\S* \[%r\d+\], )(%r\d+|\d+);",
        lambda m: add(m[2], -1, f"{m[1]}t;"),
    ),
    "no arrival": (r"mbarrier\.arrive\.(?!expect_tx)\S* _, \[%r\d+\];", ""),
    "an arrival more": (r"mbarrier\.arrive\.(?!expect_tx)\S* _, \[%r\d+\];", r"\g<0> \g<0>"),
    "arrives without releasing": (
        r"(mbarrier\.arrive\.)release(\.(?!expect_tx)\S* _, \[%r\d+\];)",
        r"\1relaxed\2",
    ),
    "arrives at the next barrier": (
        rf"(mbarrier\.arrive\.\S* _, \[){REGISTER}(\][^;]*;)",
        r"\1\2+8\3",
    ),
    "16 bytes more expected": (
        r"(mbarrier\.arrive\.expect_tx\S* _, \[%r\d+\], )(%r\d+|\d+);",
        lambda m: add(m[2], 16, f"{m[1]}t;"),
    ),
    "16 bytes less expected": (
        r"(mbarrier\.arrive\.expect_tx\S* _, \[%r\d+\], )(%r\d+|\d+);",
        lambda m: add(m[2], -16, f"{m[1]}t;"),
    ),
    "no copy": (COPY, ""),
    "copies behind its place": (COPY, r"\1\2+4096\3\4\5"),
    "copies tell the next barrier": (COPY, r"\1\2\3\4+8\5"),
    "copies to other CTAs": (
        r"(cp\.async\.bulk\.\S*multicast::cluster [^;]*, )(%rs\d+);",
        lambda m: changed("b16", "xor.b16 {}, 2", m[2], f"{m[1]}t;"),
    ),
    "no proxy fence": (r"fence\.proxy\.async\S*;", ""),
    "no fence of barriers": (r"fence\.mbarrier_init\S*;", ""),
    "no cluster barrier": (
        r"barrier\.cluster\.arrive\S*;([^;]*)barrier\.cluster\.wait\S*;",
        r"\1",
    ),
    "the cluster barrier releases nothing": (r"(barrier\.cluster\.arrive\.)release", r"\1relaxed"),
    "no warp barrier": (r"bar\.warp\.sync\s+-1;", ""),
    "no barrier": (r"\bbar\.sync\s+[^;]*;", ""),
    "no group": (r"cp\.async\.bulk\.commit_group;", ""),
    "no wait for groups": (r"cp\.async\.bulk\.wait_group\S* \d+;", ""),
    "a group more under way": (
        r"(cp\.async\.bulk\.wait_group\S*) (\d+);",
        lambda m: f"{m[1]} {int(m[2]) + 1};",
    ),
    "a ring wraps early": (WRAP, lambda m: f"{m[1]}{int(m[3]) - 1}{m[4]}1{m[5]}"),
    "a ring wraps late": (WRAP, lambda m: f"{m[1]}{int(m[3]) + 1}{m[4]}1{m[5]}"),
    "a phase that stands still": (WRAP, r"\1\3\g<4>0\5"),
    "another swizzle of a row": (r"(and\.b32\s+%r\d+, %r\d+, )112;", r"\g<1>48;"),
}


def other_swizzle(match):
    """A matrix in shared memory that says 128B becomes one of 64B (tcgen05: 2 becomes 4)."""
    bits = int(match[2])
    return f"{match[1]}{bits & ~(7 << 61) | 4 << 61}" if bits >> 61 == 2 else match[0]


MMA = (
    r"(tcgen05\.mma\.\S*\s+\[)(%r\d+)(\], )(%rd\d+)(, )(%rd\d+)(, )(%r\d+)"
    r"(, \[)(%r\d+)(\], \[)(%r\d+)(\], )(\w+);"
)
COMMIT = r"(tcgen05\.commit\S* \[)(%r\d+)(\][^;]*;)"


def mma_with(group, kind, number):
    """The products with one operand moved."""

    def spoil(match):
        pieces = [match[i] for i in range(1, 15)]
        operand, pieces[group - 1] = pieces[group - 1], "t"
        return add(operand, number, "".join(pieces) + ";", kind)

    return MMA, spoil


TCGEN05 = {
    "no commit": (COMMIT, ""),
    "a commit more": (COMMIT, r"\g<0> \g<0>"),
    "arrives at once instead of by a commit": (
        COMMIT,
        r"mbarrier.arrive.release.cluster.shared::cluster.b64 _, [\2];",
    ),
    "commits to the next barrier": (COMMIT, r"\1\2+8\3"),
    "commits to other CTAs": (
        r"(tcgen05\.commit\S* \[%r\d+\], )(%rs\d+);",
        lambda m: changed("b16", "xor.b16 {}, 2", m[2], f"{m[1]}t;"),
    ),
    "no fence before": (r"tcgen05\.fence::before_thread_sync;", ""),
    "no fence after": (r"tcgen05\.fence::after_thread_sync;", ""),
    "no wait for loads": (r"tcgen05\.wait::ld\S*;", ""),
    "no allocation": (r"tcgen05\.alloc\S* [^;]*;", ""),
    "no deallocation": (r"tcgen05\.dealloc\S* [^;]*;", ""),
    "no copy of scales": (r"tcgen05\.cp\.\S*\s+[^;]*;", ""),
    "scales elsewhere in tensor memory": (
        r"(tcgen05\.cp\.\S*\s+\[)(%r\d+)(\][^;]*;)",
        lambda m: add(m[2], 4, f"{m[1]}t{m[3]}"),
    ),
    "scales of another place": (
        r"(tcgen05\.cp\.\S*\s+\[%r\d+\], )(%rd\d+);",
        lambda m: add(m[2], 32, f"{m[1]}t;", "b64"),
    ),
    "another accumulator": mma_with(2, "b32", 32),
    "A elsewhere": mma_with(4, "b64", 64),
    "B elsewhere": mma_with(6, "b64", 64),
    "another instruction descriptor": mma_with(8, "b32", 1 << 17),
    "SFA elsewhere": mma_with(10, "b32", 4),
    "SFB elsewhere": mma_with(12, "b32", 4),
    "sums begin elsewhere": (MMA, r"not.pred \g<14>, \g<14>; \g<0>"),
    "loads another accumulator": (
        r"(tcgen05\.ld\.\S*\s+\{[^}]*\}, \[)(%r\d+)\];",
        lambda m: add(m[2], 32, f"{m[1]}t];"),
    ),
    "another swizzle of a matrix": (r"(or\.b64\s+%rd\d+, %rd\d+, )(\d{19})", other_swizzle),
    "one CTA instead of a pair": (
        r"(cp\.async\.bulk\.tensor\.\dd)\.cta_group::2",
        r"\1",
    ),
}
