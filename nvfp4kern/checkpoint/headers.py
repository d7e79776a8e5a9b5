"""safetensors' format: a header in JSON says where in its file each tensor lies."""

import math
from typing import Any

from .opened import Opened, Stored, row_major
from .untrusted import JSON_BYTES, CheckpointError, check_name, check_shape, in_short, parse_json

DTYPES = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "F32": ("float32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F4": ("float4_e2m1fn_x2", 8),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
}
"""safetensors' name of a dtype -> torch's, and an element's bits. torch has no float6."""


def read_header(file: Opened) -> tuple[dict[str, Stored], dict[str, str]]:
    """A file's tensors in their order, and its metadata. Raises CheckpointError for a header that
    does not describe the file to its last byte."""
    length = int.from_bytes(file.read(0, 8), "little")
    if length > JSON_BYTES:
        raise CheckpointError(f"{file.name}: a header of {length} bytes, at most {JSON_BYTES}")
    header = parse_json(file.read(8, length), f"{file.name}: header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{file.name}: __metadata__: expected an object of strings")
    found = {name: _stored(file, name, entry, 8 + length) for name, entry in header.items()}
    found = dict(sorted(found.items(), key=lambda item: (item[1].begin, item[1].nbytes)))
    end = 8 + length
    for name, stored in found.items():
        if stored.begin != end:
            came = f"begins at byte {stored.begin}, expected {end}, the end of the one before"
            raise CheckpointError(f"{file.name}: {name}: {came}")
        end += stored.nbytes
    if end != file.size:
        raise CheckpointError(f"{file.name}: a file of {file.size} bytes, its header says {end}")
    return found, metadata


def _stored(file: Opened, name: str, entry: Any, data: int) -> Stored:
    """data: where in the file the tensors begin."""
    where = f"{file.name}: {check_name(name, file.name)}"
    entry = entry if isinstance(entry, dict) else {}
    given, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(given, str) or given not in DTYPES:
        raise CheckpointError(f"{where}: {in_short(given)} as a tensor's dtype")
    if not _sizes(shape):
        raise CheckpointError(f"{where}: {in_short(shape)} as a tensor's shape")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: {in_short(offsets)} as a tensor's data_offsets")
    check_shape(tuple(shape), where)
    dtype, bits = DTYPES[given]
    if given == "F4":  # torch counts pairs
        if not shape or shape[-1] % 2:
            raise CheckpointError(f"{where}: {shape}, expected an even number of F4 in a row")
        shape = [*shape[:-1], shape[-1] // 2]
    begin, end = offsets
    if 8 * (end - begin) != math.prod(shape) * bits:
        came = f"{given} {shape} in {end - begin} bytes"
        raise CheckpointError(f"{where}: {came}, expected {math.prod(shape) * bits / 8:g}")
    return Stored(dtype, tuple(shape), row_major(shape), data + begin, end - begin)


def _sizes(given: object) -> bool:
    """Whether it is a list of numbers that are sizes."""
    return isinstance(given, list) and all(type(n) is int and n >= 0 for n in given)
