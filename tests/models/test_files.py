"""What files.py lets through, and what it refuses by name."""

import errno
import json
import os
import struct

import pytest
import tiny
import torch
from safetensors.torch import save_file

from nvfp4kern.checkpoint import CheckpointError, Files
from nvfp4kern.checkpoint.opened import read_json

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
    "too long": ({"a": entry(0, 4)}, b"1234", 2**63, "a header of 9223372036854775808 bytes"),
    "long": ({"a": entry(0, 4)}, b"1234", 5000, "expected 5008"),
    "deep": (DEEP, b"", None, "nested more than 100 deep"),
    "twice": (TWICE, b"1234", None, "header: not valid JSON: 'a' is there twice"),
    "overlap": ({"a": entry(0, 4), "b": entry(0, 4)}, b"1234", None, "b: begins at"),
    "hole": ({"a": entry(4, 8)}, b"12345678", None, "a: begins at"),
    "outside": ({"a": entry(0, 8, (2,))}, b"1234", None, "file"),
    "behind": ({"a": entry(0, 4)}, b"12345678", None, "file"),
    "backwards": ({"a": entry(4, 0)}, b"1234", None, "a"),
    "wrong shape": ({"a": entry(0, 4, (3,))}, b"1234", None, "in 4 bytes, expected 12"),
    "huge shape": ({"a": entry(0, 4, (2**40, 2**40))}, b"1234", None, "sizes with a product below"),
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
    "halves": ({"a": entry(0, 4, (8, 1), "F4")}, b"1234", None, "even number of F4"),
    "many": (b"[" + b"[]," * 2**21 + b"[]]", b"", None, "JSON values, expected at most"),
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


JSON = {
    "empty": b"", "brace": b"{", "list": b"[]", "number": b"3", "bytes": b"\xff\xfe",
    "UTF-16": '{"a": 1}'.encode("utf-16"), "twice": b'{"a": 1, "a": 2}', "deep": DEEP,
    "deep behind text": b'{"]]\\"]": ' + DEEP + b"}", "open": b"[" * 10**6, "text": b'{"a": "[[[',
    "digits": b'{"a": 1%s}' % (b"0" * 5000), "values": b'{"a":[%s[]]}' % (b"[]," * 2**21),
}  # fmt: skip


@pytest.mark.parametrize("file", ["config.json", "hf_quant_config.json", INDEX])
@pytest.mark.parametrize("text", JSON.values(), ids=JSON)
def test_malformed_json(tmp_path, file, text):
    directory = write(tmp_path / "m")
    (directory / "model.safetensors").rename(directory / "x.safetensors")
    (directory / file).write_bytes(text)
    with pytest.raises(CheckpointError, match=f"^{file}: "):
        Files(directory)


def test_json_that_is_large_or_has_brackets_in_text(tmp_path):
    path = tmp_path / "x.json"
    whole = {
        "[[": ['"]', "\\", "{" * 1000, [[[[{}]]]]],
        "b": dict.fromkeys(map(str, range(10**5)), []),
    }
    tiny.write_json(path, whole)
    assert read_json(path) == whole
    with path.open("r+b") as file:
        file.truncate(100_000_001)
    with pytest.raises(CheckpointError, match="100000001 bytes of JSON, expected at most 100000"):
        read_json(path)


def test_a_file_that_blocks_is_not_waited_for(tmp_path):
    """The system's files have no size, and reading one may wait for ever."""
    directory = write(tmp_path / "m")
    (directory / "config.json").unlink()
    (directory / "config.json").symlink_to("/proc/kmsg")
    with pytest.raises(CheckpointError, match="^config.json: "):
        Files(directory)


# --- Files that change while they are read ---


@pytest.fixture
def opened(tmp_path):
    """(Files, the path of its shard)"""
    return Files(write(tmp_path / "m")), tmp_path / "m" / "model.safetensors"


def test_another_file_in_its_place_is_not_seen(opened):
    files, path = opened
    save_file({"a": torch.zeros(1000)}, path.with_name("other"))
    path.with_name("other").replace(path)
    assert torch.equal(files.read("a"), TENSORS["a"])
    files.check()
    path.unlink()
    assert torch.equal(files.read("a", (1,)), TENSORS["a"][1])


def test_a_file_that_is_shortened(opened):
    files, path = opened
    os.truncate(path, 100)
    with pytest.raises(CheckpointError, match="^model.safetensors: was shortened while it was rea"):
        files.read("a")
    with pytest.raises(CheckpointError, match="^model.safetensors: was changed while it was read$"):
        files.check()


def test_a_file_that_is_written_to(opened):
    files, path = opened
    files.check()
    content = path.read_bytes()
    os.utime(path, ns=(0, 0))
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="^model.safetensors: was changed while it was read$"):
        files.check()


def failing(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_file_that_can_no_longer_be_asked(opened, monkeypatch):
    files, _ = opened
    with pytest.raises(CheckpointError, match="^model.safetensors: Input/output error$"):
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", failing)
            files.check()


def test_files_are_closed(tmp_path, monkeypatch):
    """Also where closing fails, and where an exception's traceback holds them."""
    directory, before = write(tmp_path / "m"), os.listdir("/proc/self/fd")
    with Files(directory) as files:
        assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    assert os.listdir("/proc/self/fd") == before and "a" in files.tensors
    with pytest.raises(CheckpointError, match="^model.safetensors: Bad file descriptor$"):
        files.read("a")
    (directory / "hf_quant_config.json").write_text("[")
    with pytest.raises(CheckpointError, match="^hf_quant_config.json: ") as raised:
        Files(directory)
    assert os.listdir("/proc/self/fd") == before and raised.tb
    (directory / "hf_quant_config.json").unlink()
    close = os.close
    monkeypatch.setattr(os, "close", lambda fd: (close(fd), failing()))
    Files(directory)  # the garbage collector closes it
    assert os.listdir("/proc/self/fd") == before


def test_an_interrupt_is_not_the_files_fault(opened, monkeypatch):
    files, _ = opened

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "preadv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.read("a")
    with pytest.raises(KeyboardInterrupt):
        Files(files.path)


def test_what_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no \\*.safetensors file"):
        Files(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere: there is no such file"):
        Files(tmp_path / "nowhere")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="config.json: not a regular file"):
        Files(tmp_path)
