"""Offsets that another thread writes while a GPU reads them: calls end, nothing is written beside
their outputs, and the next call is right. tests/races.py does the like to CPUs."""

import ctypes
import threading

import numpy as np
import pytest
import torch
from conftest import GPUS, NO_GPU
from generators import Guarded, assert_ok, codes, rng_of, scale_bytes, values

import nvfp4kern
from nvfp4kern.verify import data, reference

ROWS, N, K, EXPERTS = 600, 300, 288, 3
WRITTEN = ([0, 200, 400, 600], [0, 0, 600, 600], [0, 0, 0, 0], [600] * 4, [-5, 700, -3, 2**30])
TILES = {"sm100": ("", "sm100/gemm:p64", "sm100/gemm:p128")}
"""Of a row: a pair of CTAs must agree on what there is. "" is what the plan takes."""
CASES = [(row, tile) for row in GPUS for tile in TILES.get(row.name, ("",))]


class Written:
    """Offsets that a thread writes, until the end of the block."""

    def __init__(self, offsets):
        self.offsets, self.ended, self.times = offsets, threading.Event(), 0
        self.thread = threading.Thread(target=self.write)

    def write(self):
        simulated = type(self.offsets) is not torch.Tensor
        ways = [np.array(way, np.int32) for way in WRITTEN]
        at, stream = self.offsets.data_ptr(), None if simulated else torch.cuda.Stream()
        on_gpu = [] if simulated else [torch.from_numpy(way).cuda() for way in ways]
        while not self.ended.is_set():
            i = self.times % len(ways)
            if simulated:
                ctypes.memmove(at, ways[i].ctypes.data, ways[i].nbytes)
            else:
                with torch.cuda.stream(stream):
                    self.offsets.copy_(on_gpu[i], non_blocking=True)
            self.times += 1
        if stream:
            stream.synchronize()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


@pytest.mark.parametrize("case", CASES or NO_GPU, ids=str)
def test_a_gpu_reads_them(case, monkeypatch):
    row, tile = case
    row.force(monkeypatch)
    if tile:
        monkeypatch.setenv("NVFP4KERN_TILE", tile)
    rng = rng_of(41)
    a, b = data.exact_family(rng, ROWS, K), data.exact_family(rng, EXPERTS, N, K)
    operands = [codes(a, "cuda"), codes(b, "cuda")]
    operands += [scale_bytes(one.scales, "cuda") for one in (a, b)]
    out = Guarded((ROWS, N), "float16", "cuda")
    still = torch.tensor(WRITTEN[0], dtype=torch.int32, device="cuda")
    offsets = still.clone()
    with Written(offsets) as written:
        calls = 0
        while calls < 12 or written.times <= 12:  # a busy host's thread is slower than calls
            nvfp4kern.grouped_gemm(*operands, offsets=offsets, out=out.tensor)
            torch.cuda.synchronize()
            calls += 1
    assert out.guards_intact()
    out.poison()
    nvfp4kern.grouped_gemm(*operands, offsets=still, out=out.tensor)
    for g in range(EXPERTS):
        rows = slice(WRITTEN[0][g], WRITTEN[0][g + 1])
        want = reference.gemm(a.values[rows], b.values[g]).rounded("float16")
        assert_ok(reference.check_bits(values(out.tensor)[rows], want))
