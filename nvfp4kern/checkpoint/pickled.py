"""Files by torch.save: tensors, and torchao's NVFP4Tensor without torchao.

The pickle is walked here and runs nothing. It may name what makes tensors and no more, and takes
memory in proportion to its own size.
"""

import io
import json
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .headers import DTYPES
from .opened import Opened, Stored, extent, row_major
from .untrusted import CheckpointError, check_name, check_shape, in_short, readable

SUFFIXES = (".pt", ".pth", ".bin")
MODULE = "torchao.prototype.mx_formats.nvfp4_tensor"
PACKED, ACTIVATIONS = f"{MODULE} NVFP4Tensor", f"{MODULE} QuantizeTensorToNVFP4Kwargs"
UNTYPED = "torch.storage UntypedStorage"
TENSORS = ("qdata", "scale", "per_tensor_scale", "act_per_tensor_scale")
MOST = 10**6
"""The largest number that an attribute may be."""
PICKLE_BYTES = 10_000_000
"""torch.save takes about 200 for a tensor."""
MOST_TENSORS = PICKLE_BYTES // 100
"""One can be named in a few bytes of pickle, and its shape and strides take thousands of memory."""
DIRECTORY_BYTES = 10_000_000
"""Of a zip file's directory, which has about 100 for a tensor."""
STACK = 10_000
"""torch.save adds 1000 items to a dictionary at once."""
STORAGES = {
    "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32",
    "Long": "int64", "Half": "float16", "BFloat16": "bfloat16", "Float": "float32",
    "Double": "float64", "ComplexFloat": "complex64",
}  # fmt: skip
"""torch.<name>Storage -> its elements' dtype."""
BITS = dict(DTYPES.values())


@dataclass(frozen=True)
class Named:
    """A global by its name."""

    name: str


@dataclass(frozen=True)
class Storage:
    """Bytes of the file. dtype: "" where tensors say it."""

    begin: int
    nbytes: int
    dtype: str


@dataclass
class Held:
    """An object of a class that only holds attributes."""

    kind: str
    attributes: dict[str, Any] = field(default_factory=dict)


class Mark:
    """Begins the items of a tuple or a dictionary, on the stack."""


def read_pickled(file: Opened) -> tuple[dict[str, Stored], dict[str, str]]:
    """A file's tensors, by safetensors' names of their parts, and what torchao's safetensors
    support writes into a header.

    Raises CheckpointError where it is not torch.save's, or has more than dense tensors.
    """
    try:
        found = _Walk(file, _records(file)).result()
    except (LookupError, StopIteration, TypeError, ValueError, struct.error) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file.name}: not by torch.save: {readable(error)}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file.name}: {kind_of(found)}, expected a dictionary")
    parts = _Parts(file.name)
    for name, value in found.items():
        parts.add(check_name(name, file.name), value)
    if parts.metadata:
        parts.metadata["tensor_names"] = "[]"  # its presence says that torchao wrote the rest
    return parts.stored, parts.metadata


# --- The zip file ---


class _Directory(io.RawIOBase):
    """What zipfile reads of a file: its directory, which must be at the end, and not large."""

    def __init__(self, file: Opened) -> None:
        self.file, self.at = file, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.file.size)[whence]
        if self.at < 0:
            raise ValueError("too short for a zip file")
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, count: int = -1) -> bytes:
        left = max(self.file.size - self.at, 0)
        count = left if count < 0 else min(count, left)
        if count > DIRECTORY_BYTES:
            raise ValueError(f"a directory of {count} bytes, expected at most {DIRECTORY_BYTES}")
        found = bytes(self.file.read(self.at, count))
        self.at += count
        return found

    def seekable(self) -> bool:
        return True


def _records(file: Opened) -> dict[str, tuple[int, int]]:
    """Record -> (where it begins, its bytes). torch.save stores all of them as they are."""
    try:
        with zipfile.ZipFile(_Directory(file)) as opened:  # type: ignore[arg-type]
            entries = opened.infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(str(error)) from None
    found = {}
    for entry in entries:
        record = entry.filename.partition("/")[2]
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename} is compressed")
        head = file.read(entry.header_offset, 30)
        begin = entry.header_offset + 30 + sum(struct.unpack("<HH", head[26:]))
        if head[:4] != b"PK\3\4" or begin + entry.file_size > file.size:
            raise ValueError(f"{entry.filename} is not where the directory says")
        if record in found:
            raise ValueError(f"{record} is there twice")
        found[record] = begin, entry.file_size
    if "data.pkl" not in found:
        raise ValueError("has no data.pkl")
    if found["data.pkl"][1] > PICKLE_BYTES:
        raise ValueError(f"{found['data.pkl'][1]} bytes of pickle, at most {PICKLE_BYTES}")
    if "byteorder" in found and bytes(file.read(found["byteorder"][0], 6)) != b"little":
        raise ValueError("its byteorder is not little")
    return found


# --- The pickle ---


class _Walk:
    """Does what a pickle's opcodes say with a stack and a memo. Tensors become Stored."""

    def __init__(self, file: Opened, records: dict[str, tuple[int, int]]) -> None:
        self.records = records
        self.pickle = bytes(file.read(*records["data.pkl"]))
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.tensors = 0

    def result(self) -> Any:
        for opcode, argument, _ in pickletools.genops(self.pickle):
            act = OPCODES.get(opcode.name)
            if act is None:
                raise ValueError(f"opcode {opcode.name}, which torch.save does not write")
            act(self, argument)
            if len(self.stack) > STACK:
                raise ValueError(f"more than {STACK} objects at once")
        (found,) = self.stack
        return found

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def put(self, at: int) -> None:
        self.memo[at] = self.stack[-1]

    def since_mark(self) -> list[Any]:
        at = next(i for i in reversed(range(len(self.stack))) if self.stack[i] is Mark)
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def tuple_of(self, count: int) -> None:
        found = self.stack[-count:]
        if len(found) != count or Mark in found:
            raise ValueError("a tuple without its items")
        self.stack[-count:] = [tuple(found)]

    def named(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        known = argument in CALLS or argument in KNOWN or (module == "torch" and name in BITS)
        if not known and not (module == "torch" and name.removesuffix("Storage") in STORAGES):
            raise ValueError(f"{in_short(argument)}, expected what makes a tensor")
        self.push(Named(argument))

    def set_items(self, items: list[Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str:
                raise ValueError(f"{kind_of(key)} as a key of a dictionary, expected a string")
            expect(dict, self.stack[-1])[key] = value

    def set_item(self, _: Any) -> None:
        items = [self.stack.pop(), self.stack.pop()]
        self.set_items(items[::-1])

    def append(self, items: list[Any]) -> None:
        expect(list, self.stack[-1]).extend(items)

    def storage(self, _: Any) -> None:
        word, kind, key, _, count = self.stack.pop()
        name = expect(Named, kind).name.removeprefix("torch ").removesuffix("Storage")
        dtype = "" if kind.name == UNTYPED else STORAGES[name]
        begin, nbytes = self.records[f"data/{expect(str, key)}"]
        if word != "storage" or size(count) * BITS.get(dtype, 8) // 8 > nbytes:
            raise ValueError(f"a storage of {count} elements in {nbytes} bytes")
        self.push(Storage(begin, nbytes, dtype))

    def call(self, _: Any) -> None:
        arguments, named = expect(tuple, self.stack.pop()), expect(Named, self.stack.pop())
        function = CALLS[named.name]
        self.tensors += function is _tensor
        if self.tensors > MOST_TENSORS:
            raise ValueError(f"more than {MOST_TENSORS} tensors")
        self.push(function(*arguments))

    def new(self, _: Any) -> None:
        arguments, kind = expect(tuple, self.stack.pop()), expect(Named, self.stack.pop())
        if kind.name != ACTIVATIONS or arguments:
            raise ValueError(f"an object of {kind.name}")
        self.push(Held(kind.name))

    def build(self, _: Any) -> None:
        state = expect(dict, self.stack.pop())
        if isinstance(self.stack[-1], Held):
            self.stack[-1].attributes = state
        else:
            expect(dict, self.stack[-1])  # an OrderedDict's attributes


def expect(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{kind_of(value)}, expected {kind.__name__}")
    return value


def size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{kind_of(value)}, expected a size")
    return value


def kind_of(value: object) -> str:
    """What a value is, in a few words: showing the value itself could take for ever."""
    name = value.kind.rpartition(" ")[2] if isinstance(value, Held) else type(value).__name__
    return {"Stored": "Tensor", "Named": "a global"}.get(name, name)


def _ordered() -> dict[str, Any]:
    return {}


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *others: Any) -> Stored:
    """others: requires_grad, hooks; a dtype where the storage has none; a view's lazy bits."""
    held, begin = expect(Storage, storage), size(offset)
    shape = check_shape(tuple(map(size, expect(tuple, shape))), "a tensor")
    strides = tuple(map(size, expect(tuple, strides)))
    dtype, lazy = held.dtype, others[2:]
    if not dtype:
        dtype, lazy = expect(Named, others[2]).name.removeprefix("torch "), others[3:]
    if any(lazy):
        raise ValueError("a tensor with lazy bits, such as a conjugate")
    itemsize = BITS[dtype] // 8
    if len(shape) != len(strides) or (begin + extent(shape, strides)) * itemsize > held.nbytes:
        raise ValueError(f"a tensor of {list(shape)} beyond its storage")
    nbytes = math.prod(shape) * itemsize
    if nbytes > held.nbytes:
        raise ValueError(f"a tensor of {list(shape)}: more elements than the file has")
    strides = strides if nbytes else row_major(shape)
    return Stored(dtype, shape, strides, held.begin + begin * itemsize, nbytes)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _subclass(function: Any, kind: Any, arguments: Any, state: Any) -> Held:
    """torchao's, whose state says everything."""
    if expect(Named, kind).name != PACKED:
        raise ValueError(f"an object of {kind.name}")
    return Held(kind.name, expect(dict, state))


def _nothing(*_: Any) -> None:
    """What says nothing of a tensor's values."""


CALLS: dict[str, Callable[..., Any]] = {
    "collections OrderedDict": _ordered,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "torch._utils _rebuild_parameter_with_state": _parameter,
    "torch._tensor _rebuild_from_type_v2": _subclass,
    "torch.serialization _get_layout": _nothing,
    "torch device": _nothing,
    "torch Size": _nothing,
}
KNOWN = {PACKED, ACTIVATIONS, UNTYPED, "torch._utils _rebuild_wrapper_subclass"}
OPCODES: dict[str, Callable[[_Walk, Any], None]] = {
    "PROTO": _nothing,
    "STOP": _nothing,
    "MARK": lambda walk, _: walk.push(Mark),
    "NONE": lambda walk, _: walk.push(None),
    "NEWTRUE": lambda walk, _: walk.push(True),
    "NEWFALSE": lambda walk, _: walk.push(False),
    **dict.fromkeys(
        ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _Walk.push
    ),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Walk.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda walk, at: walk.push(walk.memo[at])),
    "EMPTY_TUPLE": lambda walk, _: walk.push(()),
    "TUPLE1": lambda walk, _: walk.tuple_of(1),
    "TUPLE2": lambda walk, _: walk.tuple_of(2),
    "TUPLE3": lambda walk, _: walk.tuple_of(3),
    "TUPLE": lambda walk, _: walk.push(tuple(walk.since_mark())),
    "EMPTY_DICT": lambda walk, _: walk.push({}),
    "SETITEM": _Walk.set_item,
    "SETITEMS": lambda walk, _: walk.set_items(walk.since_mark()),
    "EMPTY_LIST": lambda walk, _: walk.push([]),
    "APPEND": lambda walk, _: walk.append([walk.stack.pop()]),
    "APPENDS": lambda walk, _: walk.append(walk.since_mark()),
    "GLOBAL": _Walk.named,
    "BINPERSID": _Walk.storage,
    "REDUCE": _Walk.call,
    "NEWOBJ": _Walk.new,
    "BUILD": _Walk.build,
}


# --- The tensors ---


class _Parts:
    """Tensors by name, those of torchao's one by one."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.stored: dict[str, Stored] = {}
        self.metadata: dict[str, str] = {}

    def add(self, name: str, value: object) -> None:
        if not isinstance(value, Held) or value.kind != PACKED:
            self._put(name, value)
            return
        module, _, own = name.rpartition(".")
        for part in TENSORS:
            tensor = value.attributes.get(part)
            if tensor is not None:
                self._put(f"{module}._{own}_{part}" if module else f"_{own}_{part}", tensor)
        kept: dict[str, object] = {
            key: self._number(name, value, key) for key in ("block_size", "is_swizzled_scales")
        }
        activations = value.attributes.get("act_quant_kwargs")
        if isinstance(activations, Held) and activations.kind == ACTIVATIONS:
            dynamic = "use_dynamic_per_tensor_scale"
            kept["act_quant_kwargs"] = {
                "_data": {dynamic: self._number(name, activations, dynamic)}
            }
        elif activations is not None:
            came = kind_of(activations)
            raise CheckpointError(f"{self.file}: {name}: act_quant_kwargs: {came}")
        self.metadata[name] = json.dumps({"_type": "NVFP4Tensor", "_data": kept})

    def _number(self, name: str, holder: Held, key: str) -> object:
        """A small number. A list could hold itself, and its JSON would have no end."""
        found = holder.attributes.get(key)
        if found is not None and (type(found) not in (int, bool) or abs(found) > MOST):
            came = kind_of(found)
            raise CheckpointError(f"{self.file}: {name}: {key}: {came}, expected a small number")
        return found

    def _put(self, name: str, value: object) -> None:
        if not isinstance(value, Stored):
            came = kind_of(value)
            raise CheckpointError(f"{self.file}: {name}: {came}, expected a plain tensor")
        if name in self.stored:
            raise CheckpointError(f"{self.file}: {name}: is there twice")
        self.stored[name] = value
