"""PTX of small tcgen05 kernels, and where their operands lie: for the tests of the simulator."""

import numpy as np

from . import gpu

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
CLUSTER_BARRIER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
SW128 = 2 << 61 | 1 << 46 | (1024 >> 4) << 32 | 1 << 16  # eight rows of 128 bytes, the next eight
PLAIN = 1 << 46 | (128 >> 4) << 32 | 1 << 16  # eight rows of 16 bytes, the next eight


def e4m3(codes):
    """Values of codes without a sign."""
    exponent, mantissa = codes >> 3, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent.astype(float) - 7)
    return np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)


def swizzled(rows):
    """Rows of 128 bytes as they lie in shared memory with a swizzle of 128 bytes."""
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
    places = np.arange(raw.size)
    return raw[places ^ ((places >> 7 & 7) << 4)]


def packed(codes):
    """Two e2m1 codes a byte, the even one low."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def scale_atoms(scales):
    """Atoms of 512 bytes of scales [128][k / 16]: row r's four at 16 (r % 32) + 4 (r / 32)."""
    blocks = scales.reshape(4, 32, -1, 4)  # r / 32, r % 32, atom, j
    return np.ascontiguousarray(blocks.transpose(2, 1, 0, 3)).reshape(-1)


def instruction(m, n, kind="mxf4nvf4", **bits):
    """The instruction descriptor: e2m1 with ue4m3, or f16 in and f32 out."""
    value = sum(v << int(k[1:]) for k, v in bits.items())
    if kind == "mxf4nvf4":
        return value | 1 << 7 | 1 << 10 | (n >> 3) << 17 | (m >> 7) << 27
    return value | 1 << 4 | (n >> 3) << 17 | (m >> 4) << 24


def descriptor(register, base, extra=0, layout=SW128):
    """The matrix descriptor of what lies at a shared address, into a register; %r60 is spoiled."""
    layout = layout if layout < 1 << 63 else layout - (1 << 64)
    return f"""
        add.s32 %r60, {base}, {extra};
        and.b32 %r60, %r60, 0x3FFFF;
        shr.u32 %r60, %r60, 4;
        cvt.u64.u32 {register}, %r60;
        or.b64 {register}, {register}, {layout};
    """


def fill(shared, array, size, threads=128):
    """All threads copy from the array's address to shared memory; %rd60, %r59.. are spoiled."""
    step = 16 * threads
    body = f"""
        mul.wide.u32 %rd60, %r0, 16;
        add.s64 %rd60, {array}, %rd60;
        shl.b32 %r60, %r0, 4;
        add.s32 %r60, %r60, {shared};
    """
    for at in range(0, size, step):
        guard = ""
        if size - at < step:
            guard = "@%p20 "
            body += f"setp.lt.u32 %p20, %r0, {(size - at) // 16};"
        body += (
            f"{guard}ld.global.v4.u32 {{%r61,%r62,%r63,%r59}}, [%rd60+{at}];"
            f"{guard}st.shared.v4.u32 [%r60+{at}], {{%r61,%r62,%r63,%r59}};"
        )
    return body


def wait(name, barrier, parity=0):
    return f"""
        $wait{name}:
        mbarrier.try_wait.parity.shared::cta.b64 %p19, [{barrier}], {parity};
        @!%p19 bra $wait{name};
    """


def load(columns, first=0, place="%r1", shape="32x32b", count=None):
    """tcgen05.ld of a warp's quarter into %d0.., of 32-bit registers of their own."""
    registers = ",".join(f"%d{first + i}" for i in range(columns))
    return f"tcgen05.ld.sync.aligned.{shape}.x{count or columns}.b32 {{{registers}}}, [{place}];"


WAIT_LOAD = "tcgen05.wait::ld.sync.aligned;"
BEFORE = "tcgen05.fence::before_thread_sync;"
AFTER = "tcgen05.fence::after_thread_sync;"


def show(columns, array):
    """Each thread stores %d0.. to its row of the array; %rd61, %r61 are spoiled."""
    body = f"""
        mov.u32 %r61, %ctaid.x;
        mad.lo.s32 %r61, %r61, 128, %r0;
        mul.wide.u32 %rd61, %r61, {4 * columns};
        add.s64 %rd61, {array}, %rd61;
    """
    return body + "".join(f"st.global.u32 [%rd61+{4 * i}], %d{i};" for i in range(columns))


def start(columns=128, group=1, barriers=("full",), arrivals=(1, 1)):
    """Thread %r0, warp %r2, lane %r4; thread 0 %p0, warp 0 %p1, lane 0 %p2; tensor memory from %r1
    on, %r3 with the warp's lanes; barriers at %r10..; all of it behind a barrier."""
    names = "".join(f"mov.u32 %r{10 + i}, {name};" for i, name in enumerate(barriers))
    inits = "".join(
        f"@%p0 mbarrier.init.shared::cta.b64 [%r{10 + i}], {arrivals[i]};"
        for i in range(len(barriers))
    )
    meet = CLUSTER_BARRIER if group == 2 else "bar.sync 0;"
    return f"""
        mov.u32 %r0, %tid.x;
        shr.u32 %r2, %r0, 5;
        and.b32 %r4, %r0, 31;
        setp.eq.u32 %p0, %r0, 0;
        setp.eq.u32 %p1, %r2, 0;
        setp.eq.u32 %p2, %r4, 0;
        mov.u32 %r5, address;
        {names}
        {inits}
        @%p0 fence.mbarrier_init.release.cluster;
        {meet if group == 2 else ""}
        @!%p1 bra $allocated;
        tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r5], {columns};
        tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
        $allocated:
        {meet}
        ld.shared.u32 %r1, [%r5];
        and.b32 %r3, %r2, 3;
        shl.b32 %r3, %r3, 21;
        add.s32 %r3, %r3, %r1;
    """


def finish(columns=128, group=1):
    meet = CLUSTER_BARRIER if group == 2 else "bar.sync 0;"
    return f"""
        {BEFORE}
        {meet}
        @!%p1 bra $freed;
        tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r1, {columns};
        $freed:
    """


def declarations(**sizes):
    """Shared variables of some bytes, aligned for swizzles; registers of results."""
    lines = [f".shared .align 1024 .b8 {name}[{size}];" for name, size in sizes.items()]
    lines += [".shared .align 8 .b64 full;", ".shared .align 8 .b64 empty;"]
    return "\n".join([*lines, ".shared .align 16 .b8 address[16];", ".reg .b32 %d<256>;"])


# --- A block-scaled product, D [128 or 256][n] = A [..][256] B [n][256] ---

K = 256
FENCE_PROXY = "fence.proxy.async.shared::cta;"
PARAMETERS = ["a_in", "b_in", "sfa_in", "sfb_in", "d_out"]


def product_variables(group, n):
    return declarations(a=128 * K // 2, b=n // group * K // 2, sfa=2048, sfb=2048)


def fill_product(group, n):
    """Each CTA its rows of A and B and scales of A, all scales of B."""
    sizes = {"a": 128 * K // 2, "b": n // group * K // 2, "sfa": 2048}
    body = "mov.u32 %r40, %cluster_ctarank;"
    for i, size in enumerate(sizes.values()):
        body += f"mul.wide.u32 %rd40, %r40, {size}; add.s64 %rd{i}, %rd{i}, %rd40;"
    for i, (name, size) in enumerate({**sizes, "sfb": 2048}.items()):
        body += f"mov.u32 %r{20 + i}, {name};" + fill(f"%r{20 + i}", f"%rd{i}", size)
    meet = CLUSTER_BARRIER if group == 2 else "bar.sync 0;"
    return body + FENCE_PROXY + meet


def copy_scales(group, n):
    """Thread 0 of the even CTA, all atoms: those of A from column n on, those of B behind them."""
    body = f"add.s32 %r30, %r1, {n}; add.s32 %r31, %r30, 16;"
    copy = f"tcgen05.cp.cta_group::{group}.32x128b.warpx4"
    for k in range(K // 64):
        body += descriptor("%rd20", "%r22", 512 * k, PLAIN) + f"{copy} [%r30+{4 * k}], %rd20;"
        body += descriptor("%rd20", "%r23", 512 * k, PLAIN) + f"{copy} [%r31+{4 * k}], %rd20;"
    return body


def multiply(group, n, form="block16", bits=None):
    bits = bits or instruction(128 * group, n)
    name = f"tcgen05.mma.cta_group::{group}.kind::mxf4nvf4.block_scale.{form}"
    body = ""
    for k in range(K // 64):
        body += descriptor("%rd20", "%r20", 32 * k) + descriptor("%rd21", "%r21", 32 * k)
        body += f"setp.ne.u32 %p5, {k}, 0;"
        body += f"{name} [%r1], %rd20, %rd21, {bits}, [%r30+{4 * k}], [%r31+{4 * k}], %p5;"
    return body


def commit(group, barrier="%r10"):
    name = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    if group == 1:
        return f"{name}.b64 [{barrier}];"
    return f"mov.u16 %h1, 3; {name}.multicast::cluster.b64 [{barrier}], %h1;"


def issuer(group, body, label="issued"):
    """By thread 0, of a pair that of the even CTA."""
    choose = "setp.eq.and.u32 %p6, %r40, 0, %p0;" if group == 2 else "mov.pred %p6, %p0;"
    return f"{choose} @!%p6 bra ${label}; {body}\n${label}:\n"


def product(group=1, n=64, columns=128, **options):
    return (
        start(columns, group)
        + fill_product(group, n)
        + issuer(group, copy_scales(group, n) + multiply(group, n, **options) + commit(group))
        + wait(0, "%r10")
        + AFTER
        + load(1 << (n - 1).bit_length(), place="%r3")
        + WAIT_LOAD
        + show(n, "%rd4")
        + finish(columns, group)
    )


def product_operands(group, n, seed, scales=(40, 80)):
    """A, B, scales of A and of B (128 rows of them), as codes."""
    random = np.random.default_rng(seed)
    a, b = (random.integers(0, 16, (rows, K)).astype(np.uint8) for rows in (128 * group, n))
    sfa, sfb = (
        random.integers(*scales, (rows, K // 16)).astype(np.uint8) for rows in (128 * group, 128)
    )
    return a, b, sfa, sfb


def product_memory(a, b, sfa, sfb):
    """As the kernel's parameters want them."""
    atoms = [scale_atoms(sfa[i : i + 128]) for i in range(0, len(sfa), 128)]
    return swizzled(packed(a)), swizzled(packed(b)), np.concatenate(atoms), scale_atoms(sfb)


def exact_product(a, b, sfa, sfb):
    scaled_a = E2M1[a] * np.repeat(e4m3(sfa), 16, 1)
    return scaled_a @ (E2M1[b] * np.repeat(e4m3(sfb[: len(b)]), 16, 1)).T


def run_product(body, group=1, n=64, seed=0, operands=None):
    """D as a kernel leaves it that has product()'s parameters and variables."""
    gpu.seed(seed)
    module = gpu.Module(gpu.kernel(body, PARAMETERS, product_variables(group, n)))
    operands = operands or product_operands(group, n, seed)
    memory = [gpu.Memory(array) for array in product_memory(*operands)]
    memory.append(gpu.Memory(np.zeros((128 * group, n), np.float32)))
    module.launch("f", *memory, grid=group, cluster=group, block=128)
    return memory[-1].array.copy()


def found(body, group=1, severities="EW", seeds=range(10)):
    """The codes of what any seed finds; PTX that is refused is an error."""
    gpu.clear()
    for seed in seeds:
        try:
            run_product(body, group, seed=seed)
        except gpu.SimError as error:
            if not error.findings:
                raise
    return gpu.findings(severities)


def changed(body, old, new):
    """With the first of something replaced, which must be there."""
    assert old in body, old
    return body.replace(old, new, 1)
