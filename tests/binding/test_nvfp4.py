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

import nvfp4kern
import nvfp4kern.torch as nk
from nvfp4kern import NVFP4


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
    for ours, theirs in zip(got, q, strict=True):
        assert type(ours) is type(theirs)
        if isinstance(ours, float):
            assert ours == theirs
        else:
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            np.testing.assert_array_equal(raw(ours), raw(theirs))


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
