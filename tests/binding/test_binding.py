"""The border between Python and C: the call itself, outputs, explain, references."""

import inspect
import re
import sys

import numpy as np
import pytest
import torch
from exporters import EXPECTED, OPERANDS, Legacy, M, N, Versioned, new_capsule, old_capsule, same

import nvfp4kern as nk
from nvfp4kern.selftest import calls
from nvfp4kern.torch.generated import FUNCTIONS

# ---------------------------------------------------------------------------------------------
# The call
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nk.gemm(),
            "gemm() missing 4 required positional arguments: 'a', 'b', 'sfa', and 'sfb'",
        ),
        (
            lambda: nk.gemm(1, sfa=2),
            "gemm() missing 2 required positional arguments: 'b' and 'sfb'",
        ),
        (lambda: nk.quantize(), "quantize() missing 1 required positional argument: 'x'"),
        (
            lambda: nk.gemv(1, 2, 3, 4, 5),
            "gemv() takes from 3 to 4 positional arguments but 5 were given",
        ),
        (lambda: nk.quantize(1, 2), "quantize() takes 1 positional argument but 2 were given"),
        (lambda: nk.gemm(1, 2, 3, 4, 5), "gemm() takes 4 positional arguments but 5 were given"),
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


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"alpha": "1"}, TypeError, "alpha"),
        ({"alpha": True}, TypeError, "alpha"),
        ({"alpha": None}, TypeError, "alpha"),
        ({"alpha": 1j}, TypeError, "alpha"),
        ({"alpha": 1e39}, ValueError, "alpha"),
        ({"alpha": -3.4028235678e38}, ValueError, "alpha"),
        ({"alpha": 10**400}, ValueError, "alpha"),
        ({"scale_layout": 1}, TypeError, "scale_layout"),
        ({"scale_layout": "swizzled"}, ValueError, "scale_layout"),
        ({"scale_layout": ("linear",)}, ValueError, "scale_layout"),
        ({"scale_layout": ("linear", "x")}, ValueError, "scale_layout"),
        ({"scale_layout": ("linear", None)}, TypeError, "scale_layout"),
        ({"out_dtype": "float64"}, ValueError, "out_dtype"),
        ({"out_dtype": np.int8}, ValueError, "out_dtype"),
        ({"out_dtype": torch.float8_e4m3fn}, ValueError, "out_dtype"),
    ],
)
def test_options_are_refused_by_name(options, error, name):
    with pytest.raises(error, match=rf"^{name}: "):
        nk.gemm(*OPERANDS, **options)


def test_unknown_words_list_the_valid_ones():
    with pytest.raises(ValueError, match="scale_layout: 'x', expected 'linear' or 'blocked'"):
        nk.gemm(*OPERANDS, scale_layout="x")
    with pytest.raises(ValueError, match="out_dtype: 'x', expected 'float16', 'bfloat16' or"):
        nk.gemm(*OPERANDS, out_dtype="x")
    with pytest.raises(ValueError, match="op: 'x', expected 'quantize', "):
        nk.explain("x")


@pytest.mark.parametrize("alpha", [2, 2.0, np.float32(2), np.float64(2), np.int64(2)])
def test_numbers(alpha):
    assert same(nk.gemm(*OPERANDS, alpha=alpha), nk.gemm(*OPERANDS, alpha=torch.tensor([2.0])))


def test_the_largest_float_is_no_overflow():
    zero = [torch.zeros_like(t) for t in OPERANDS]
    assert nk.gemm(*zero, alpha=3.40282356e38).count_nonzero() == 0
    assert nk.gemm(*zero, alpha=float("inf")).isnan().all()


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"k": 1.0}, TypeError, "k"),
        ({"k": 2**64}, ValueError, "k"),
        ({"dense": 1}, TypeError, "dense"),
        ({"permutation": None}, TypeError, "permutation"),
        ({"renormalize": 0}, TypeError, "renormalize"),
        ({"renormalize": False}, ValueError, "renormalize"),
        ({"score": "softmax"}, ValueError, "score"),
        ({"scaling_factor": "1"}, TypeError, "scaling_factor"),
        ({"n_group": None}, TypeError, "n_group"),
        ({"out": [None]}, ValueError, "out"),
        ({"out": 3}, TypeError, "out"),
    ],
)
def test_route_options_are_refused_by_name(options, error, name):
    x, w = torch.ones(2, 16, dtype=torch.float16), torch.ones(4, 16, dtype=torch.float16)
    with pytest.raises(error, match=rf"^{name}: "):
        nk.route(x, w, **({"k": 2} | options))


@pytest.mark.parametrize("scale", [0, 0.0, -1.0, float("inf"), float("nan"), 1e-46, "max", 1e39])
def test_global_scale_must_be_a_positive_number(scale):
    with pytest.raises(ValueError, match="^global_scale: "):
        nk.quantize(torch.ones(1, 16), global_scale=scale)


# ---------------------------------------------------------------------------------------------
# Tensors that are none
# ---------------------------------------------------------------------------------------------

NAMES = ("a", "b", "sfa", "sfb")


@pytest.mark.parametrize(
    "value", [[1, 2], object(), 3, "x"], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("position", range(4))
def test_objects_without_dlpack(position, value):
    args = list(OPERANDS)
    args[position] = value
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"^{NAMES[position]}: {kind}, expected a tensor"):
        nk.gemm(*args)


@pytest.mark.parametrize("position", [0, 1])
def test_none_where_a_tensor_is_needed(position):
    args = list(OPERANDS)
    args[position] = None
    with pytest.raises(TypeError, match=f"^{NAMES[position]}: None, expected a tensor"):
        nk.gemm(*args)


def test_lists_say_which_item():
    a, b, sfa, sfb = OPERANDS
    with pytest.raises(TypeError, match=r"^b\[1\]: None, expected a tensor"):
        nk.grouped_gemm([a, a], [b, None], [sfa, sfa], [sfb, sfb])
    with pytest.raises(ValueError, match="^sfa: 1 items, expected 2"):
        nk.grouped_gemm([a, a], [b, b], [sfa], [sfb, sfb])
    with pytest.raises(TypeError, match="^b: Tensor, expected a list"):
        nk.grouped_gemm([a], b, [sfa], [sfb])
    with pytest.raises(TypeError, match="^alpha: Tensor, expected a number or a list"):
        nk.grouped_gemm([a], [b], [sfa], [sfb], alpha=torch.ones(1))
    with pytest.raises(ValueError, match="^offsets: "):
        nk.grouped_gemm([a], [b], [sfa], [sfb], offsets=torch.zeros(2, dtype=torch.int32))
    with pytest.raises(TypeError, match="^offsets: None, expected int32"):
        nk.grouped_gemm(a, b[None], sfa, sfb[None])


def test_q_is_a_triple():
    for q, error in ((torch.ones(3), TypeError), ((1, 2), ValueError), (None, TypeError)):
        with pytest.raises(error, match="^q: "):
            nk.dequantize(q)
    with pytest.raises(ValueError, match=r"^q\.scales: None"):
        nk.dequantize((torch.zeros(1, 8, dtype=torch.uint8), None, 1.0))


# ---------------------------------------------------------------------------------------------
# Outputs
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["float16", torch.float16, np.float16, np.dtype("float16"), None])
def test_spellings_of_out_dtype(word):
    assert nk.gemm(*OPERANDS, out_dtype=word).dtype == torch.float16


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


def test_numpy_gives_numpy():
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


def test_outputs_that_cannot_be_written():
    frozen = np.zeros((M, N), np.float16)
    frozen.flags.writeable = False
    out = torch.zeros_like(EXPECTED)
    for bad in (frozen, old_capsule(out), Legacy(out)):
        with pytest.raises(ValueError, match="^out: .*read-only"):
            nk.gemm(*OPERANDS, out=bad)
    assert not frozen.any() and not out.any()
    frozen_inputs = [t.numpy().copy() for t in OPERANDS]
    for array in frozen_inputs:
        array.flags.writeable = False
    assert same(nk.gemm(*frozen_inputs), EXPECTED)


# ---------------------------------------------------------------------------------------------
# explain, backends, warmup
# ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "device",
    [
        "tpu",
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:+1",
        "cuda:1a",
        "cuda:2147483648",
        "cuda:99999999999",
        "other1",
        3,
    ],
)
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


# ---------------------------------------------------------------------------------------------
# References
# ---------------------------------------------------------------------------------------------


def calls_of(args):
    """Good calls and calls that fail early, midway and late."""
    a, b, sfa, sfb, out = args
    yield lambda: nk.gemm(a, b, sfa, sfb, out=out)
    yield lambda: nk.gemm(a, b, sfa, sfb, bad=out)
    yield lambda: nk.gemm(a, b, sfa, sfb, alpha=[out])
    yield lambda: nk.gemm(a, b, sfa, sfb, out=a)
    yield lambda: nk.gemm(a, b, sfa, sfb, out=out, out_dtype="float32")
    yield lambda: nk.gemm(a, b, sfb, sfa, out=out)
    yield lambda: nk.grouped_gemm([a], [b], [sfa], [sfb], out=[out])
    yield lambda: nk.grouped_gemm([a, a], [b, b], [sfa, sfa], [sfb, sfb], out=[out, None])
    yield lambda: nk.grouped_gemm([a, a], [b], [sfa, sfa], [sfb, sfb])
    yield lambda: nk.explain("gemm", a, b, sfa, sfb, out=out)
    yield lambda: nk.explain("grouped_gemm", [a], [b], [sfa], [sfb], out=[out])
    yield lambda: nk.dequantize((a, sfa, 1.0), out=a)
    yield lambda: nk.from_blocked(a, 3, "x", out=out)
    yield lambda: nk._C.competition_gemm((a, b, sfa, sfb, sfa, sfb, out))
    yield lambda: nk._C.competition_group_gemm(
        ([(a, b, out)], [(sfa, sfb)], [(sfa, sfb)], [(1, 2, 3, 4)])
    )


@pytest.mark.parametrize("form", [lambda t: t, torch.Tensor.numpy, Versioned, new_capsule])
def test_references_are_given_back(form):
    args = [form(t) for t in (*OPERANDS, torch.zeros_like(EXPECTED))]
    for call in calls_of(args):
        before = [sys.getrefcount(t) for t in args]
        for _ in range(3):
            try:
                call()
            except (TypeError, ValueError, BufferError):
                pass
        assert [sys.getrefcount(t) for t in args] == before


def test_results_belong_to_the_caller_alone():
    result = nk.gemm(*OPERANDS)
    assert sys.getrefcount(result) == 2
    q = nk.quantize(torch.ones(1, 16), global_scale="amax")
    assert sys.getrefcount(q) == 2
    assert [sys.getrefcount(q[i]) for i in range(3)] == [2, 2, 2]


def test_tiles_are_of_the_rows_that_the_build_has():
    tiles = nk._C._tiles()
    built = {row["name"] for row in nk.backends() if row["code"]}
    assert {tile["row"] for tile in tiles.values()} == built
    assert all(f"{t['row']}/{t['family']}:{t['tile']}" == name for name, t in tiles.items())
    if "sm90" in built:  # as SM90_GEMM_TILES and SM90_LIST_PIPELINES say
        sizes = {"tile_m": 32, "tile_n": 128, "tile_k": 256, "stages": 6, "cluster": 1}
        sizes |= {"split_k": 1, "warpgroups": 2}
        operators = ["gemm", "dual_gemm", "grouped_gemm", "list_gemm"]
        names = {"row": "sm90", "family": "gemm", "tile": "w32"}
        assert tiles["sm90/gemm:w32"] == names | sizes | {"operators": operators}
