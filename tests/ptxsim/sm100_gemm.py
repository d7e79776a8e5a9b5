"""The host's half of kernels/sm100_gemm.cu: facts, operands amid traps, the oracle."""

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

SOURCE = build.HERE / "kernels" / "sm100_gemm_table.c"
U8, U16, F16, U4X16 = 0, 1, 6, 13  # CUtensorMapDataType
NO_SWIZZLE, SWIZZLE_128B = 0, 3  # CUtensorMapSwizzle
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])
GUARD = 0xABCD  # where no result belongs
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


@functools.cache
def ptx():
    return build.own_kernel("sm100_gemm", "sm100").read_text()


def tiles(name, m, n):
    """How many tiles of a cluster D has."""
    v = table()[name]
    return -(-m // v.rows) * -(-n // v.columns)


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


def codes_map(memory, k, rows):
    (height, pitch), tile_k = memory.array.shape, table()["facts"].tile_k
    return tensor_map(U4X16, memory.address, (k, height), (pitch,), (tile_k, rows), SWIZZLE_128B)


def scales_map(memory, atoms):
    blocks, along_k, size = memory.array.shape
    dims, box = (size // 2, along_k, blocks), (size // 2, atoms, 1)
    return tensor_map(U16, memory.address, dims, (size, size * along_k), box, NO_SWIZZLE)


class Problem:
    """D = alpha A B^T; what lies around D must stay as it is."""

    def __init__(self, seed, m, n, k):
        rng = np.random.default_rng((seed, m, n, k))
        self.m, self.n, self.k = m, n, k
        self.a, self.b = Operand.random(rng, m, k), Operand.random(rng, n, k)
        self.d = gpu.Memory(np.empty((m + 2, -(-n // 8) * 8 + 8), np.uint16))
        self.want = ALPHA * (self.a.values @ self.b.values.T)
        magnitude = ALPHA * (np.abs(self.a.values) @ np.abs(self.b.values).T)
        self.bound = 2.0**-11 * np.abs(self.want) + k / 64 * 2.0**-22 * magnitude + 2.0**-24

    def launch(self, module, name, clusters=1):
        """`clusters` take all tiles in turn; of a variant with CLC each tile has one of its own."""
        v, facts = table()[name], table()["facts"]
        pitch = 2 * self.d.array.shape[1]
        self.d.array[...] = GUARD
        module.launch(
            f"sm100_gemm_{name}",
            codes_map(self.a.codes, self.k, v.a_rows),
            codes_map(self.b.codes, self.k, v.b_rows),
            scales_map(self.a.scales, v.sfa_atoms),
            scales_map(self.b.scales, v.sfb_atoms),
            tensor_map(
                F16, self.d.address + pitch, (self.n, self.m), (pitch,), (facts.box_columns, 32),
                SWIZZLE_128B,
            ),
            struct.pack(
                "<QQfiii", self.a.scales.address, self.b.scales.address, ALPHA,
                self.m, self.n, self.k,
            ),
            grid=v.cluster * (tiles(name, self.m, self.n) if v.clc else clusters),
            block=facts.threads,
            cluster=v.cluster,
            shared_bytes=v.smem,
        )  # fmt: skip

    def check(self):
        got = self.d.array[1:-1, : self.n].view(np.float16).astype(np.float64)
        wrong = ~np.less_equal(np.abs(got - self.want), self.bound)  # a NaN, too
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise AssertionError(
                f"{wrong.sum()} of {wrong.size} wrong; D[{i}, {j}] is {got[i, j]}, "
                f"expected {self.want[i, j]} +- {self.bound[i, j]:.2g}"
            )
        around = self.d.array.copy()
        around[1:-1, : self.n] = GUARD
        assert (around == GUARD).all(), "a store outside D"
