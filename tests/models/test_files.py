"""What files.py lets through, and what it refuses by name."""

import json
import os
import struct

import pytest
import tiny
import torch
from safetensors.torch import save_file

from nvfp4kern.checkpoint import CheckpointError, Files

INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00003.safetensors"


TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3).bfloat16(),
    "b.scale": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    "empty": torch.empty(0, 3),
    "number": torch.tensor(7, dtype=torch.int64),
}


def write(directory, shards=1, **config):
    directory.mkdir(parents=True)
    tiny.write_json(directory / "config.json", config)
    tiny.write_tensors(directory, TENSORS, shards)
    return directory


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_listed_and_read(tmp_path, shards):
    files = Files(write(tmp_path / "m", shards, quantization_config={"quant_method": "x"}))
    assert files.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        info, read = files.tensors[name], files.read(name)
        assert f"torch.{info.dtype}" == str(tensor.dtype) and info.shape == tuple(tensor.shape)
        assert info.nbytes == tensor.nbytes and (tmp_path / "m" / info.shard).exists()
        assert read.dtype == tensor.dtype and torch.equal(read.double(), tensor.double())
    assert files.quantization == {"quant_method": "x"}
    assert files.numbers("number") == [7.0]


def test_one_file_is_read_alone(tmp_path):
    write(tmp_path / "m", quantization_config={"quant_method": "x"})
    files = Files(tmp_path / "m" / "model.safetensors")
    assert (files.config, files.quantization) == ({}, None) and "b.scale" in files.tensors


def test_shards_without_an_index(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    save_file({"b": torch.zeros(1)}, tmp_path / "y.safetensors", {"format": "pt"})
    files = Files(tmp_path)
    assert {n: i.shard for n, i in files.tensors.items()} == {
        "a": "x.safetensors",
        "b": "y.safetensors",
    }
    assert files.metadata["y.safetensors"] == {"format": "pt"}
    save_file({"b": torch.zeros(1)}, tmp_path / "z.safetensors")
    with pytest.raises(CheckpointError, match=r"^z.safetensors: b: is in y.safetensors too$"):
        Files(tmp_path)


def test_links_of_a_cache_are_followed(tmp_path):
    blobs = write(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "snapshot" / name).symlink_to(blobs / name)
    assert Files(tmp_path / "snapshot").tensors == Files(blobs).tensors


def test_where_the_quantization_is_found(tmp_path):
    config = tmp_path / "m" / "config.json"
    write(tmp_path / "m")
    assert Files(tmp_path / "m").quantization is None
    (tmp_path / "m" / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "X"}}')
    assert Files(tmp_path / "m").quantization == {"quantization": {"quant_algo": "X"}}
    config.write_text(json.dumps({"text_config": {"quantization_config": {"quant_method": "y"}}}))
    assert Files(tmp_path / "m").quantization == {"quant_method": "y"}
    config.write_text(json.dumps({"quantization_config": {"quant_method": "z"}}))
    assert Files(tmp_path / "m").quantization == {"quant_method": "z"}
    config.write_text(json.dumps({"quantization_config": 3}))
    with pytest.raises(CheckpointError, match="config.json: quantization_config: int, expected"):
        Files(tmp_path / "m")


# --- What is refused ---


def put(path, header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)


def entry(begin, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


TWICE = b'{"a":%s,"a":%s}' % ((json.dumps(entry(0, 4)).encode(),) * 2)
DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
HEADERS = {
    "empty": (b"", b"", 0, "header"),
    "not JSON": (b"{nonsense", b"", None, "JSON"),
    "a list": (b"[]", b"", None, "JSON"),
    "too long": ({"a": entry(0, 4)}, b"1234", 2**63, "header"),
    "long": ({"a": entry(0, 4)}, b"1234", 5000, "header"),
    "deep": (DEEP, b"", None, "recursion"),
    "twice": (TWICE, b"1234", None, "header: not valid JSON: 'a' is there twice"),
    "overlap": ({"a": entry(0, 4), "b": entry(0, 4)}, b"1234", None, "`[ab]`"),
    "hole": ({"a": entry(4, 8)}, b"12345678", None, "`a`"),
    "outside": ({"a": entry(0, 8, (2,))}, b"1234", None, "file"),
    "behind": ({"a": entry(0, 4)}, b"12345678", None, "file"),
    "backwards": ({"a": entry(4, 0)}, b"1234", None, "a"),
    "wrong shape": ({"a": entry(0, 4, (3,))}, b"1234", None, "tensor"),
    "huge shape": ({"a": entry(0, 4, (2**40, 2**40))}, b"1234", None, "overflow"),
    "size of torch": (
        {"a": entry(0, 0, (0, 2**63))}, b"", None,
        r"a: \[0, 9223372036854775808\], expected sizes with a product below 2\^63",
    ),
    "product of torch": (
        {"a": entry(0, 0, (0, 2**40, 2**40))}, b"", None,
        r"a: \[0, 1099511627776, 1099511627776\], expected sizes",
    ),
    "dimensions of torch": (
        {"a": entry(0, 0, [1] * 65 + [0])}, b"", None, "a: 66 dimensions, expected at most 64"
    ),
    "negative": ({"a": entry(0, 4, (-1,))}, b"1234", None, "-1"),
    "dtype": ({"a": entry(0, 4, (1,), "FP7")}, b"1234", None, "FP7"),
    "no name": ({"": entry(0, 4)}, b"1234", None, "'' as a tensor's name"),
    "long name": ({"n" * 1001: entry(0, 4)}, b"1234", None, r"nnn\.\.\. as a tensor's name"),
    "control": ({"a\n": entry(0, 4)}, b"1234", None, r"'a\\n' as a tensor's name"),
    "metadata": ({"__metadata__": {"a": 1}, "a": entry(0, 4)}, b"1234", None, "string"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_are_refused(tmp_path, kind):
    header, body, length, expected = HEADERS[kind]
    put(tmp_path / "model.safetensors", header, body, length)
    with pytest.raises(CheckpointError, match=f"^model.safetensors: .*{expected}"):
        Files(tmp_path)


def test_truncated_anywhere(tmp_path):
    path = write(tmp_path / "m") / "model.safetensors"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"^model.safetensors: "):
            Files(tmp_path / "m")


def changed_index(directory, **changes):
    index = json.loads((write(directory, 3) / INDEX).read_text())
    index["weight_map"] |= changes
    (directory / INDEX).write_text(json.dumps(index))
    return directory


BAD_SHARDS = [
    "../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "x.bin", "a\\b.safetensors", 3,
    None, ["x"], "\x00.safetensors", "n" * 300 + ".safetensors",
]  # fmt: skip


@pytest.mark.parametrize("shard", BAD_SHARDS, ids=str)
def test_a_shard_is_the_name_of_a_file_here(tmp_path, shard):
    (tmp_path / "x.safetensors").write_bytes(b"")
    directory = changed_index(tmp_path / "m", **{"b.scale": shard})
    with pytest.raises(CheckpointError, match=rf"^{INDEX}: b.scale: .* in this directory$"):
        Files(directory)


def test_index_and_shards_agree(tmp_path):
    directory = changed_index(tmp_path / "a", more=SHARD)
    with pytest.raises(CheckpointError, match=f"^{SHARD}: has no more, which {INDEX} says it has$"):
        Files(directory)
    other = changed_index(tmp_path / "b", **{"b.scale": SHARD})
    with pytest.raises(CheckpointError, match=f"^{SHARD}: has no b.scale"):
        Files(other)
    (other / SHARD).unlink()
    with pytest.raises(CheckpointError, match=f"^{SHARD}: there is no such file$"):
        Files(other)
    (other / SHARD).symlink_to(SHARD)
    with pytest.raises(CheckpointError, match=f"^{SHARD}: "):
        Files(other)
    (other / SHARD).unlink()
    os.mkfifo(other / SHARD)
    with pytest.raises(CheckpointError, match=f"^{SHARD}: not a regular file$"):
        Files(other)


def test_two_checkpoints_in_one_directory(tmp_path):
    directory = write(tmp_path / "m", 3)
    save_file(TENSORS, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="does not name model.safetensors, which is there"):
        Files(directory)


@pytest.mark.parametrize("file", ["config.json", "hf_quant_config.json", INDEX])
@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"a": 1, "a": 2}', DEEP, b'{"a": 1%s}' % (b"0" * 5000)],
    ids=["empty", "brace", "list", "number", "bytes", "twice", "deep", "digits"],
)
def test_malformed_json(tmp_path, file, text):
    directory = write(tmp_path / "m")
    (directory / "model.safetensors").rename(directory / "x.safetensors")
    (directory / file).write_bytes(text)
    with pytest.raises(CheckpointError, match=f"^{file}: "):
        Files(directory)


def test_what_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no \\*.safetensors file"):
        Files(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere: there is no such file"):
        Files(tmp_path / "nowhere")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="config.json: not a regular file"):
        Files(tmp_path)
