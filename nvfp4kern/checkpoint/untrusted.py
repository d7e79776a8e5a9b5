"""What every reader of a checkpoint's files checks: they are not trusted."""

import json
import math
import re
from typing import Any

__all__ = ["CheckpointError", "check_name", "check_shape", "in_short", "parse_json", "readable"]

JSON_BYTES = 100_000_000
"""Of a JSON file, and of safetensors' header."""
JSON_VALUES = 4_000_000
"""A header has 8 for each tensor. Python takes up to 200 bytes for a value."""
JSON_DEPTH = 100
FLAT = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+"|[^][{}"]++)++', re.S)
NAME_CHARACTERS = 1000
DIMENSIONS = 64
"""Functions of torch take no more."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or loaded. Names the file and the tensor."""


def in_short(text: object) -> str:
    """A name of a file's making as a message shows it: quoted, and not all of a long one."""
    shown = repr(text)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def readable(error: object) -> str:
    """What a library says, which may repeat any bytes of the file."""
    return "".join(c if c.isprintable() else "?" for c in str(error)[:300])


def parse_json(text: bytes | bytearray, file: str) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError for anything else, where a key comes twice, and for
    one that would take too much memory."""
    values = sum(map(text.count, (b",", b"[", b"{")))
    if values > JSON_VALUES:
        raise CheckpointError(f"{file}: {values} JSON values, expected at most {JSON_VALUES}")
    try:
        if _nested(text):
            raise ValueError(f"nested more than {JSON_DEPTH} deep")
        found = json.loads(text.decode(), object_pairs_hook=_once)
    except ValueError as error:
        raise CheckpointError(f"{file}: not valid JSON: {readable(error)}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: {type(found).__name__}, expected a JSON object")
    return found


def _nested(text: bytes | bytearray) -> bool:
    """Whether brackets are nested too deep for json, which recurses on the thread's stack."""
    brackets = FLAT.sub(b"", text).translate(bytes.maketrans(b"{}", b"[]"))
    for _ in range(JSON_DEPTH):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets or len(brackets) > JSON_DEPTH  # those that stay have no other half


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"{in_short(twice)} is there twice")
    return found


def check_name(name: object, file: str) -> str:
    """A tensor's name that can be printed."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS or not name.isprintable():
        expected = f"expected 1 to {NAME_CHARACTERS} printable characters"
        raise CheckpointError(f"{file}: {in_short(name)} as a tensor's name, {expected}")
    return name


def check_shape(shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    """A shape that torch can have. One with a size of 0 could have any sizes beside it."""
    if len(shape) > DIMENSIONS:
        raise CheckpointError(f"{where}: {len(shape)} dimensions, expected at most {DIMENSIONS}")
    if math.prod(max(size, 1) for size in shape) >= 2**63:
        raise CheckpointError(f"{where}: {list(shape)}, expected sizes with a product below 2^63")
    return shape
