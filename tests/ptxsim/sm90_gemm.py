"""Launches of kernels/sm90_gemm.cu: what mutants, seeds and real GPUs are tried with.

CASES: name -> Case. A case's run() gives the arrays that the kernel wrote, its check() knows what
they must be. Other kernels of the simulator's own have a module like this one.
"""

from dataclasses import dataclass

import numpy as np

from . import gpu

ARCH = "sm90"
TILE_M, TILE_N, TILE_K, ROWS = 128, 64, 64, 64
SHARED_BYTES = 105 << 10
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
POISON = 0x7F7F


def e4m3(codes):
    exponent, mantissa = codes.astype(int) >> 3 & 15, codes.astype(int) & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * np.exp2(exponent - 7.0))


def to_bf16(values):
    """Bits, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def to_bits(values, bf16):
    return to_bf16(values) if bf16 else values.astype(np.float16).view(np.uint16)


def blocked(scales):
    """[M][K/16] bytes as atoms of 128 rows x 4, what is not there 0."""
    rows, cols = -(-scales.shape[0] // 128), -(-scales.shape[1] // 4)
    padded = np.zeros((rows * 128, cols * 4), np.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    return padded.reshape(rows, 4, 32, cols, 4).transpose(0, 3, 2, 1, 4).copy()


@dataclass(frozen=True)
class Case:
    """`exact`: sums are whole numbers, so that any order of adding gives the same."""

    kernel: str
    span: int
    multicast: int
    split: int
    threads: int
    bf16: bool
    shape: tuple
    grid: int
    exact: bool = True

    # What a host can do wrong: each must be noticed like a mutant of the kernel.
    SPOILS = ("swizzle of x", "swizzle of d", "swizzle of codes", "box of x", "box of codes")

    @property
    def format(self):
        return "bfloat16" if self.bf16 else "float16"

    def inputs(self):
        """codes [M][K/2], scales [M][K/16], x [N][K] as float32"""
        m, n, k = self.shape
        rng = np.random.default_rng(m * n + k)
        codes = rng.integers(0, 256, (m, k // 2), np.uint8)
        if self.exact:
            scales = rng.choice(np.array([0x38, 0x40, 0x48], np.uint8), (m, k // 16))  # 1, 2, 4
            return codes, scales, rng.integers(-3, 4, (n, k)).astype(np.float32)
        scales = rng.integers(0x20, 0x58, (m, k // 16), np.uint8)
        return codes, scales, rng.standard_normal((n, k)).astype(np.float32)

    def run(self, module, spoil=""):
        """{"d": bits [M][N]}"""
        m, n, k = self.shape
        codes, scales, x = self.inputs()
        codes, x = gpu.Memory(codes), gpu.Memory(to_bits(x, self.bf16))
        scales, d = gpu.Memory(blocked(scales)), gpu.Memory(np.full((m, n), POISON, np.uint16))

        def tiles(name, memory, shape, rows, width, span):
            """Boxes of rows of `width` bytes; spoilt: none or another swizzle, or too few rows."""
            if spoil == f"swizzle of {name}":
                span = 16 if span > 16 else 32
            rows -= 8 * (spoil == f"box of {name}")
            return gpu.tensor_map(memory, shape, (rows, width // memory.like.itemsize), span)

        maps = [
            tiles("codes", codes, (m, k // 2), TILE_M, 32, min(self.span, 32)),
            tiles("x", x, (n, k), TILE_N // self.multicast, self.span, self.span),
            tiles("d", d, (m, n), ROWS, self.span, self.span),
        ]
        numbers = np.array([m, n, k], np.int32).tobytes() + np.float32(2.0**-5).tobytes()
        problem = np.uint64(scales.address).tobytes() + numbers
        cluster = self.multicast * self.split
        module.launch(
            self.kernel, *maps, problem, grid=self.grid * cluster, block=self.threads,
            cluster=cluster, shared_bytes=SHARED_BYTES,
        )  # fmt: skip
        return {"d": d.read()}

    def check(self, results):
        codes, scales, x = self.inputs()
        values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=2).reshape(len(codes), -1)
        sums = values * np.repeat(e4m3(scales), 16, axis=1) @ x.astype(np.float64).T
        assert np.abs(sums).max() < 2**24 and self.exact
        want = to_bits((sums * 2.0**-5).astype(np.float32), self.bf16)
        np.testing.assert_array_equal(results["d"], want)


def cases():
    variants = {
        "ss_128": (128, 1, 1, 512, False),
        "ss_64_multicast_2": (64, 2, 1, 512, False),
        "ss_32_multicast_4": (32, 4, 1, 512, False),
        "ss_none": (16, 1, 1, 512, True),
        "rs_128_multicast_2": (128, 2, 1, 384, True),
        "rs_64_split_2": (64, 1, 2, 384, False),
        "ss_128_multicast_2_split_2": (128, 2, 2, 512, True),
    }
    for name, variant in variants.items():
        _, multicast, split, *_ = variant
        long = (128 * multicast + 72, 72, 288 * split), 1
        short = (40, 64, 64 * split), 2
        two = (128 * 2 * multicast, 192, 64 * 3 * split), 2
        for kind, (shape, grid) in [("long", long), ("short", short), ("two", two)]:
            yield f"{name}/{kind}", Case(f"sm90_gemm_{name}", *variant, shape, grid)
        yield f"{name}/rounded", Case(f"sm90_gemm_{name}", *variant, two[0], 2, exact=False)


CASES = dict(cases())
