"""What surrounds the kernels of every operator: streams, graph captures, workspace, batches."""

import numpy as np
import pytest
import torch
from cuda_calls import OPERATORS, SIZES, Call, run_python
from generators import floats, raw, rng_of

import nvfp4kern
from nvfp4kern.verify import data

pytestmark = pytest.mark.usefixtures("gpu")

every_operator = pytest.mark.parametrize("name", OPERATORS)
every_size = pytest.mark.parametrize("size", SIZES)
A_WHILE = 100_000_000  # cycles, some 50 ms: longer than any of these calls takes to enqueue


@every_size
@every_operator
def test_the_gpu_writes_what_the_cpu_writes(name, size):
    """Outputs are poisoned, guarded, and of the exact family."""
    call = Call(name, size=size)
    for seed in range(3):
        call.fill(seed).run()
        call.check(seed)


@every_operator
def test_inputs_are_left_alone(name):
    call = Call(name)
    before = [raw(t).copy() for t in call.inputs()]
    call.run()
    for tensor, then in zip(call.inputs(), before, strict=True):
        np.testing.assert_array_equal(raw(tensor), then)


@every_operator
def test_launches_are_ordered_in_the_current_stream(name):
    """The call comes back while its inputs are yet to be written, and what comes after waits."""
    call, stream = Call(name, seed=9), torch.cuda.Stream()
    call.run()
    right, wrong = call.staged(1), call.staged(2)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(A_WHILE)
        call.copy(right)
        call.run()
        for ours, new in zip(call.inputs(), wrong, strict=True):
            ours.copy_(new)
        assert not stream.query()
    stream.synchronize()
    call.check(1)


@every_size
@every_operator
def test_captured_calls_replay_on_new_data(name, size):
    """Also with outputs and workspace that the capture itself allocates."""
    call, graph = Call(name, size=size), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run()
        allocated = call.outputs_of(call.function(*call.args, **call.options))
    for seed in (1, 2, 1):
        call.fill(seed)
        graph.replay()
        call.check(seed)
        for made, out in zip(allocated, call.outs, strict=True):
            if not name.startswith("contiguous"):  # rows of nobody hold anything
                np.testing.assert_array_equal(raw(made), raw(out.tensor))


@every_operator
def test_the_first_call_of_a_process_may_be_captured(name):
    run_python(f"""
        import torch
        from cuda_calls import Call
        call, graph = Call({name!r}), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call.run()
        for seed in (1, 2):
            call.fill(seed)
            graph.replay()
            call.check(seed)
    """)


def test_a_first_call_disturbs_no_capture_of_another_thread():
    run_python("""
        import threading
        import torch
        from cuda_calls import Call
        captured, other = Call("gemv"), Call("gemm", size="small")
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        captured.run()
        torch.cuda.synchronize()
        assert not other.explain()["workspace_bytes"]  # torch's allocator must stay out of it
        def body():
            with torch.cuda.stream(stream):
                other.run()
        with torch.cuda.graph(graph):  # a capture that watches all threads
            thread = threading.Thread(target=body)
            thread.start()
            thread.join()
            captured.run()
        stream.synchronize()
        other.check(0)
        captured.fill(1)
        graph.replay()
        captured.check(1)
    """)


@pytest.mark.parametrize("overlap", ("", "0"))
@pytest.mark.parametrize("byte", (0xFF, 0x7B))
@every_operator
def test_workspace_may_hold_anything(monkeypatch, name, byte, overlap):
    monkeypatch.setenv("NVFP4KERN_PDL", overlap)
    call = Call(name)
    size = call.explain()["workspace_bytes"]
    for _ in range(2):
        garbage = torch.full((size,), byte, dtype=torch.uint8, device="cuda")
        del garbage  # the allocator's next block of this size
        call.fill(3).run()
        call.check(3)


# --- Batch invariance ---


def tokens_and_weights(k=4096, n=96, m=200):
    rng = rng_of(1)
    operands = data.full_range(rng, m, k), data.full_range(rng, n, k)
    return [torch.from_numpy(part).cuda() for o in operands for part in (o.codes, o.scales)]


def of_gemm(a, sfa, b, sfb):
    return nvfp4kern.gemm, (a, b, sfa, sfb), {"alpha": 2.0**-10}


def of_dual_gemm(a, sfa, b, sfb):
    half = len(b) // 2
    args = a, b[:half], b[half:], sfa, sfb[:half], sfb[half:]
    return nvfp4kern.dual_gemm, args, {"alpha1": 2.0**-22, "alpha2": 2.0**-10}


def of_contiguous(a, sfa, b, sfb):
    offsets = torch.tensor([0, len(a)], dtype=torch.int32, device="cuda")
    return nvfp4kern.grouped_gemm, (a, b[None], sfa, sfb[None]), {"offsets": offsets, "alpha": 1e-3}


def of_bfloats(a, sfa, b, sfb):
    x = nvfp4kern.dequantize((a, sfa, 2.0**-8), out_dtype="bfloat16")
    return nvfp4kern.gemm, (x, b, None, sfb), {}


@pytest.mark.parametrize("make", (of_gemm, of_dual_gemm, of_contiguous, of_bfloats))
@pytest.mark.parametrize("asked", (True, False))
def test_a_row_does_not_depend_on_its_batch_where_that_is_promised(make, asked, monkeypatch):
    """On data whose sums depend on their order; NVFP4KERN_BATCH_INVARIANT=1 demands the promise."""
    if asked:
        monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    a, sfa, b, sfb = tokens_and_weights()
    seen = {}
    for rows in (1, 7, 8, 33, 64, 100, 200):
        function, args, options = make(a[:rows], sfa[:rows], b, sfb)
        promised = nvfp4kern.explain(function.__name__, *args, **options)["batch_invariant"]
        assert promised or not asked
        if promised:
            seen[rows] = raw(function(*args, **options))
    for rows, got in seen.items():
        whole = seen[max(seen)]
        np.testing.assert_array_equal(got, whole[: got.size].reshape(got.shape), f"{rows} rows")


@pytest.mark.parametrize("make", (of_gemm, of_dual_gemm))
def test_a_row_that_begins_anywhere_is_promised_alike(make, monkeypatch):
    """The stride of a row alone is not used, but that of two decides which kernel can serve."""
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    a, sfa, b, sfb = tokens_and_weights(m=5)
    wide = torch.zeros(5, a.shape[1] + 8, dtype=torch.uint8, device="cuda")
    wide[:, : a.shape[1]] = a
    found = []
    for rows in (1, 5):
        function, args, options = make(wide[:rows, : a.shape[1]], sfa[:rows], b, sfb)
        found.append(raw(function(*args, **options))[0])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("w_dtype", ("bfloat16", "float32"))
def test_a_token_is_routed_alike_in_every_batch(w_dtype, monkeypatch):
    """By tiles of both sizes."""
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    rng = rng_of(4)
    x = floats(rng.standard_normal((130, 1539)), "bfloat16", "cuda")
    w = floats(rng.standard_normal((100, 1539)), w_dtype, "cuda")
    plan = nvfp4kern.explain("route", x, w, 4)
    assert plan["batch_invariant"] and plan["split"] > 1
    *_, whole = nvfp4kern.route(x, w, 4, return_logits=True)
    for rows in (1, 9, 100):
        *_, got = nvfp4kern.route(x[:rows], w, 4, return_logits=True)
        np.testing.assert_array_equal(raw(got), raw(whole[:rows]))


def test_batched_products_are_as_those_of_one(monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    matrix, vector = (
        data.full_range(rng_of(2), 5, 300, 4096),
        data.full_range(rng_of(3), 5, 1, 4096),
    )
    parts = (matrix.codes, vector.codes, matrix.scales, vector.scales)
    args = [torch.from_numpy(part).cuda() for part in parts]
    together = nvfp4kern.gemv(*args, alpha=2.0**-10)
    for i in range(5):
        alone = nvfp4kern.gemv(*(t[i] for t in args), alpha=2.0**-10)
        np.testing.assert_array_equal(raw(alone), raw(together[i]))


def test_few_long_tokens_meet_many_rows():
    """One wave of CTAs has no room for the sums of all rows beside the tokens."""
    tokens, rows = (
        data.exact_family(rng_of(seed), m, 16384, low=0, high=0) for seed, m in ((4, 8), (5, 1500))
    )
    parts = (tokens.codes, rows.codes, tokens.scales, rows.scales)
    got = nvfp4kern.gemm(*(torch.from_numpy(part).cuda() for part in parts), out_dtype="float32")
    assert data.is_exact(tokens.values, rows.values, abs(tokens.values) @ abs(rows.values).T)
    np.testing.assert_array_equal(got.cpu().numpy(), tokens.values @ rows.values.T)
