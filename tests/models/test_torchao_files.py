"""Files with torchao's NVFP4Tensor: by its safetensors support, and by torch.save."""

import json
import pickle
import struct
import subprocess
import sys
import zipfile

import producers
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from nvfp4kern.checkpoint import CheckpointError, Files, Source, inspect, load_checkpoint, read_plan
from nvfp4kern.nn import NVFP4Linear

NAME = "torchao.prototype.mx_formats.nvfp4_tensor"


def packed(shape, seed=0, swizzled=False, scaled=True, static=False, activations=None):
    """An NVFP4Tensor of random values."""
    theirs = producers.imported(NAME, "torchao is not installed")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()
    multiplier = theirs.per_tensor_amax_to_scale(x.abs().amax()) if scaled else None
    if scaled and len(shape) == 3:
        multiplier = theirs.per_tensor_amax_to_scale(x.abs().amax((1, 2))).view(-1, 1, 1)
    kwargs = None
    if activations is not None:
        kwargs = theirs.QuantizeTensorToNVFP4Kwargs(use_dynamic_per_tensor_scale=activations)
    return theirs.NVFP4Tensor.to_nvfp4(
        x,
        per_tensor_scale=multiplier,
        act_per_tensor_scale=torch.tensor(0.01) if static else None,
        is_swizzled_scales=swizzled,
        act_quant_kwargs=kwargs,
    )


def model():
    return {
        "a.weight": packed((96, 64)),
        "a.bias": torch.ones(96).bfloat16(),
        "b.weight": packed((96, 80), 1, swizzled=True, static=True, activations=False),
        "c.weight": packed((160, 64), 2, swizzled=True, activations=True),
        "d.weight": packed((32, 48), 3, scaled=False, activations=False),
        "norm.weight": torch.ones(64).bfloat16(),
    }


def write(path, tensors):
    """By torch.save, or by torchao's safetensors support. Returns the path."""
    if path.suffix != ".safetensors":
        torch.save(tensors, path)
        return path
    support = producers.imported(
        "torchao.prototype.safetensors.safetensors_support", "torchao is not installed"
    )
    flat, metadata = support.flatten_tensor_state_dict(tensors)
    save_file(flat, path, metadata=metadata)
    return path


KINDS = ("x.safetensors", "x.pt", "x.bin")


@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_how_they_quantise_inputs(tmp_path, kind):
    files = Files(write(tmp_path / kind, model()))
    for plan in (read_plan(files), read_plan(files)):  # the second is the first
        assert (plan.format, plan.producer, plan.problems) == ("NVFP4Tensor", "torchao", [])
        quants = {name: layer.input_quant for name, layer in plan.layers.items()}
        assert quants == {"a": None, "b": "static", "c": "amax", "d": "dynamic"}
        assert plan.layers["a"].sources["bias"] == Source("a.bias")
        assert plan.layers["b"].sources["input_scale"] == Source("b._weight_act_per_tensor_scale")
        assert plan.layers["d"].constants == {"weight_scale_2": 1.0}
        assert plan.plain == ["norm.weight"]
    report = inspect(files)
    assert report.errors == report.warnings == [] and len(report.layers) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_are_torchaos_bit_for_bit(tmp_path, kind):
    """The blocked scales of b and c, too, as linear ones."""
    tensors = model()
    files = Files(write(tmp_path / kind, tensors))
    plan = read_plan(files)
    for name, layer in plan.layers.items():
        theirs = tensors[f"{name}.weight"]
        codes = files.read(layer.sources["weight"].name)
        scales = files.read(layer.sources["weight_scale"].name)
        assert files.tensors[layer.sources["weight_scale"].name].shape == scales.shape
        assert torch.equal(codes, theirs.qdata) and scales.shape == (
            len(codes),
            theirs.shape[1] // 16,
        )
        multiplier = 1.0 if theirs.per_tensor_scale is None else theirs.per_tensor_scale
        assert torch.equal(scales.float() * multiplier, theirs.get_hp_scales())


@pytest.mark.parametrize("rows, swizzled", [(96, False), (128, True)])
def test_stacked_experts(tmp_path, rows, swizzled):
    """torchao blocks all experts' scales as one matrix, where 128 divides an expert's rows."""
    theirs = packed((3, rows, 64), swizzled=False)
    name = "m.experts.gate_up_proj"
    if swizzled:
        utils = producers.imported("torchao.prototype.mx_formats.utils", "torchao is not installed")
        scales = theirs.scale
        theirs.is_swizzled_scales = True
        blocked = utils.to_blocked(scales.reshape(3 * rows, 4))
        theirs.scale = blocked.view(3, 32, 16)
        assert torch.equal(theirs.get_hp_scales(), theirs.per_tensor_scale * scales.float())
    files = Files(write(tmp_path / "x.pt", {name: theirs}))
    plan = read_plan(files)
    assert plan.problems == [] and list(plan.layers) == [name]
    sources = plan.layers[name].sources
    found = files.read(sources["weight_scale"].name).float()
    assert torch.equal(found * files.read(sources["weight_scale_2"].name), theirs.get_hp_scales())


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_a_model_is_loaded(tmp_path, kind):
    tensors = model()
    net = torch.nn.ModuleDict(
        {
            "a": torch.nn.Linear(64, 96),
            "b": torch.nn.Linear(80, 96, bias=False),
            "c": torch.nn.Linear(64, 160, bias=False),
            "d": torch.nn.Linear(48, 32, bias=False),
            "norm": torch.nn.RMSNorm(64),
        }
    ).bfloat16()
    write(tmp_path / kind, tensors)
    tiny.write_json(tmp_path / "config.json", {"quantization_config": {"quant_method": "torchao"}})
    load_checkpoint(net, tmp_path, device="cpu", progress=False)
    for name in "abcd":
        layer, theirs = net[name], tensors[f"{name}.weight"]
        assert isinstance(layer, NVFP4Linear)
        want = theirs.dequantize(torch.float32).double()
        # both round float32 once or twice
        assert ((layer.dequantize().double() - want).abs() <= 2.0**-22 * want.abs()).all()
        x = torch.randn(5, layer.in_features).bfloat16()
        assert torch.isfinite(layer(x)).all()


def test_torch_save_is_read_without_torchao(tmp_path):
    """In a process that cannot import it."""
    path = write(tmp_path / "x.pt", model())
    program = "import sys; sys.modules['torchao'] = None\n"
    program += "from nvfp4kern.checkpoint import Files, read_plan\n"
    program += f"sys.exit(len(read_plan(Files({str(path)!r})).layers))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 4


# --- What is refused ---


def damaged(path, change):
    """The safetensors file again, with the metadata's object of "b.weight" or tensors changed."""
    write(path, model())
    tensors, metadata = load_file(path), Files(path).metadata[path.name]
    entry = json.loads(metadata["b.weight"])
    change(tensors, entry)
    save_file(tensors, path, metadata=metadata | {"b.weight": json.dumps(entry)})
    return path


DAMAGE = {
    "another class": (lambda t, e: e.update(_type="Float8Tensor"), "b.weight: 'Float8Tensor', exp"),
    "blocks of 32": (lambda t, e: e["_data"].update(block_size=32), "b.weight: block_size 32, exp"),
    "no data": (lambda t, e: e.update(_data=[1]), "b.weight: block_size None, expected 16"),
    "not blocked": (
        lambda t, e: e["_data"].update(is_swizzled_scales=False),
        "b._weight_scale: float8_e4m3fn [32, 32], expected float8_e4m3fn [96, 5]",
    ),
    "blocked": (
        lambda t, e: t.update({"b._weight_scale": torch.zeros(96, 5).to(torch.float8_e4m3fn)}),
        "b._weight_scale: float8_e4m3fn [96, 5], expected blocked scales of its weight",
    ),
    "no scales": (lambda t, e: t.pop("b._weight_scale"), "b._weight_scale: is missing"),
    "no codes": (lambda t, e: t.pop("b._weight_qdata"), "b._weight_qdata: is missing"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(tmp_path, kind):
    change, expected = DAMAGE[kind]
    (error,) = inspect(damaged(tmp_path / "x.safetensors", change)).errors
    assert error.startswith(expected)


def test_metadata_that_is_malformed_or_missing(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1)}, path, metadata={"tensor_names": "[]", "a": "{"})
    with pytest.raises(CheckpointError, match="^metadata of a: not valid JSON"):
        inspect(tmp_path)
    save_file({"a": torch.ones(1)}, path)
    tiny.write_json(tmp_path / "config.json", {"quantization_config": {"quant_method": "torchao"}})
    with pytest.raises(CheckpointError, match="expected torchao's metadata"):
        inspect(tmp_path)


class Command:
    def __reduce__(self):
        return exec, ("raise SystemExit('code of the file has run')",)


PICKLES = {
    "code": ({"a": Command()}, "x.pt: not by torch.save: '__builtin__ exec', expected what make"),
    "a list": ([torch.ones(1)], "x.pt: list, expected a dictionary"),
    "a number": ({"a": 3}, "x.pt: a: int, expected a plain tensor"),
    "nested": ({"a": {"b": torch.ones(1)}}, "x.pt: a: dict, expected a plain tensor"),
    "a key": ({3: torch.ones(1)}, "x.pt: not by torch.save: int as a key of a dictionary"),
    "a control": ({"a\n": torch.ones(1)}, r"x.pt: 'a\n' as a tensor's name"),
    "sparse": ({"a": torch.eye(3).to_sparse()}, "x.pt: not by torch.save: 'torch._utils _rebuild_"),
    "meta": ({"a": torch.empty(3, device="meta")}, "x.pt: not by torch.save: 'torch._utils _rebu"),
    "expanded": (
        {"a": torch.ones(1).expand(2**40)},
        "x.pt: not by torch.save: a tensor of [1099511627776]: more elements than the file has",
    ),
    "lazy": (
        {"a": torch.ones(2, dtype=torch.cfloat).conj()},
        "x.pt: not by torch.save: a tensor w",
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch 2.11 while it saves
@pytest.mark.parametrize("kind", PICKLES)
def test_pickles_that_are_more_than_weights(tmp_path, kind):
    content, expected = PICKLES[kind]
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError) as caught:
        Files(tmp_path / "x.pt")
    assert str(caught.value).startswith(expected)


def test_tensors_that_torch_save_writes_otherwise(tmp_path):
    """Views, parameters, those without elements, and all dtypes; a module's state."""
    values = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "turned": values.t(), "part": values[1:3, 2:], "step": values[:, ::2], "empty": values[:0],
        "number": values[3, 4], "same": values, "parameter": torch.nn.Parameter(values),
        "expanded": values[0][:, None].expand(6, 1), "bool": values > 3,
    }  # fmt: skip
    for dtype in (torch.int8, torch.int64, torch.float64, torch.bfloat16, torch.float8_e4m3fn):
        tensors[str(dtype)] = values.to(dtype)
    torch.save(tensors, tmp_path / "x.pt")
    files = Files(tmp_path / "x.pt")
    assert [*files.tensors] == [*tensors]
    for name, want in tensors.items():
        info, found = files.tensors[name], files.read(name)
        assert (info.shape, f"torch.{info.dtype}") == (tuple(want.shape), str(want.dtype))
        assert found.is_contiguous() and found.dtype == want.dtype
        assert torch.equal(found.double(), want.detach().double())
    assert torch.equal(files.read("turned", (2, slice(1, 3))), values.t()[2, 1:3])
    state = torch.nn.Sequential(torch.nn.Linear(2, 3)).state_dict()
    torch.save(state, tmp_path / "x.pt")
    assert all(torch.equal(Files(tmp_path / "x.pt").read(n), t) for n, t in state.items())


OTHERS = [b"", b"PK\x03\x04", b"x" * 100, pickle.dumps({"a": 1}), pickle.dumps(Command())]


@pytest.mark.parametrize("content", OTHERS, ids=range(len(OTHERS)))
def test_files_that_torch_save_did_not_write(tmp_path, content):
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"^x\.bin: not by torch\.save: "):
        Files(tmp_path / "x.bin")


def saved_with(path, pickled, **options):
    """A file by torch.save, with another pickle."""
    torch.save({"a": torch.ones(100)}, path)
    with zipfile.ZipFile(path) as plain:
        records = {name: plain.read(name) for name in plain.namelist()}
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in records.items():
            file.writestr(name, pickled if pickled and name.endswith("data.pkl") else content)
    return path


def two_directories(data):
    """Behind the zip file's directory, where its end record says to look, another one: of the
    same entries, as not compressed."""
    end = data.rindex(b"PK\5\6")
    length, at = struct.unpack_from("<II", data, end + 12)
    other, entry = bytearray(data[at : at + length]), 0
    while entry < len(other):
        struct.pack_into("<H", other, entry + 10, 0)
        struct.pack_into("<I", other, entry + 24, *struct.unpack_from("<I", other, entry + 20))
        entry += 46 + sum(struct.unpack_from("<HHH", other, entry + 28))
    return data[:end] + bytes(other) + data[end:]


@pytest.mark.parametrize("change", [bytes, lambda b: b + b"\0" * 65700, two_directories])
def test_nothing_is_inflated(tmp_path, change):
    """100 MB, which another reader of zip files may find where Python's does not."""
    bomb = b"}X\x01\0\0\0a" + b"X" + struct.pack("<I", 10**8) + b"a" * 10**8 + b"s."
    path = saved_with(tmp_path / "y.pt", bomb, compression=zipfile.ZIP_DEFLATED)
    path.write_bytes(change(path.read_bytes()))
    del bomb
    assert peak(path) < 50


PEAK = """
import re, sys
from nvfp4kern.checkpoint import CheckpointError, Files
def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1000
before = most()
try:
    Files(sys.argv[1])
except CheckpointError as error:
    print(most() - before)
"""


def peak(path):
    """MB by which a process grows that refuses the file."""
    command = [sys.executable, "-c", PEAK, str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)


def nested(levels):
    """A key: a tuple of eleven tuples of eleven of the next ones, and so on."""
    text = b"(" * levels + b"X\1\0\0\0atq\0"
    for level in range(1, levels):
        text += (b"h" + bytes([level - 1])) * 11 + b"tq" + bytes([level])
    return b"\x80\2}" + text + b"K\1s."


def of_one_shape(thousands):
    """A list of empty tensors, each in five bytes. Its shape and strides take more memory."""
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\00X\3\0\0\0cpuK\1tQ"
    arguments = b"(" + storage + b"K\0(K\0" + b"K\2" * 15 + b"tq\1h\1\x89}tq\2"
    head = b"\x80\2ctorch._utils\n_rebuild_tensor_v2\nq\0" + arguments
    return head + b"]" + (b"(" + b"h\0h\2R" * 1000 + b"e") * thousands + b"."


PEAKS = {
    "a key with a long repr": (nested(8), 50),
    "a key that hashes for ever": (nested(12), 50),
    "many tuples": (b"\x80\2)" + b"\x85" * 10**5, 50),
    "many marks": (b"\x80\2}" + b"(" * 9000 + b"(u" * 10**5, 50),
    "many tensors": (of_one_shape(1000), 200),
    "too much": (b"\x80\2" + b"N" * 10**7, 50),
    "a long text": (b"\x80\2X\xff\xff\xff\xff" + b"a" * 100, 50),
}


@pytest.mark.parametrize("kind", PEAKS)
def test_pickles_take_no_more_than_their_size(tmp_path, kind):
    pickled, limit = PEAKS[kind]
    assert peak(saved_with(tmp_path / "y.pt", pickled)) < limit


RECORDS = {
    "compressed": (dict(compression=zipfile.ZIP_DEFLATED), bytes, "y/data.pkl is compressed"),
    "elsewhere": ({}, lambda b: b.replace(b"PK\3\4", b"PK\3\5", 1), "not where the directory says"),
    "other bytes": ({}, lambda b: b.replace(b"little", b"big   "), "its byteorder is not little"),
    "no tensors": ({}, lambda b: b.replace(b"data/0", b"data/7"), "'data/0'"),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_zip_files_that_torch_save_did_not_write(tmp_path, kind):
    options, change, expected = RECORDS[kind]
    path = saved_with(tmp_path / "y.pt", None, **options)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=rf"^y\.pt: not by torch\.save: .*{expected}"):
        Files(path)


def test_attributes_that_hold_each_other_are_not_written_out(tmp_path):
    tensor, laughs = packed((96, 64)), [1]
    for _ in range(60):
        laughs = [laughs, laughs]
    tensor.block_size = laughs
    torch.save({"a.weight": tensor}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"^x\.pt: a\.weight: block_size: list, expected"):
        Files(tmp_path / "x.pt")
