"""What spoils a kernel: patterns of PTX, and what becomes of them.

A pattern is of one instruction, or of a few with nothing but `.loc` and comments in between.
Registers that a mutation needs are declared in a block of its own.
"""

import re


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

SYNC = {
    "no barrier": (r"\bbar\.sync\s+[^;]*;", ""),
    "a warp more at the barrier": (
        r"(\bbar\.sync\s+[^,;]+,\s*)(\d+);",
        lambda m: f"{m[1]}{int(m[2]) + 32};",
    ),
    "no warp barrier": (r"bar\.warp\.sync\s+-1;", ""),
    "no wait": (r"cp\.async\.wait_group\s+\d+;", ""),
    "a group more under way": (
        r"(cp\.async\.wait_group\s+)(\d+);",
        lambda m: f"{m[1]}{int(m[2]) + 1};",
    ),
    "no commit": (r"cp\.async\.commit_group;", ""),
}

# What sm_90 has and sm_100 too.
ASYNC = {
    "no wait at the mbarrier": (WAIT, r"setp.eq.u32 \2, 0, 0;"),
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
    "no group": (r"cp\.async\.bulk\.commit_group;", ""),
    "no wait for groups": (r"cp\.async\.bulk\.wait_group\S* \d+;", ""),
    "a bulk group more under way": (
        r"(cp\.async\.bulk\.wait_group\S*) (\d+);",
        lambda m: f"{m[1]} {int(m[2]) + 1};",
    ),
    "other rows of a tile": (
        r"(cp\.async\.bulk\.tensor[^;{]*\{%\w+, )(%r\d+)(\}[^;]*;)",
        lambda m: add(m[2], 8, f"{m[1]}t{m[3]}"),
    ),
    "oneself for a peer": (
        r"mapa\.shared::cluster\.u32\s+(%r\d+), (%r\d+), [^;]+;",
        r"mov.u32 \1, \2;",
    ),
    "no mbarrier": (r"mbarrier\.init[^;]*;", ""),
    "no wait at the cluster barrier": (r"barrier\.cluster\.wait\S*;", ""),
    "stores of the matrix elsewhere": (rf"(stmatrix\S*\s+\[){REGISTER}\]", r"\1\2+16]"),
    "registers kept": (r"setmaxnreg\.dec\S*\s+\d+;", ""),
}

# What reaches further than a CTA does not (PTXSIM_SCOPES).
SCOPES = {
    "arrives for its CTA alone": (r"(mbarrier\.arrive\S*\.release)\.cluster", r"\1.cta"),
    "waits for its CTA alone": (r"(mbarrier\.\w+_wait\S*\.acquire)\.cluster", r"\1.cta"),
    "a fence for its CTA alone": (r"(fence\.(?:acq_rel|sc))\.(?:cluster|gpu|sys)\b", r"\1.cta"),
    "an access for its CTA alone": (
        r"(\b(?:ld|st|atom|red)\.(?:relaxed|acquire|release|acq_rel))\.(?:cluster|gpu|sys)\b",
        r"\1.cta",
    ),
    "no fence of memory": (r"\bfence\.(?:acq_rel|sc)\.\w+;", ""),
}
WEAKER = SCOPES | {
    name: ASYNC[name]
    for name in (
        "arrives without releasing",
        "waits without acquiring",
        "the cluster barrier releases nothing",
    )
}
"""Every release and acquire made weaker."""


def other_operand(match):
    """A descriptor of wgmma with another swizzle: 128 bytes become none, 64 become 32."""
    return changed("b64", f"xor.b64 {{}}, {1 << 62}", match[2], f"{match[1]}t{match[3]}")


def next_columns(match):
    """A descriptor of wgmma 32 bytes on."""
    return add(match[2], 2, f"{match[1]}t{match[3]}", "b64")


PRODUCT = r"wgmma\.mma_async\S*\s*\{[^}]*\}, "
A = rf"({PRODUCT})(%rd\d+)(, %rd\d+, [^;]*;)"
B = rf"({PRODUCT}(?:%rd\d+|\{{[^}}]*\}}), )(%rd\d+)(, [^;]*;)"


def further(match):
    """16 bytes behind its place, which a swizzle has for other columns or rows."""
    return f"{match[1]}+{int(match[2] or 0) + 16}];"


WGMMA = {
    "no wgmma fence": (r"wgmma\.fence\S*;", ""),
    "no commit of products": (r"wgmma\.commit_group\S*;", ""),
    "no wait for products": (r"wgmma\.wait_group\S*\s+\d+;", ""),
    "a group of products more under way": (
        r"(wgmma\.wait_group\S*\s+)(\d+);",
        lambda m: f"{m[1]}{int(m[2]) + 1};",
    ),
    "another swizzle of A": (A, other_operand),
    "another swizzle of B": (B, other_operand),
    "other columns of A": (A, next_columns),
    "other columns of B": (B, next_columns),
}


SCALED = {
    "another lane's scale factors": (
        r"(block_scale[^;]*, %r\d+, \{0,)(\d)(\}, %r\d+, \{0,\d\};)",
        lambda m: f"{m[1]}{1 - int(m[2])}{m[3]}",
    ),
    "another lane's scale factors of columns": (
        r"(block_scale[^;]*, %r\d+, \{0,\d\}, %r\d+, \{0,)(\d)(\};)",
        lambda m: f"{m[1]}{int(m[2]) ^ 1}{m[3]}",
    ),
    "fragments of other rows": (r"(ldmatrix\S*\s+\{[^}]*\}, \[%r\d+)(?:\+(\d+))?\];", further),
}
"""What mma.sync has with a scale factor of each block, and without."""


SWAPPED = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}
SWAPPED |= {"min": "max", "max": "min"}


def swapped(match):
    return f"{match[1]}{SWAPPED[match[2]]}{match[3]}"


def one_more(match):
    return f"{match[1]}{int(match[2]) + 1};"


# What any kernel has: bounds, offsets, constants, the order of operands; and what tiles have.
LOGIC = {
    "a comparison off by one": (r"(setp\.)(lt|le|gt|ge)(\.s(?:32|64)\s)", swapped),
    "the other comparison": (r"(setp\.)(eq|ne)(\.s(?:32|64)\s)", swapped),
    "the other bound": (r"(\b)(min|max)(\.s(?:32|64)\s)", swapped),
    "a constant more": (
        r"((?:add|sub|and|mul\.lo|mad\.lo|div|shr|shl|min|max)\.\w+\s+%\w+, %\w+, )(\d+);",
        one_more,
    ),
    "less for more": (r"add(\.s(?:32|64)\s+%\w+, %\w+, %\w+;)", r"sub\1"),
    "operands swapped": (r"(sub\.s(?:32|64)\s+%\w+, )(%\w+), (%\w+);", r"\1\3, \2;"),
    "the other choice": (r"(selp\.\w+\s+%\w+, )(%?\w+), (%?\w+), (%p\d+;)", r"\1\3, \2, \4"),
    "another factor": (r"(fma\.rn\.f32\s+%f\d+, )%f\d+, (%f\d+), ", r"\1\2, \2, "),
    "not added": (r"add\.rn\.f32\s+(%f\d+), (%f\d+), %f\d+;", r"mov.f32 \1, \2;"),
    "other bytes": (r"(prmt\.b32\s+%r\d+, %r\d+, [^,]+, )(\d+);", one_more),
    "no store": (r"st\.global\S*\s+\[[^;]*;", ""),
    "no copy of a lane": (r"(?:@\w+ )?cp\.async\.c[ag]\.shared\S*\s+\[[^;]*;", ""),
    "copies of lanes tell nobody": (r"cp\.async\.mbarrier\.arrive\S*\s+\[[^;]*;", ""),
    "no sums sent": (r"st\.async\S*\s+\[[^;]*;", ""),
    "no wait for kernels before": (r"griddepcontrol\.wait;", ""),
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
