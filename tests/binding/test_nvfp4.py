"""The tuple that quantize returns: codes as bytes; stored, copied, moved."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from generators import raw
from torch.utils import _pytree

import nvfp4kern
import nvfp4kern.torch as nk
from nvfp4kern import NVFP4
from nvfp4kern.layout import nvfp4_of


def tuples():
    """Of every kind of codes and global scale, rows of a wider buffer, blocked scales, NumPy."""
    x = torch.randn((6, 64), generator=torch.Generator().manual_seed(1))
    q = nvfp4kern.quantize(x)
    return {
        "float4": q,
        "uint8": nvfp4kern.quantize(x, data_dtype="uint8"),
        "amax, blocked": nvfp4kern.quantize(x, global_scale="amax", scale_layout="blocked"),
        "a view": NVFP4(q.data[1:, :16], q.scales[1:, :2], 0.5),
        "NumPy": nvfp4kern.quantize(x.numpy(), global_scale="amax"),
    }


def saved(q):
    file = io.BytesIO()
    torch.save({"w": q}, file)
    file.seek(0)
    return torch.load(file, weights_only=not isinstance(q.data, np.ndarray))["w"]


WAYS = {
    "pickle": lambda q: pickle.loads(pickle.dumps(q)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "torch.save": saved,
    "to": lambda q: q.to("cpu"),
    "pytree": lambda q: _pytree.tree_map(lambda part: part, {"w": [q]})["w"][0],
    "replace": lambda q: q._replace(global_scale=q.global_scale),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", tuples())
def test_what_comes_back_is_the_same(name, way):
    q = tuples()[name]
    if (name, way) == ("NumPy", "to"):
        with pytest.raises(AttributeError, match="'to'"):
            q.to("cpu")
        return
    got = WAYS[way](q)
    assert type(got) is NVFP4 and len(got) == 3
    known = {"a view": None, "amax, blocked": "blocked"}.get(name, "linear")
    assert got.scale_layout == q.scale_layout == known
    assert got.shape == q.shape == ((5, 32) if name == "a view" else (6, 64))
    for ours, theirs in zip(got, q, strict=True):
        assert type(ours) is type(theirs)
        if isinstance(ours, float):
            assert ours == theirs
        else:
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            np.testing.assert_array_equal(raw(ours), raw(theirs))


def test_what_older_pickles_have():
    """Three parts, and no layout."""
    parts = tuples()["amax, blocked"].__reduce__()[1]
    assert nvfp4_of(*parts[:3]).scale_layout is None


def test_pytrees_name_the_parts_and_serialise():
    q = tuples()["amax, blocked"]
    paths, spec = _pytree.tree_flatten_with_path(q)
    assert [str(path[0]) for path, _ in paths] == [".data", ".scales", ".global_scale"]
    assert _pytree.treespec_loads(_pytree.treespec_dumps(spec)) == spec


LIBRARIES = pytest.mark.parametrize("library", [nvfp4kern, nk])
LAYOUTS = pytest.mark.parametrize("layout", ["linear", "blocked"])


@LIBRARIES
@LAYOUTS
@pytest.mark.parametrize("scale", [None, 0.25, "amax"])
def test_operands_that_are_whole(library, layout, scale, device):
    rng = torch.Generator().manual_seed(3)
    x = torch.randn((4, 64), generator=rng).bfloat16().to(device)
    w = torch.randn((48, 64), generator=rng).to(device)
    bias = torch.randn(48, generator=rng).to(device)
    qx = library.quantize(x, global_scale=scale, scale_layout=layout)
    qw = library.quantize(w, global_scale="amax")
    one, other = {"alpha": 0.5 * qw.global_scale}, {"scale_layout": (layout, "linear")}
    want = library.gemm(x, qw.data, None, qw.scales, bias=bias, alpha=qw.global_scale)
    assert torch.equal(library.linear(x, qw, bias), want) and want.dtype == x.dtype
    assert torch.equal(library.linear(x, tuple(qw), bias), want)
    want = library.gemm(x, qw.data, None, qw.scales, **one)
    assert torch.equal(library.gemm(x, qw, alpha=0.5), want)
    alpha = qx.global_scale * qw.global_scale
    want = library.gemm(qx.data, qw.data, qx.scales, qw.scales, alpha=alpha, **other)
    for out in (None, torch.empty_like(want)):
        assert torch.equal(library.gemm(qx, qw, out=out), want)
        assert torch.equal(library.linear(qx, qw, out=out), want)
        assert torch.equal(library.gemm(qx, qw, out=out, **other), want)
    want = library.gemm(qx.data, qw.data, qx.scales, qw.scales, alpha=qx.global_scale, **other)
    assert torch.equal(library.gemm(qx, qw.data, None, qw.scales), want)
    want = library.dequantize(tuple(qx), scale_layout=layout)
    assert torch.equal(library.dequantize(qx), want)


@LIBRARIES
def test_a_layout_that_contradicts_is_an_error(library):
    x = torch.ones((4, 64), dtype=torch.float16)
    q = library.quantize(x, scale_layout="blocked")
    for call, name in [
        (lambda: library.dequantize(q, scale_layout="linear"), "q"),
        (lambda: library.gemm(x, q, scale_layout="linear"), "b"),
        (lambda: library.gemm(q, q, scale_layout=("linear", "blocked")), "a"),
        (lambda: library.linear(q._replace(scale_layout=None), q), None),
    ]:
        message = f"^scale_layout: 'linear', but {name}.scale_layout is 'blocked'$"
        with pytest.raises(ValueError, match=message if name else "^sfa: shape"):
            call()
    ends = torch.tensor([0, 2, 4], dtype=torch.int32)
    by_expert = library.quantize(x, scale_layout="blocked", offsets=ends)
    assert by_expert.scale_layout is None
    with pytest.raises(ValueError, match="^sfa: shape"):
        library.gemm(by_expert, q)


@LIBRARIES
def test_what_whole_operands_are_not(library):
    x = torch.ones((4, 64), dtype=torch.float16)
    q = library.quantize(x)
    for error, message, call in [
        (ValueError, "sfb: given, expected None", lambda: library.gemm(x, q, None, q.scales)),
        (ValueError, "sfa: given, expected None", lambda: library.gemm(q, q, q.scales)),
        (ValueError, "sfb: None, expected the scale", lambda: library.gemm(x, q.data)),
        (ValueError, "b: 2 items, expected 3", lambda: library.gemm(x, (q.data, q.scales))),
        (ValueError, "scale_layout: 3 items", lambda: library.gemm(x, q, scale_layout=("",) * 3)),
        (TypeError, "w: Tensor, expected NVFP4", lambda: library.linear(x, q.data)),
    ]:
        with pytest.raises(error, match=f"^{message}"):
            call()
    for error, scale in [
        (TypeError, True),
        (TypeError, "amax"),
        (TypeError, np.complex64(1)),
        (ValueError, torch.ones(2)),
        (ValueError, 1e39),
    ]:
        with pytest.raises(error, match="^b.global_scale: "):
            library.gemm(x, q._replace(global_scale=scale))
    with pytest.raises(ValueError, match="^alpha: "):
        library.gemm(x, q, alpha=1e300)


def test_whole_operands_of_numpy():
    x = np.ones((4, 64), np.float16)
    for scale in (2.0, np.float32(2), np.float32([2])):
        q = nvfp4kern.quantize(6 * x)._replace(global_scale=scale)
        assert type(nvfp4kern.gemm(q, q)) is np.ndarray
        assert (nvfp4kern.linear(x, q) == 64 * 6 * 2).all()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_take_and_return_them(dynamic):
    x = torch.randn((4, 64), generator=torch.Generator().manual_seed(4)).half()
    w = nk.quantize(x, global_scale=0.5, scale_layout="blocked")

    def function(x, w):
        q = nk.quantize(x, global_scale="amax")
        return nk.linear(q, w), nk.linear(x, w), q

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="eager")
    *results, q = compiled(x, w)
    for result, want in zip(results, function(x, w)[:2], strict=True):
        assert torch.equal(result, want)
    assert type(q) is NVFP4 and q.scale_layout == "linear"


def test_a_deep_copy_has_memory_of_its_own():
    q = tuples()["float4"]
    copied = copy.deepcopy(q)
    copied.data.view(torch.uint8).fill_(0)
    assert raw(q.data).any()


def test_other_devices():
    moved = tuples()["amax, blocked"].to("meta")
    assert [part.device.type for part in moved] == ["meta"] * 3
    assert moved.data.dtype == torch.float4_e2m1fn_x2
    assert tuples()["float4"].to(torch.device("meta")).global_scale == 1.0


def test_moves_to_a_gpu_and_back(gpu):
    for name in ("float4", "uint8", "amax, blocked", "a view"):
        q = tuples()[name]
        there = q.to(gpu.device)
        back = there.to("cpu")
        assert there.data.is_cuda and there.data.dtype == q.data.dtype
        np.testing.assert_array_equal(raw(back.data), raw(q.data))
        np.testing.assert_array_equal(raw(back.scales), raw(q.scales))


def test_a_saved_tuple_loads_in_another_process(tmp_path):
    q = tuples()["amax, blocked"]
    torch.save(q, tmp_path / "w.pt")
    code = (
        "import sys, torch, nvfp4kern.torch\n"
        "q = torch.load(sys.argv[1], weights_only=True)\n"
        "print(q.data.dtype, q.data.view(torch.uint8).sum().item(), q.global_scale.item())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "w.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    total = q.data.view(torch.uint8).sum().item()
    expected = f"torch.float4_e2m1fn_x2 {total} {q.global_scale.item()}\n"
    assert done.stdout == expected, done.stderr


@pytest.mark.parametrize("library", [nvfp4kern, nk])
@pytest.mark.parametrize("global_scale", [None, "amax"])
def test_codes_as_bytes(library, global_scale, device):
    x = torch.randn((5, 32), generator=torch.Generator().manual_seed(2)).to(device)
    want = nvfp4kern.quantize(x, global_scale=global_scale)
    for dtype in ("uint8", torch.uint8):
        q = library.quantize(x, global_scale=global_scale, data_dtype=dtype)
        assert q.data.dtype == torch.uint8 and q.scales.dtype == torch.float8_e4m3fn
        assert torch.equal(q.data, want.data.view(torch.uint8))
        assert torch.equal(q.data[torch.tensor([3, 1])], q.data[[3, 1]])
    for dtype in (None, "float4_e2m1fn_x2", torch.float4_e2m1fn_x2):
        q = library.quantize(x, global_scale=global_scale, data_dtype=dtype)
        assert q.data.dtype == torch.float4_e2m1fn_x2
    out = (torch.empty((5, 16), dtype=torch.uint8, device=device), torch.empty_like(want.scales))
    out += (want.global_scale,) if global_scale else ()
    options = {"global_scale": global_scale, "data_dtype": "uint8"}
    assert library.quantize(x, out=out, **options).data is out[0]


def test_numpy_codes_are_bytes():
    for dtype in (None, "uint8", np.uint8, np.dtype("uint8")):
        q = nvfp4kern.quantize(np.ones((2, 16), np.float32), data_dtype=dtype)
        assert q.data.dtype == np.uint8
