"""Small launches whose results hardware decides: roundings, conversions, sums of tensor cores.

UNITS: name -> a function that launches and gives {name: array}. The digest compares them between
the simulated GPU and a real one.
"""

import functools

import numpy as np

from .. import gpu

N = 1 << 14
# name: (operand type, result type, the instruction on %x, %y, %z into %d)
SCALARS = {
    "add": ("f32", "f32", "add.rn.f32 %d, %x, %y;"),
    "add.rz": ("f32", "f32", "add.rz.f32 %d, %x, %y;"),
    "add.ftz": ("f32", "f32", "add.rn.ftz.f32 %d, %x, %y;"),
    "mul": ("f32", "f32", "mul.rn.f32 %d, %x, %y;"),
    "fma": ("f32", "f32", "fma.rn.f32 %d, %x, %y, %z;"),
    "fma.rm": ("f32", "f32", "fma.rm.f32 %d, %x, %y, %z;"),
    "div": ("f32", "f32", "div.rn.f32 %d, %x, %y;"),
    "sqrt": ("f32", "f32", "sqrt.rn.f32 %d, %x;"),
    "rcp": ("f32", "f32", "rcp.rn.f32 %d, %x;"),
    "min": ("f32", "f32", "min.f32 %d, %x, %y;"),
    "max.NaN": ("f32", "f32", "max.NaN.f32 %d, %x, %y;"),
    "ex2.approx": ("f32", "f32", "ex2.approx.f32 %d, %x;"),
    "lg2.approx": ("f32", "f32", "lg2.approx.f32 %d, %x;"),
    "rcp.approx": ("f32", "f32", "rcp.approx.f32 %d, %x;"),
    "rsqrt.approx": ("f32", "f32", "rsqrt.approx.f32 %d, %x;"),
    "sqrt.approx": ("f32", "f32", "sqrt.approx.f32 %d, %x;"),
    "div.approx": ("f32", "f32", "div.approx.f32 %d, %x, %y;"),
    "tanh.approx": ("f32", "f32", "tanh.approx.f32 %d, %x;"),
    "fma.f16x2": ("b32", "b32", "fma.rn.f16x2 %d, %x, %y, %z;"),
    "add.f16x2": ("b32", "b32", "add.rn.f16x2 %d, %x, %y;"),
    "mul.f16x2": ("b32", "b32", "mul.rn.f16x2 %d, %x, %y;"),
    "fma.bf16x2": ("b32", "b32", "fma.rn.bf16x2 %d, %x, %y, %z;"),
    "cvt.s32": ("f32", "s32", "cvt.rni.s32.f32 %d, %x;"),
    "cvt.f32.s32": ("s32", "f32", "cvt.rn.f32.s32 %d, %x;"),
    "cvt.f16x2": ("f32", "b32", "cvt.rn.f16x2.f32 %d, %x, %y;"),
    "cvt.bf16x2": ("f32", "b32", "cvt.rn.bf16x2.f32 %d, %x, %y;"),
    "cvt.e4m3x2": ("f32", "b16", "cvt.rn.satfinite.e4m3x2.f32 %d, %x, %y;"),
    "cvt.e5m2x2": ("f32", "b16", "cvt.rn.satfinite.e5m2x2.f32 %d, %x, %y;"),
    "cvt.f16x2.e4m3x2": ("b16", "b32", "cvt.rn.f16x2.e4m3x2 %d, %x;"),
    "cvt.f16x2.e5m2x2": ("b16", "b32", "cvt.rn.f16x2.e5m2x2 %d, %x;"),
    "prmt": ("b32", "b32", "prmt.b32 %d, %x, %y, %z;"),
    "shf": ("b32", "b32", "shf.l.wrap.b32 %d, %x, %y, %z;"),
    "lop3": ("b32", "b32", "lop3.b32 %d, %x, %y, %z, 0x96;"),
    "mad.hi": ("s32", "s32", "mad.hi.s32 %d, %x, %y, %z;"),
}
PRODUCTS = ("f16", "bf16")


def floats(rng, n):
    """Bits of every kind of float: half of them of moderate size, so that sums cancel."""
    any_bits = rng.integers(0, 1 << 32, n, np.uint32)
    moderate = (rng.standard_normal(n) * np.exp2(rng.integers(-8, 9, n))).astype(np.float32)
    return np.where(rng.random(n) < 0.5, any_bits, moderate.view(np.uint32)).astype(np.uint32)


def scalar(name):
    """Thread i: d[i] = f(x[i], y[i], z[i])"""
    operand, result, instruction = SCALARS[name]
    steps = {kind: 2 if kind == "b16" else 4 for kind in (operand, result)}
    load = "".join(
        f"add.s64 %rd{10 + i}, %rd{i}, %rd9; ld.global.{operand} %{v}, [%rd{10 + i}];"
        for i, v in enumerate("xyz")
    )
    body = f"""
        .reg .{operand} %x, %y, %z;
        .reg .{result} %d;
        mov.u32 %r0, %tid.x;
        mov.u32 %r1, %ctaid.x;
        mad.lo.s32 %r2, %r1, 256, %r0;
        mul.wide.u32 %rd9, %r2, {steps[operand]};
        {load}
        mul.wide.u32 %rd8, %r2, {steps[result]};
        add.s64 %rd13, %rd3, %rd8;
        {instruction}
        st.global.{result} [%rd13], %d;
    """
    rng = np.random.default_rng(len(name))
    inputs = [floats(rng, N) for _ in "xyz"]
    if operand == "b16":
        inputs = [np.arange(N, dtype=np.uint16) * 4 + i for i in range(3)]
    memory = [gpu.Memory(x) for x in inputs]
    memory.append(gpu.Memory(np.zeros(N, np.uint16 if steps[result] == 2 else np.uint32)))
    module = gpu.Module(gpu.kernel(body, ["x", "y", "z", "d"]))
    module.launch("f", *memory, grid=N // 256, block=256)
    return {result: memory[-1].read()}


def operands(rng, kind, shape):
    """Registers of finite values, close together or far apart."""
    spread = np.exp2(rng.integers(-6, 7, (*shape, 2)))
    values = (rng.standard_normal((*shape, 2)) * spread).astype(np.float32)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint32)[..., 0]
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)[..., 0]


def product(kind):
    """A warp a product: mma.sync on registers as they lie in memory, [trial][register][lane]."""
    trials, sizes = 128, {"a": 4, "b": 2, "c": 4, "d": 4}
    registers = {
        letter: [f"%{'r' if letter in 'ab' else 'f'}{10 * place + i}" for i in range(size)]
        for place, (letter, size) in enumerate(sizes.items(), 1)
    }

    def move(letter, form):
        parameter, n = "abcd".index(letter), sizes[letter]
        at = f"mad.wide.u32 %rd10, %r1, {n * 128}, %rd{parameter}; add.s64 %rd10, %rd10, %rd9;"
        return at + "".join(form.format(128 * i, r) for i, r in enumerate(registers[letter]))

    lists = ", ".join("{" + ",".join(registers[letter]) + "}" for letter in "dabc")
    body = "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd9, %r0, 4;"
    body += "".join(move(letter, "ld.global.b32 {1}, [%rd10+{0}];") for letter in "abc")
    body += f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {lists};"
    body += move("d", "st.global.b32 [%rd10+{0}], {1};")
    rng = np.random.default_rng(16)
    memory = [gpu.Memory(operands(rng, kind, (trials, sizes[x], 32))) for x in "ab"]
    start = rng.standard_normal((trials, 4, 32)).astype(np.float32).view(np.uint32)
    memory += [gpu.Memory(start), gpu.Memory(np.zeros_like(start))]
    module = gpu.Module(gpu.kernel(body, ["a", "b", "c", "d"]))
    module.launch("f", *memory, grid=trials, block=32)
    return {"f32": memory[-1].read()}


UNITS = {f"scalar {name}": functools.partial(scalar, name) for name in SCALARS}
UNITS |= {f"mma.sync {name}": functools.partial(product, name) for name in PRODUCTS}
