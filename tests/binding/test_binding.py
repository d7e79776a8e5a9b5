"""The border between Python and C: the call itself, outputs, explain."""

import inspect
import re
import sys

import numpy as np
import pytest
import torch
from exporters import EXPECTED, OPERANDS, M, N, Versioned, new_capsule, same
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4kern as nk
import nvfp4kern.torch as nkt
from nvfp4kern.selftest import calls
from nvfp4kern.torch.generated import FUNCTIONS

# --- The call ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nk.gemm(),
            "gemm() missing 2 required positional arguments: 'a' and 'b'",
        ),
        (
            lambda: nk.dual_gemm(1, sfa=2),
            "dual_gemm() missing 4 required positional arguments: 'b1', 'b2', 'sfb1', and 'sfb2'",
        ),
        (
            lambda: nk.gemv(1, 2, 3, 4, 5),
            "gemv() takes from 3 to 4 positional arguments but 5 were given",
        ),
        (
            lambda: nk.gemm(1, 2, 3, 4, 5),
            "gemm() takes from 2 to 4 positional arguments but 5 were given",
        ),
        (
            lambda: nk.quantize(1, layout=2),
            "quantize() got an unexpected keyword argument 'layout'",
        ),
        (lambda: nk.quantize(1, x=2), "quantize() got multiple values for argument 'x'"),
        (lambda: nk.explain(), "explain() missing 1 required positional argument: 'op'"),
        (
            lambda: nk.explain("quantize"),
            "quantize() missing 1 required positional argument: 'x'",
        ),
        (lambda: nk.warmup("cpu", 1), "warmup() takes from 0 to 1 positional arguments"),
    ],
)
def test_calls_fail_as_python_functions_do(call, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_how_many_arguments_are_taken(name):
    parameters = inspect.signature(getattr(nk, name)).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    required, positional = sum(p.default is p.empty for p in positional), len(positional)
    call = getattr(nk, name)
    if required:
        with pytest.raises(
            TypeError, match=rf"^{name}\(\) missing 1 required positional argument: "
        ):
            call(*[object()] * (required - 1))
    for count in (required, positional):
        with pytest.raises(TypeError, match="^[a-z0-9]+: "):
            call(*[object()] * count)
    with pytest.raises(TypeError, match=rf"^{name}\(\) takes .* but {positional + 1} were given$"):
        call(*[object()] * (positional + 1))


@pytest.mark.parametrize("alpha", [2, 2.0, np.float32(2), np.float64(2), np.int64(2)])
def test_numbers(alpha):
    assert same(nk.gemm(*OPERANDS, alpha=alpha), nk.gemm(*OPERANDS, alpha=torch.tensor([2.0])))


def test_the_largest_float_is_no_overflow():
    zero = [torch.zeros_like(t) for t in OPERANDS]
    assert nk.gemm(*zero, alpha=3.40282356e38).count_nonzero() == 0
    assert nk.gemm(*zero, alpha=float("inf")).isnan().all()


# --- Outputs ---


@pytest.mark.parametrize("word", ["float16", torch.float16, np.float16, np.dtype("float16"), None])
def test_spellings_of_out_dtype(word):
    assert nk.gemm(*OPERANDS, out_dtype=word).dtype == torch.float16


def results_of(library, tokens, sf):
    """Of every operator that multiplies tokens, 16-bit ones with sf=None. Also of combine."""
    w, sfb, _ = library.quantize(torch.ones(4, 32))
    stacks, ends = (w[None], sf, sfb[None]), torch.tensor([0, 4], dtype=torch.int32)
    yield library.gemm(tokens, w, sf, sfb)
    yield library.gemv(w, tokens[:1], sfb, sf if sf is None else sf[:1])
    yield library.dual_gemm(tokens, w, w, sf, sfb, sfb)
    yield library.grouped_gemm(tokens, *stacks, offsets=ends)
    yield library.grouped_dual_gemm(tokens, *stacks, ends)
    yield library.grouped_gemm([tokens], [w], [sf], [sfb])[0]
    if sf is None:
        yield library.grouped_gemm(tokens, tokens[None], offsets=ends)
        yield library.combine(tokens, torch.arange(4, dtype=torch.int32), torch.ones(4, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("library", [nk, nkt])
def test_results_have_the_dtype_of_16_bit_tokens(library, dtype):
    x = torch.ones((4, 32), dtype=dtype)
    assert [y.dtype for y in results_of(library, x, None)] == [dtype] * 8
    assert [y.dtype for y in results_of(library, *nk.quantize(x)[:2])] == [torch.float16] * 6
    large = nk.linear(3e4 * x, nk.quantize(x))  # beyond float16
    assert bool(large.isfinite().all()) == (dtype == torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fakes_have_the_dtypes_of_results(dtype):
    x = torch.ones((4, 32), dtype=dtype)
    for given in ((x, None), nk.quantize(x)[:2]):
        want = [y.dtype for y in results_of(nkt, *given)]
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert [y.dtype for y in results_of(nkt, *given)] == want


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_out_dtype_and_out(dtype):
    assert nk.gemm(*OPERANDS, out_dtype=dtype).dtype == dtype
    out = torch.empty(M, N, dtype=dtype)
    assert nk.gemm(*OPERANDS, out=out) is out
    assert nk.gemm(*OPERANDS, out=out, out_dtype=dtype) is out
    other = "float16" if dtype == torch.float32 else "float32"
    with pytest.raises(ValueError, match=f"^out_dtype: {other}, but out has dtype"):
        nk.gemm(*OPERANDS, out=out, out_dtype=other)
    with pytest.raises(ValueError, match=f"^out_dtype: {other}, but out has dtype"):
        nk.grouped_gemm(*([t] for t in OPERANDS), out=[out], out_dtype=other)


def test_torch_gives_torch():
    q = nk.quantize(torch.ones(4, 32), global_scale="amax")
    assert isinstance(q, nk.NVFP4)
    assert (q.data.dtype, q.data.shape) == (torch.float4_e2m1fn_x2, (4, 16))
    assert (q.scales.dtype, q.scales.shape) == (torch.float8_e4m3fn, (4, 2))
    assert (q.global_scale.dtype, q.global_scale.shape) == (torch.float32, (1,))
    assert nk.to_blocked(q.scales).dtype == torch.float8_e4m3fn


def test_numpy_gives_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # which another test may have imported
    q = nk.quantize(np.ones((4, 32), np.float32), global_scale="amax")
    assert all(type(t) is np.ndarray for t in q)
    assert (q.data.dtype, q.scales.dtype, q.global_scale.dtype) == ("uint8", "uint8", "float32")
    arrays = [t.numpy() for t in OPERANDS]
    assert nk.gemm(*arrays, out_dtype=np.float32).dtype == "float32"
    with pytest.raises(TypeError, match="^out_dtype: bfloat16, but numpy has no such type.*out="):
        nk.gemm(*arrays, out_dtype="bfloat16")
    out = torch.empty(M, N, dtype=torch.bfloat16)
    assert nk.gemm(*arrays, out=out) is out
    weights, ids = nk.route(np.ones((2, 16), np.float16), np.ones((4, 16), np.float16), 2)
    assert (weights.dtype, ids.dtype) == ("float32", "int32")


def test_subclasses_of_ndarray(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 16))
    assert type(nk.quantize(mapped).data) is np.ndarray


def test_unknown_types_must_give_out():
    args = [Versioned(t) for t in OPERANDS]
    with pytest.raises(TypeError, match="^out: None, but no .*Versioned can be made.*out="):
        nk.gemm(*args)
    with pytest.raises(TypeError, match="^out: None, "):
        nk.gemm(*map(new_capsule, OPERANDS))
    for call in (
        lambda: nk.quantize(Versioned(torch.ones(2, 16))),
        lambda: nk.route(*[Versioned(torch.ones(2, 16).half())] * 2, 1),
        lambda: nk.grouped_gemm(*([arg] for arg in args)),
        lambda: nk.to_blocked(Versioned(OPERANDS[2])),
    ):
        with pytest.raises(TypeError, match="^out: None, but no .*Versioned can be made"):
            call()
    assert same(nk.gemm(*args, out=np.zeros((M, N), np.float16)), EXPECTED)


def test_what_quantize_returns_as_global_scale():
    x, scale = torch.ones(1, 16), torch.tensor([0.5])
    assert nk.quantize(x).global_scale == 1.0
    assert nk.quantize(x, global_scale=0.25).global_scale == 0.25
    assert nk.quantize(x, global_scale=scale).global_scale is scale
    assert nk.quantize(x, global_scale=1e-45).global_scale == 1e-45


def test_outputs_are_returned_by_identity():
    a, b, sfa, sfb = OPERANDS
    x = torch.ones(2, 16)
    data, scales, amax = nk.quantize(x, global_scale="amax")
    given = nk.quantize(x, global_scale="amax", out=(data, scales, amax))
    assert given.data is data and given.scales is scales and given.global_scale is amax
    given = nk.quantize(x, global_scale="amax", out=[data, None, amax])
    assert given.data is data and given.scales is not scales and given.global_scale is amax
    with pytest.raises(ValueError, match=r"^out: 3 items, expected \(data, scales\)"):
        nk.quantize(x, out=(data, scales, amax))

    outs = [torch.empty(M, N, dtype=torch.float16)]
    assert nk.grouped_gemm([a], [b], [sfa], [sfb], out=outs) is outs
    assert isinstance(nk.grouped_gemm((a,), (b,), [sfa], [sfb]), list)
    assert nk.grouped_gemm([], []) == []

    h = x.half()
    for permutation in (False, True):
        first = nk.route(h, h, 2, permutation=permutation)
        again = nk.route(h, h, 2, permutation=permutation, out=list(first))
        assert len(again) == (5 if permutation else 2)
        assert all(one is other for one, other in zip(first, again, strict=True))


# --- explain, backends, warmup ---


def test_explain_runs_nothing():
    out = torch.full((M, N), 7.0, dtype=torch.float16)
    plan = nk.explain("gemm", *OPERANDS, out=out)
    assert (out == 7).all()
    assert {"backend", "kernel", "why", "workspace_bytes", "batch_invariant"} <= plan.keys()
    assert all(plan[key] for key in plan.keys() - {"workspace_bytes", "batch_invariant"})
    assert nk.explain("gemm", *OPERANDS) == plan and list(plan)[:4] == [
        "backend", "kernel", "why", "tile_m"
    ]  # fmt: skip


def test_every_operator_is_explained():
    explained = set()
    for make in calls.OPERATORS.values():
        function, args, options = make(np.random.default_rng(0), 5, 33, 48)
        plan = nk.explain(function.__name__, *args, **options)
        assert plan["backend"] in {row["name"] for row in nk.backends()}
        explained.add(function.__name__)
    assert explained == set(FUNCTIONS)


def test_backends():
    rows = nk.backends()
    assert {"cpu"} <= {row["name"] for row in rows}
    for row in rows:
        assert list(row) == ["name", "devices", "available", "why_not", "code", "needs"]
        assert row["available"] is (row["why_not"] is None)


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_warmup(device):
    assert nk.warmup(device) is None
    assert nk.warmup(device=device) is None


NO_DEVICES = "tpu cuda: cuda:x cuda:-1 cuda:+1 cuda:1a cuda:2147483648 cuda:99999999999 other1"


@pytest.mark.parametrize("device", [*NO_DEVICES.split(), 3])
def test_warmup_of_what_is_no_device(device):
    with pytest.raises(ValueError, match="^device: .*expected 'cpu', 'cuda' or"):
        nk.warmup(device)


def test_warmup_of_what_is_not_there():
    for device in (
        "cuda:1000",
        "cuda:2147483647",
        *([] if torch.cuda.is_available() else ["cuda", "cuda:0"]),
    ):
        with pytest.raises(nk.BackendError, match="device"):
            nk.warmup(device)


def test_tiles_are_of_the_rows_that_the_build_has():
    tiles = nk._C._tiles()
    built = {row["name"] for row in nk.backends() if row["code"]}
    assert {tile["row"] for tile in tiles.values()} == built
    assert all(f"{t['row']}/{t['family']}:{t['tile']}" == name for name, t in tiles.items())
    if "sm90" in built:  # as SM90_GEMM_TILES and SM90_LIST_PIPELINES say
        sizes = {"tile_m": 32, "tile_n": 128, "tile_k": 256, "stages": 6, "cluster": 1}
        sizes |= {"split_k": 1, "warpgroups": 2}
        operators = ["gemm", "dual_gemm", "list_gemm"]
        names = {"row": "sm90", "family": "gemm", "tile": "w32"}
        assert tiles["sm90/gemm:w32"] == names | sizes | {"operators": operators}
