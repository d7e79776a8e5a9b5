"""Launches of kernels/sm100_gemm.cu: what mutants and seeds are tried with.

CASES: name -> Case. A case's run() gives the array that the kernel wrote, its check() knows what it
must be.
"""

import ctypes
import functools
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from . import build, gpu, num_oracle

ARCH = "sm100"
SOURCE = build.HERE / "kernels" / "sm100_gemm_table.c"
U8, U16, F16, U4X16 = 0, 1, 6, 13  # CUtensorMapDataType
NO_SWIZZLE, SWIZZLE_128B = 0, 3  # CUtensorMapSwizzle
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])
GUARD = 0xABCD  # where no result belongs
HELPERS = ("mbarrier_wait", "r.phase ^=", "r.slot =")  # of all roles
ALPHA = np.float32(1.25 * 2.0**-13)


@functools.cache
def table():
    """What the header says: a row of numbers for each variant, and one of `facts`."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "table")
        subprocess.run([build.find_cc(), SOURCE, "-o", program], check=True)
        text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows = {}
    for line in text.splitlines():
        row, name, value = line.split()
        setattr(rows.setdefault(row, SimpleNamespace()), name, int(value))
    return rows


# ---------------------------------------------------------------------------------------------
# Operands
# ---------------------------------------------------------------------------------------------


def blocked(scales, padding):
    """[rows, K/16] bytes as atoms of 128 rows and 64 of K: [row blocks, K/64, 512]."""
    rows, columns = scales.shape
    whole = padding(-(-rows // 128) * 128, columns)
    whole[:rows] = scales
    atoms = whole.reshape(-1, 4, 32, columns // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(atoms).reshape(-1, columns // 4, 512)


@dataclass
class Operand:
    """Codes with garbage behind each row, scale factors with garbage (NaN, too) below the last."""

    values: np.ndarray  # float64, exact
    codes: gpu.Memory
    scales: gpu.Memory

    @classmethod
    def random(cls, rng, rows, k):
        nibbles = rng.integers(0, 16, (rows, k), np.uint8)
        scales = rng.integers(0, 0x7F, (rows, k // 16), np.uint8)
        packed = rng.integers(0, 256, (rows, k // 2 + 16), np.uint8)
        packed[:, : k // 2] = nibbles[:, ::2] | nibbles[:, 1::2] << 4
        atoms = blocked(scales, lambda *shape: rng.integers(0x7E, 0x80, shape, np.uint8))
        factors = num_oracle.table("e4m3")[scales]
        return cls(E2M1[nibbles] * factors.repeat(16, 1), gpu.Memory(packed), gpu.Memory(atoms))


def tensor_map(kind, address, dims, strides, box, swizzle):
    """cuTensorMapEncodeTiled; strides in bytes, of dimension 1 and up."""
    record = (ctypes.c_uint8 * 256)()
    at = (ctypes.addressof(record) + 127) // 128 * 128
    rank = len(dims)
    code = gpu.library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), kind, rank, ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*dims), (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*[1] * rank),
        0, swizzle, 0, 0,
    )  # fmt: skip
    gpu.check(code, "cuTensorMapEncodeTiled")
    return ctypes.string_at(at, 128)


def codes_map(memory, k, rows, swizzle):
    (height, pitch), tile_k = memory.like.shape, table()["facts"].tile_k
    return tensor_map(U4X16, memory.address, (k, height), (pitch,), (tile_k, rows), swizzle)


def scales_map(memory, atoms):
    blocks, along_k, size = memory.like.shape
    dims, box = (size // 2, along_k, blocks), (size // 2, atoms, 1)
    return tensor_map(U16, memory.address, dims, (size, size * along_k), box, NO_SWIZZLE)


@functools.lru_cache(maxsize=8)
def problem(seed, m, n, k):
    """Operands, what D must be, and how far off it may be."""
    rng = np.random.default_rng((seed, m, n, k))
    a, b = Operand.random(rng, m, k), Operand.random(rng, n, k)
    want = ALPHA * (a.values @ b.values.T)
    magnitude = ALPHA * (np.abs(a.values) @ np.abs(b.values).T)
    return a, b, want, 2.0**-11 * np.abs(want) + k / 64 * 2.0**-22 * magnitude + 2.0**-24


@dataclass(frozen=True)
class Case:
    """`exact`: for mutants. `clusters` take all tiles in turn; with CLC each tile has its own."""

    variant: str
    m: int
    n: int
    k: int
    clusters: int = 1
    exact: bool = True
    data: int = 0  # the operands' seed
    format = "float16"

    # What a host can do wrong: each must be noticed like a mutant of the kernel.
    SPOILS = ("swizzle of A", "swizzle of B", "swizzle of D", "box of A", "box of B")

    @property
    def kernel(self):
        return f"sm100_gemm_{self.variant}"

    @property
    def tiles(self):
        """Of a cluster."""
        v = table()[self.variant]
        return -(-self.m // v.rows) * -(-self.n // v.columns)

    def run(self, module, spoil=""):
        """{"d": bits, and what lies around them}"""
        v, facts = table()[self.variant], table()["facts"]
        a, b, _, _ = problem(self.data, self.m, self.n, self.k)
        d = gpu.Memory(np.full((self.m + 2, -(-self.n // 8) * 8 + 8), GUARD, np.uint16))
        pitch = 2 * d.like.shape[1]

        def swizzle(name):
            return NO_SWIZZLE if spoil == f"swizzle of {name}" else SWIZZLE_128B

        a_rows, b_rows = v.a_rows - 8 * (spoil == "box of A"), v.b_rows - 8 * (spoil == "box of B")
        module.launch(
            self.kernel,
            codes_map(a.codes, self.k, a_rows, swizzle("A")),
            codes_map(b.codes, self.k, b_rows, swizzle("B")),
            scales_map(a.scales, v.sfa_atoms),
            scales_map(b.scales, v.sfb_atoms),
            tensor_map(
                F16, d.address + pitch, (self.n, self.m), (pitch,), (facts.box_columns, 32),
                swizzle("D"),
            ),
            struct.pack(
                "<QQfiii", a.scales.address, b.scales.address, ALPHA, self.m, self.n, self.k
            ),
            grid=v.cluster * (self.tiles if v.clc else self.clusters),
            block=facts.threads,
            cluster=v.cluster,
            shared_bytes=v.smem,
        )  # fmt: skip
        return {"d": d.read()}

    def check(self, results):
        memory = results["d"]
        _, _, want, bound = problem(self.data, self.m, self.n, self.k)
        got = memory[1:-1, : self.n].view(np.float16).astype(np.float64)
        with np.errstate(invalid="ignore"):
            wrong = ~np.less_equal(np.abs(got - want), bound)  # a NaN is, too
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise AssertionError(
                f"{wrong.sum()} of {wrong.size} wrong; D[{i}, {j}] is {got[i, j]}, "
                f"expected {want[i, j]} +- {bound[i, j]:.2g}"
            )
        memory[1:-1, : self.n] = GUARD
        assert (memory == GUARD).all(), "a store outside D"


# Small, but more than two rounds of the accumulators and three of the stages.
CASES = {
    "one": Case("one", 65, 445, 320),
    "one_wide": Case("one_wide", 65, 893, 320),
    "one_share_b": Case("one_share_b", 161, 445, 320),
    "pair": Case("pair", 161, 445, 320),
    "pair_wide": Case("pair_wide", 161, 893, 320),
    "pair_share_a": Case("pair_share_a", 161, 893, 320),
    "pair_share_b": Case("pair_share_b", 389, 445, 320),
    "pair_clc": Case("pair_clc", 389, 445, 320),
}
# Several rows of tiles, several clusters; less than the ring of stages.
CASES |= {
    "one, two clusters": Case("one", 300, 130, 576, 2, exact=False),
    "one, one number": Case("one", 1, 1, 64, exact=False),
    "pair, two rows": Case("pair", 257, 190, 320, exact=False),
    "pair, short": Case("pair", 255, 3, 192, exact=False),
    "pair_share_a, two clusters": Case("pair_share_a", 300, 257, 576, 2, exact=False),
    "pair_share_b, two clusters": Case("pair_share_b", 513, 65, 64, 2, exact=False),
    "pair_clc, two rows": Case("pair_clc", 600, 130, 576, exact=False),
}
