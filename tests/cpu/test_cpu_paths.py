"""The CPU's paths against the scalar one, how one is chosen, and the threads they run on."""

import subprocess
import sys
import textwrap
from functools import partial

import numpy as np
import pytest
import torch
from conftest import cpu_paths
from generators import DTYPES, ODD_SHAPES, assert_ok, codes, floats, rng_of, scale_bytes, scales
from threads import in_threads

import nvfp4kern
from nvfp4kern.verify import data, reference

PATHS = cpu_paths()
FAST = [path for path in PATHS if path != "scalar"]
if not FAST:
    FAST = [pytest.param(None, marks=pytest.mark.skip(reason="only the scalar path runs here"))]
BOUNDARIES = [  # around the paths' tiles, strips, steps and chunks
    (1, 130, 16 * 65),
    (2, 47, 16 * 33),
    (9, 15, 16 * 31),
    (129, 161, 512),
    (131, 33, 528),
    (8, 128, 1040),
]


@pytest.fixture(params=FAST)
def both(request, monkeypatch):
    """Runs a function on this path and on the scalar one."""
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")

    def run(function, *args, **options):
        results = []
        for path in (request.param, "scalar"):
            monkeypatch.setenv("NVFP4KERN_CPU", path)
            results.append(function(*args, **options))
        return results

    return run


def bits(result):
    if isinstance(result, (list, tuple)):
        return [bits(item) for item in result]
    if isinstance(result, torch.Tensor):
        return result.contiguous().view(torch.uint8).numpy().tobytes()
    return result


def assert_same_bits(results):
    assert bits(results[0]) == bits(results[1])


def operands(make, *shapes, rng):
    """Codes of all, then scales of all."""
    made = [make(rng, *shape) for shape in shapes]
    return [codes(o, "cpu") for o in made] + [scale_bytes(o.scales, "cpu") for o in made]


# --- Bits ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, k", ODD_SHAPES + BOUNDARIES)
def test_exact_sums(both, m, n, k, dtype):
    rng = rng_of(m, n, k)
    a, b = data.exact_family(rng, 2, m, k), data.exact_family(rng, 2, n, k)
    args = codes(a, "cpu"), codes(b, "cpu")
    for form in ("linear", "blocked"):
        sf = [scales(o, form, rng, "cpu") for o in (a, b)]
        assert_same_bits(both(nvfp4kern.gemm, *args, *sf, out_dtype=dtype, scale_layout=form))
        vector = args[1], args[0][:, :1], sf[1]
        if form == "linear":
            assert_same_bits(both(nvfp4kern.gemv, *vector, sf[0][:, :1], out_dtype=dtype))


@pytest.mark.parametrize("m, n, k", ODD_SHAPES + BOUNDARIES)
def test_nvfp4_sums_in_the_order_of_k(both, m, n, k, monkeypatch):
    """Only the additions of a sum round: in one order the bits are the same for any scales."""
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    args = operands(data.full_range, (m, k), (n, k), rng=rng_of(m, n, k))
    assert_same_bits(both(nvfp4kern.gemm, *args, out_dtype="float32"))


def test_grouped_gemm(both):
    rng = rng_of(3)
    a, b, sfa, sfb = operands(data.exact_family, (140, 208), (4, 130, 208), rng=rng)
    offsets = torch.tensor([0, 1, 1, 130, 138], dtype=torch.int32)
    results = both(nvfp4kern.grouped_gemm, a, b, sfa, sfb, offsets=offsets, out_dtype="float32")
    assert_same_bits([result[:138] for result in results])
    rows = torch.from_numpy(rng.integers(0, 3 * 140, 138, np.int32))
    options = {"offsets": offsets, "rows": rows, "rows_per_token": 3, "out_dtype": "float32"}
    assert_same_bits(both(nvfp4kern.grouped_gemm, a, b, sfa, sfb, **options))
    rows = [[t[first:end] for first, end in ((0, 1), (1, 130), (130, 140))] for t in (a, sfa)]
    lists = rows[0], [b[i] for i in range(3)], rows[1], [sfb[i] for i in range(3)]
    assert_same_bits(both(nvfp4kern.grouped_gemm, *lists))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_dual_gemm(both, activation, dtype):
    args = operands(data.exact_family, (130, 208), (140, 208), (140, 208), rng=rng_of(4))
    options = {"activation": activation, "alpha1": 2.0**-6, "out_dtype": dtype}
    assert_same_bits(both(nvfp4kern.dual_gemm, *args, **options))


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("m, n, k", ODD_SHAPES + BOUNDARIES)
def test_16_bit_activations(both, m, n, k, dtype):
    rng = rng_of(m, n, k)
    x, b = data.small_integers(rng, m, k, most=1), data.exact_family(rng, n, k)
    total, magnitude = reference.matmul(x.astype(np.float64), b.values)
    assert data.is_exact(x, b.values, magnitude)
    args = floats(x, dtype, "cpu"), codes(b, "cpu"), None, scale_bytes(b.scales, "cpu")
    results = both(nvfp4kern.gemm, *args, out_dtype="float32")
    assert_same_bits(results)
    assert_ok(reference.check_bits(results[0].numpy(), total))


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("n_innermost", (False, True))
def test_16_bit_operands(both, dtype, n_innermost):
    rng = rng_of(5)
    x, w = data.small_integers(rng, 37, 272), data.small_integers(rng, 3, 45, 272)
    w = floats(w, dtype, "cpu")
    if n_innermost:
        w = w.transpose(1, 2).contiguous().transpose(1, 2)
    offsets = torch.tensor([0, 20, 21, 37], dtype=torch.int32)
    args = floats(x, dtype, "cpu"), w, None, None
    results = both(nvfp4kern.grouped_gemm, *args, offsets=offsets, out_dtype="float32")
    assert_same_bits(results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", (16, 48, 1008, 1024, 1040))
@pytest.mark.parametrize("s2", (1e-38, 1e-3, 1.0, 1e30, "amax"))
def test_quantize(both, k, dtype, s2):
    rng = rng_of(k)
    x = data.halves(rng, dtype, 21, k, scale=3.0)
    x[0, 3], x[1, 5], x[2, 7], x[3], x[4] = np.nan, np.inf, -np.inf, -0.0, 1e-30
    x[5:13, 0] = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])  # ties
    given = floats(x, dtype, "cpu")
    for options in ({}, {"scale_layout": "blocked"}, {"up": given}):
        if options or s2 != "amax":
            assert_same_bits(both(nvfp4kern.quantize, given, global_scale=s2, **options))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize_every_code_and_scale(both, dtype):
    packed = np.tile(np.repeat(np.arange(256, dtype=np.uint8), 8), (256, 1))
    sf = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 256, axis=1)
    fast, scalar = both(nvfp4kern.dequantize, (packed, sf, 0.3), out_dtype="float32")
    np.testing.assert_array_equal(fast, scalar)
    q = torch.from_numpy(packed), torch.from_numpy(sf), 3e3
    fast, scalar = both(nvfp4kern.dequantize, q, out_dtype=dtype)
    assert torch.equal(fast.isnan(), scalar.isnan())
    assert torch.equal(fast.nan_to_num(1), scalar.nan_to_num(1))


def test_every_half(both):
    """All fp16 and bf16 values go in and come out as on the scalar path."""
    every = np.arange(2**16, dtype=np.uint16).reshape(-1, 16)
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.from_numpy(every.view(np.int16)).view(dtype)
        assert_same_bits(both(nvfp4kern.quantize, x, global_scale=1e-4))


# --- Choosing ---


def plan(m=4, n=8, k=32):
    a, b, sfa, sfb = operands(data.full_range, (m, k), (n, k), rng=rng_of(6))
    return nvfp4kern.explain("gemm", a, b, sfa, sfb)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    return monkeypatch


def test_explain_says_the_path(on_cpu):
    words = {"scalar": "portable C", "avx2": "AVX2", "avx512-bw": "BW", "avx512-vnni": "VNNI"}
    words |= {"neon-mul": "NEON", "neon-dotprod": "dot products"}
    for path in PATHS:
        on_cpu.setenv("NVFP4KERN_CPU", path)
        assert words[path] in plan()["why"]
    on_cpu.delenv("NVFP4KERN_CPU")
    assert words[PATHS[-1]] in plan()["why"]
    on_cpu.setenv("NVFP4KERN_CPU", "")
    assert words[PATHS[-1]] in plan()["why"]


def test_a_family_is_its_best_path(on_cpu):
    if "avx512-bw" not in PATHS:
        pytest.skip("no AVX-512 here")
    on_cpu.setenv("NVFP4KERN_CPU", "avx512")
    assert ("VNNI" if "avx512-vnni" in PATHS else "BW") in plan()["why"]


@pytest.mark.parametrize("name", ("sse", "avx", "avx5", "AVX2", "avx512-", "scalar "))
def test_unknown_paths(on_cpu, name):
    on_cpu.setenv("NVFP4KERN_CPU", name)
    with pytest.raises(nvfp4kern.BackendError, match=f"^NVFP4KERN_CPU: '{name}', expected"):
        plan()


@pytest.mark.parametrize("name", ("avx2", "avx512", "neon", "neon-mul"))
def test_paths_of_other_processors_are_not_offered(on_cpu, name):
    family = name.partition("-")[0]
    if any(path.startswith(family) for path in PATHS):
        pytest.skip("a path of this one")
    on_cpu.setenv("NVFP4KERN_CPU", name)
    with pytest.raises(nvfp4kern.BackendError, match="^NVFP4KERN_CPU: ") as failed:
        plan()
    _, _, offered = str(failed.value).partition("expected")
    assert family not in offered


def test_paths_that_this_processor_lacks(on_cpu):
    lacking = {"avx2", "avx512-bw", "avx512-vnni"} - set(PATHS)
    if not lacking:
        pytest.skip("this processor has them all")
    for name in lacking:
        on_cpu.setenv("NVFP4KERN_CPU", name)
        with pytest.raises(nvfp4kern.BackendError, match="^NVFP4KERN_CPU: "):
            plan()


def test_only_one_order_is_batch_invariant(on_cpu):
    on_cpu.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    assert plan()["batch_invariant"]
    on_cpu.delenv("NVFP4KERN_BATCH_INVARIANT")
    on_cpu.setenv("NVFP4KERN_CPU", "scalar")
    assert plan()["batch_invariant"]


# --- Threads ---


def calls():
    """Each large enough for threads."""
    rng = rng_of(7)
    a, b, sfa, sfb = operands(data.full_range, (70, 512), (600, 512), rng=rng)
    x = floats(data.halves(rng, "bfloat16", 300, 512), "bfloat16", "cpu")
    offsets = torch.tensor([0, 3, 3, 70], dtype=torch.int32)
    experts = operands(data.full_range, (3, 300, 512), rng=rng)
    q = nvfp4kern.quantize(x)
    return [
        lambda: nvfp4kern.gemm(a, b, sfa, sfb, out_dtype="float32"),
        lambda: nvfp4kern.gemv(b, a[:1], sfb, sfa[:1], out_dtype="float32"),
        lambda: nvfp4kern.gemm(x, b, None, sfb),
        lambda: nvfp4kern.dual_gemm(a, b, b, sfa, sfb, sfb, out_dtype="bfloat16"),
        lambda: nvfp4kern.grouped_gemm(a, experts[0], sfa, experts[1], offsets=offsets),
        lambda: nvfp4kern.route(x, x[:200], 8, permutation=True),
        lambda: nvfp4kern.quantize(x, global_scale="amax", scale_layout="blocked"),
        lambda: nvfp4kern.dequantize(q, out_dtype="float32"),
    ]


def test_results_do_not_depend_on_threads(on_cpu):
    jobs = calls()
    on_cpu.setenv("NVFP4KERN_NUM_THREADS", "1")
    want = [bits(job()) for job in jobs]
    for threads in (2, 3, 5, 17, 2):
        on_cpu.setenv("NVFP4KERN_NUM_THREADS", str(threads))
        assert plan(512, 512, 512)["threads"] == threads
        assert plan()["threads"] == 1
        for job, expected in zip(jobs, want, strict=True):
            assert bits(job()) == expected, threads


@pytest.mark.parametrize("text", ("0", "-1", "two", "1.5", "257", "99999999999999999999", "2 "))
def test_wrong_thread_counts(on_cpu, text):
    on_cpu.setenv("NVFP4KERN_NUM_THREADS", text)
    with pytest.raises(nvfp4kern.BackendError, match=f"^NVFP4KERN_NUM_THREADS: '{text}', expected"):
        plan()


def test_callers_at_the_same_time(on_cpu):
    on_cpu.setenv("NVFP4KERN_NUM_THREADS", "3")
    jobs = calls()
    want = [bits(job()) for job in jobs]

    def repeat(job, expected):
        for _ in range(5):
            assert bits(job()) == expected

    in_threads(*(partial(repeat, *pair) for pair in zip(jobs, want, strict=True)))


def run_python(program):
    program = textwrap.dedent(COUNT) + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout.split()  # fmt: skip


COUNT = """
    import os
    import numpy as np
    import nvfp4kern as nk
    b, sf = np.full((4096, 256), 0x22, np.uint8), np.full((4096, 32), 0x38, np.uint8)
    def right():
        return bool((nk.gemm(b[:64], b, sf[:64], sf, out_dtype="float32") == 512).all())
    def threads():
        return len(os.listdir("/proc/self/task"))
    os.environ["NVFP4KERN_BACKEND"] = "cpu"
"""


def test_threads_start_when_wanted_and_stay():
    program = """
        before = threads()
        os.environ["NVFP4KERN_NUM_THREADS"] = "1"
        assert right() and threads() == before
        os.environ["NVFP4KERN_NUM_THREADS"] = "4"
        assert right() and right()
        print(threads() - before)
    """
    assert run_python(program) == ["3"]


def test_threads_follow_the_affinity():
    program = """
        os.environ.pop("NVFP4KERN_NUM_THREADS", None)
        before = threads()
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        assert right() and threads() == before
        print(nk.explain("to_blocked", sf)["threads"])
    """
    assert run_python(program) == ["1"]


def test_fork_after_use():
    program = """
        os.environ["NVFP4KERN_NUM_THREADS"] = "3"
        assert right()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                ok = threads() == 1 and right() and threads() == 3
                os._exit(0 if ok else 1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            assert right()
    """
    assert run_python(program) == ["0"] * 5


def test_threads_take_no_signals():
    program = """
        import signal, threading
        os.environ["NVFP4KERN_NUM_THREADS"] = "3"
        before = set(os.listdir("/proc/self/task"))
        assert right()
        for task in set(os.listdir("/proc/self/task")) - before:
            with open(f"/proc/self/task/{task}/status") as lines:
                blocked = next(line.split()[1] for line in lines if line.startswith("SigBlk"))
            print(int(blocked, 16) >> signal.SIGINT - 1 & 1)
    """
    assert run_python(program) == ["1", "1"]
