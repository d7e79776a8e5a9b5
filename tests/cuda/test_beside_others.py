"""The wgmma tiles beside other work on a Hopper GPU: streams, a kernel that holds half of the SMs,
weights that the kernel just before has written, graphs with new offsets."""

import ctypes

import numpy as np
import pytest
import torch
from conftest import GPUS, why_no_gpu
from cuda_calls import SIZES, Call, Driver
from generators import raw, rng_of

import nvfp4kern
from nvfp4kern.verify import data

CALLS = ("gemm", "gemm_in_batches", "gemm_of_bfloats", "dual_gemm", "dual_gemm_of_halves")
EXPERTS = ("contiguous", "contiguous_of_bfloats", "contiguous_by_rows")
FORCED = [
    *((name, tile) for name in CALLS for tile in ("t16", "t32", "v16", "w64")),
    *((name, tile) for name in EXPERTS for tile in ("v8", "w64", "w128")),
]
WRITTEN = [
    *((name, tile) for name in ("gemm", "dual_gemm") for tile in ("t16", "t64", "v16", "w256")),
    *(("grouped_gemm", tile) for tile in ("v16", "w64", "v112")),
]
each = pytest.mark.parametrize("name, tile", FORCED)
A_WHILE = 400_000_000  # cycles, some 200 ms: longer than any of these calls takes

HOLD = b"""
.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry hold(.param .u64 cycles)
{
    .reg .u64 %rd<4>;
    .reg .pred %p;
    ld.param.u64 %rd0, [cycles];
    mov.u64 %rd1, %clock64;
again:
    mov.u64 %rd2, %clock64;
    sub.u64 %rd3, %rd2, %rd1;
    setp.lt.u64 %p, %rd3, %rd0;
    @%p bra again;
    ret;
}
"""


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    found = next((gpu for gpu in GPUS if gpu.name == "sm90"), None)
    if found is None:
        pytest.skip(f"no GPU for sm90: {why_no_gpu()}")
    found.force(monkeypatch)
    monkeypatch.setitem(SIZES, "wide", (40, 1500, 2048))  # CTAs walk, or fill the GPU
    return found


@pytest.fixture
def make(monkeypatch):
    """make(name, tile, seed): a call that takes this tile."""

    def made(name, tile, seed=0):
        monkeypatch.setenv("NVFP4KERN_TILE", f"sm90/gemm:{tile}")
        call = Call(name, size="wide", seed=seed)
        plan = call.explain()
        assert (plan["backend"], plan["tile"]) == ("sm90", tile)
        return call

    return made


class Holder:
    """Kernels that occupy so many SMs: with 200 KB of shared memory a CTA is alone on its SM."""

    SMEM = 200 * 1024
    MOST_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

    def __init__(self):
        torch.cuda.synchronize()  # torch's context is the current one
        self.driver, module, self.kernel = Driver(), ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.cuModuleLoadData(ctypes.byref(module), HOLD)
        self.driver.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"hold")
        self.driver.cuFuncSetAttribute(self.kernel, self.MOST_SHARED_MEMORY, self.SMEM)

    def hold(self, stream, sms, cycles=A_WHILE):
        given = ctypes.c_uint64(cycles)
        values = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        place = ctypes.c_void_p(stream.cuda_stream)
        self.driver.cuLaunchKernel(
            self.kernel, sms, 1, 1, 32, 1, 1, self.SMEM, place, values, None
        )  # fmt: skip


@each
def test_calls_on_two_streams(make, name, tile):
    calls = [make(name, tile, seed) for seed in (1, 2)]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    for _ in range(10):
        for call, stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                call.run()
    torch.cuda.synchronize()
    for seed, call in zip((1, 2), calls, strict=True):
        call.check(seed)


@each
def test_beside_a_kernel_that_holds_half_of_the_sms(make, name, tile):
    call, holder = make(name, tile), Holder()
    call.run()  # everything is loaded
    call.fill(3)
    here, there = torch.cuda.Stream(), torch.cuda.Stream()
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    torch.cuda.synchronize()
    holder.hold(there, sms // 2)
    with torch.cuda.stream(here):
        call.run()
    here.synchronize()
    assert not there.query()  # so the call had the other half alone
    call.check(3)
    there.synchronize()


@pytest.mark.parametrize("pdl", ("", "0"))
@pytest.mark.parametrize("operator, tile", WRITTEN)
def test_weights_that_the_kernel_just_before_has_written_are_seen(
    hopper, operator, tile, pdl, monkeypatch
):
    """quantize writes them, and lets what follows begin early."""
    monkeypatch.setenv("NVFP4KERN_PDL", pdl)
    monkeypatch.setenv("NVFP4KERN_TILE", f"sm90/gemm:{tile}")
    m, n, k, rng = 24, 900, 2048, rng_of(1)
    tokens = data.exact_family(rng, m, k)
    new = [torch.from_numpy(data.exact_family(rng, n, k).values).half() for _ in range(4)]
    a, sfa = (torch.from_numpy(part).cuda() for part in (tokens.codes, tokens.scales))
    b = torch.zeros(n, k // 2, dtype=torch.uint8, device="cuda")
    sfb = torch.zeros(n, k // 16, dtype=torch.uint8, device="cuda")
    offsets = torch.tensor([0, m], dtype=torch.int32)

    def call(a, b, sfa, sfb, offsets):
        options = {"out_dtype": "float32"}
        if operator == "dual_gemm":
            return nvfp4kern.dual_gemm(a, b, b, sfa, sfb, sfb, activation="relu", **options)
        if operator == "gemm":
            return nvfp4kern.gemm(a, b, sfa, sfb, **options)
        return nvfp4kern.grouped_gemm(a, b[None], sfa, sfb[None], offsets=offsets, **options)

    on_gpu, of_gpu = [x.cuda() for x in new], offsets.cuda()
    call(a, b, sfa, sfb, of_gpu)
    got = []
    torch.cuda.synchronize()
    for x in on_gpu * 3:
        nvfp4kern.quantize(x, out=(b, sfb))
        got.append(call(a, b, sfa, sfb, of_gpu))
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    for i, ours in enumerate(got):
        q = nvfp4kern.quantize(new[i % len(new)])
        want = call(a.cpu(), q.data.view(torch.uint8), sfa.cpu(), q.scales.view(torch.uint8),
                    offsets)  # fmt: skip
        np.testing.assert_array_equal(raw(ours), raw(want))


@pytest.mark.parametrize("tile", ("v8", "v32", "w8", "w64", "w256"))
@pytest.mark.parametrize("name", EXPERTS)
def test_a_graph_replays_with_new_offsets(make, name, tile):
    call, graph = make(name, tile), torch.cuda.CUDAGraph()
    call.run()
    with torch.cuda.graph(graph):
        call.run()
    for seed in (1, 2, 3, 1):
        call.fill(seed)
        graph.replay()
        call.check(seed)
