"""XLA's foreign function interface, by ctypes: calls of Python functions on a program's buffers.

The structs are those of xla/ffi/api/c_api.h, version 0.x, as far as they are read here. Sizes stand
in front of what a version adds, so a newer one is read as this one.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import jax

from ..addresses import CPU, CUDA, Array

DTYPES = {
    4: "int32",
    6: "uint8",
    10: "float16",
    11: "float32",
    16: "bfloat16",
    20: "float8_e4m3fn",
}
"""XLA_FFI_DataType of what operators take."""

MAJOR = 0
METADATA = 1
INTERNAL = 13
"""XLA_FFI_API_MAJOR, XLA_FFI_Extension_Metadata, XLA_FFI_Error_Code_INTERNAL."""
XLAS_ALIGNMENT = 16
"""XLA refuses to allocate with a greater one, whatever its memory has."""
ALIGNMENT = 256
"""Bytes, of a workspace."""


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """Of the interface: each begins with its size and its extensions."""
    head = [("struct_size", c_size_t), ("extension_start", c_void_p)]
    return type(name, (ctypes.Structure,), {"_fields_": head + list(fields)})


Version = _struct("Version", ("major", c_int), ("minor", c_int))
ErrorCreate = _struct("ErrorCreate", ("message", c_char_p), ("code", c_int))
ErrorMessage = _struct("ErrorMessage", ("error", c_void_p), ("message", c_char_p))
ErrorDestroy = _struct("ErrorDestroy", ("error", c_void_p))
Buffer = _struct(
    "Buffer", ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64))
)
Values = _struct("Values", ("size", c_int64), ("types", c_void_p), ("values", POINTER(c_void_p)))
StreamGet = _struct("StreamGet", ("ctx", c_void_p), ("stream", c_void_p))
Allocate = _struct(
    "Allocate", ("ctx", c_void_p), ("size", c_size_t), ("align", c_size_t), ("data", c_void_p)
)
Free = _struct("Free", ("ctx", c_void_p), ("size", c_size_t), ("data", c_void_p))
Ordinal = _struct("Ordinal", ("ctx", c_void_p), ("ordinal", c_int32))
FUNCTIONS = (
    "error_create", "error_message", "error_destroy", "register", "stream", "type_register",
    "context_get", "state_set", "state_get", "allocate", "free", "schedule", "threads",
    "future_create", "future_set", "future_error", "run_id", "ordinal",
)  # fmt: skip
Api = _struct(
    "Api", ("version", Version), ("internal", c_void_p), *((name, c_void_p) for name in FUNCTIONS)
)
Frame = _struct(
    "Frame", ("api", POINTER(Api)), ("ctx", c_void_p), ("stage", c_int), ("args", Values),
    ("rets", Values),
)  # fmt: skip


class Metadata(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("version", Version), ("traits", c_uint32)]


class Extension(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(Metadata)),
    ]


HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(Frame))
FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class _Call:
    """One call of a handler: its buffers, its stream, and memory that ends with it."""

    def __init__(self, frame: Any, on_gpu: bool) -> None:
        self.frame, self.api, self.taken = frame, frame.api.contents, []
        self.device, self.stream = (CPU, 0), 0
        if on_gpu:
            self.device = CUDA, self.ask("ordinal", Ordinal(ctx=frame.ctx)).ordinal
            self.stream = self.ask("stream", StreamGet(ctx=frame.ctx)).stream or 0

    def ask(self, function: str, arguments: Any) -> Any:
        """Of XLA. RuntimeError where it answers with an error."""
        if error := self._call(function, arguments):
            asked = ErrorMessage(error=error)
            self._call("error_message", asked)
            said = (asked.message or b"").decode(errors="replace")
            self._call("error_destroy", ErrorDestroy(error=error))
            raise RuntimeError(f"XLA's {function} failed: {said}")
        return arguments

    def _call(self, function: str, arguments: Any) -> int | None:
        arguments.struct_size = ctypes.sizeof(arguments)
        answer: int | None = FUNCTION(getattr(self.api, function))(ctypes.addressof(arguments))
        return answer

    def array(self, address: int | None, dtype: str, shape: tuple[int, ...]) -> Array:
        made = Array(address, dtype, shape, self.device)
        made.stream, made.allocate = self.stream, self.allocated
        return made

    def arrays(self, values: Any) -> list[Array]:
        found = []
        for i in range(values.size):
            buffer = ctypes.cast(values.values[i], POINTER(Buffer)).contents
            if buffer.dtype not in DTYPES:
                raise TypeError(
                    f"XLA's dtype {buffer.dtype}, expected {', '.join(DTYPES.values())}"
                )
            shape = tuple(buffer.dims[: buffer.rank]) if buffer.rank else ()
            found.append(self.array(buffer.data, DTYPES[buffer.dtype], shape))
        return found

    def allocated(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """Workspace, which is bytes in one dimension."""
        size = shape[0] + ALIGNMENT
        taken: Any
        if self.device[0] == CPU:
            taken = ctypes.create_string_buffer(size)
            start = ctypes.addressof(taken)
        else:
            asked = Allocate(ctx=self.frame.ctx, size=size, align=XLAS_ALIGNMENT)
            taken = self.ask("allocate", asked)
            start = taken.data
        self.taken.append(taken)
        return self.array(-(-start // ALIGNMENT) * ALIGNMENT, dtype, shape)

    def end(self) -> None:
        """What is given back may be used again by what follows in the stream."""
        for taken in self.taken:
            if isinstance(taken, Allocate):
                self.ask("free", Free(ctx=taken.ctx, size=taken.size, data=taken.data))

    def error(self, message: str) -> int:
        return self._call("error_create", ErrorCreate(message=message.encode(), code=INTERNAL))


def _describe(frame: Any) -> bool:
    """Whether XLA asked only for which version this is written: its own of 0.x. It refuses the
    targets where its interface has another major number."""
    if not frame.extension_start:
        return False
    extension = ctypes.cast(frame.extension_start, POINTER(Extension)).contents
    if extension.type != METADATA:
        return False
    metadata, version = extension.metadata.contents, frame.api.contents.version
    metadata.version.major, metadata.version.minor = MAJOR, version.minor
    metadata.traits = 0
    return True


_kept: list[Any] = []
"""Handlers, which programs may call for ever."""


def _handler(run: Callable[[list[Array], list[Array]], None], on_gpu: bool) -> Any:
    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        if _describe(frame):
            return None
        call = None
        try:
            call = _Call(frame, on_gpu)
            try:
                run(call.arrays(frame.args), call.arrays(frame.rets))
            finally:
                call.end()
        except BaseException as error:
            if call is None:
                call = _Call(frame, False)
            return call.error(f"{type(error).__name__}: {error}")
        return None

    _kept.append(HANDLER(handle))
    return jax.ffi.pycapsule(ctypes.cast(_kept[-1], c_void_p).value)


def register(name: str, run: Callable[[list[Array], list[Array]], None]) -> None:
    """A target that calls run(arguments, results) on CPUs and on CUDA."""
    for platform in ("cpu", "CUDA"):
        capsule = _handler(run, platform == "CUDA")
        jax.ffi.register_ffi_target(name, capsule, platform=platform, api_version=1)
