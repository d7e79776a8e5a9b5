"""What the C code asks Python about array types.

The only file that knows array libraries by name. It imports none of them: whoever holds an array
has loaded its library.
"""

import sys
from collections.abc import Callable
from typing import Any

_STORED_AS = {"float4_e2m1fn_x2": "uint8", "float8_e4m3fn": "uint8"}
"""NumPy and CuPy lack these types and hold their bytes as uint8."""


def _library(array: Any) -> Any:
    """The library that defines the type of `array` or one of its bases; None for an unknown one."""
    for base in type(array).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("numpy", "cupy", "torch"):
            return sys.modules[root]
    return None


def _is_address(array: Any) -> bool:
    """Whether it is a tensor of nvfp4kern.addresses, which takes a moment to import."""
    return type(array).__module__ == f"{__package__}.addresses"


# --- Reading and writing ---


def protocol(
    kind: type[Any],
) -> tuple[bool, Callable[[Any], tuple] | None, Callable[[Any], None] | None]:
    """How arrays of this type are read, and who is told which of them a call has written.

    A `__dlpack__` of a subclass's own comes before the C exchange API of its base. Then
    address_function's and written_function's answers.
    """
    names = ("__dlpack_c_exchange_api__", "__dlpack__")
    defined = next((n for base in kind.__mro__ for n in names if n in vars(base)), None)
    return defined == "__dlpack__", address_function(kind), written_function(kind)


def written_function(kind: type[Any]) -> Callable[[Any], None] | None:
    """torch's function that counts a change of each tensor of a list; None for other arrays.

    Autograd compares the count with that of the time when it saved a tensor. Tensors of
    inference mode have none and are left alone.
    """
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(kind, torch.Tensor):
        return None
    direct: Any = getattr(torch._C, "_increment_version", None)  # half the public one's cost
    try:
        direct([])
    except Exception:  # an older torch, where it takes one tensor
        return _increment_versions
    return direct


def _increment_versions(tensors: list[Any]) -> None:
    for tensor in tensors:
        if not tensor.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(tensor)


def address_function(kind: type[Any]) -> Callable[[Any], tuple] | None:
    """The function that describes arrays of this type; None where their `__dlpack__` has to.

    It returns (address, dtype, shape, strides in elements, device type, device index, read-only).
    torch has no exchange API before 2.10. There its `__dlpack__` takes several microseconds a
    tensor, and in 2.8 it refuses float4 and float8. NumPy's refuses read-only arrays before 2.1,
    and cannot say that others may be written. A subclass with a `__dlpack__` of its own is read by
    that.
    """
    for library, array, function in (
        ("torch", "Tensor", _torch_tensor),
        ("numpy", "ndarray", _numpy_array),
    ):
        base = getattr(sys.modules.get(library), array, None)
        if base and issubclass(kind, base) and kind.__dlpack__ is base.__dlpack__:
            return None if library == "numpy" and _has_versioned_capsules() else function
    return None


def _has_versioned_capsules() -> bool:
    major, minor = sys.modules["numpy"].__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 1)


def _numpy_array(array: Any) -> tuple:
    if array.dtype.name == "float4_e2m1fn":
        packed = _packed(array)
        return *_numpy_array(packed), packed
    size = array.dtype.itemsize
    if not array.dtype.isnative or any(stride % size for stride in array.strides):
        raise BufferError("expected the machine's byte order and strides of whole elements")
    address, read_only = array.__array_interface__["data"]
    strides = tuple(stride // size for stride in array.strides)
    return address, array.dtype.name, array.shape, strides, "cpu", 0, read_only


def _packed(array: Any) -> Any:
    """ml_dtypes has a float4 in each byte. Two of them are put into a byte of a copy, which is
    read-only: nothing that is written to it would be seen."""
    if array.ndim == 0 or array.shape[-1] % 2:
        raise BufferError(f"float4 of shape {array.shape}, expected two elements for each byte")
    codes = array.view("uint8")
    packed = (codes[..., ::2] & 15) | (codes[..., 1::2] << 4)
    packed.flags.writeable = False
    return packed


def described(array: Any) -> tuple | None:
    """What _numpy_array says of NumPy's array with a dtype of ml_dtypes, which NumPy does not
    export; None for any other array."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray) or array.dtype.name not in _ML_DTYPES:
        return None
    return _numpy_array(array)


_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float4_e2m1fn")
"""What operators take of ml_dtypes, by the names that NumPy has for them."""


def _torch_tensor(tensor: Any) -> tuple:
    device = tensor.device
    return (
        tensor.data_ptr(),
        _DTYPE_NAMES.get(tensor.dtype) or _name(tensor.dtype),
        tensor.shape,
        tensor.stride(),
        device.type,
        device.index or 0,
        False,
    )


_DTYPE_NAMES: dict[Any, str] = {}
"""torch's dtypes seen so far."""


def _name(dtype: Any) -> str:
    _DTYPE_NAMES[dtype] = name = str(dtype).removeprefix("torch.")
    return name


def current_stream(array: Any) -> int:
    """The address of the current stream of `array`'s library; 0, the default stream, where that
    library is unknown."""
    library = _library(array)
    if library is not None and library.__name__ == "torch":
        return library.cuda.current_stream(array.device).cuda_stream
    if library is not None and library.__name__ == "cupy":
        with array.device:
            return library.cuda.get_current_stream().ptr
    return array.stream if _is_address(array) else 0


# --- Moving and storing ---


def stored(array: Any) -> tuple[Any, str | None]:
    """(array, None), or the bytes of torch's float4 and float8 with the name of their dtype: torch
    cannot pickle these types, and copies few of them."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is None or not isinstance(array, tensor):
        return array, None
    name = _DTYPE_NAMES.get(array.dtype) or _name(array.dtype)
    return (array.view(sys.modules["torch"].uint8), name) if name in _STORED_AS else (array, None)


def restored(array: Any, name: str | None) -> Any:
    """The inverse of stored()."""
    return array if name is None else array.view(getattr(sys.modules["torch"], name))


_told = False


def tell_torch(kind: type[Any]) -> None:
    """Registers NVFP4 as a node of torch's pytrees, once torch is there.

    Without a `_make`, which named tuples have, because pytrees would then copy the items alone.
    """
    global _told
    if _told or "torch.utils._pytree" not in sys.modules:
        return
    _told = True
    pytree = sys.modules["torch.utils._pytree"]
    pytree.register_pytree_node(
        kind,
        lambda q: (list(q), q.scale_layout),
        lambda parts, layout: kind(*parts, layout),
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        flatten_with_keys_fn=lambda q: (
            [(pytree.GetAttrKey(name), part) for name, part in q._asdict().items()],
            q.scale_layout,
        ),
    )


# --- Allocating ---


def _unsupported(array: Any, name: str) -> TypeError:
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    return TypeError(
        f"out: None, but no {kind} can be made for {name}; pass NumPy or torch tensors as out="
    )


def empty(array: Any, dtype: str, shape: tuple[int, ...], name: str) -> Any:
    """A new array for the output `name`, of the library and on the device of `array`. Its contents
    are not initialised."""
    library = _library(array)
    if library is None:
        if _is_address(array) and array.allocate:
            return array.allocate(dtype, shape)
        raise _unsupported(array, name)
    if library.__name__ == "torch":
        return library.empty(shape, dtype=getattr(library, dtype), device=array.device)
    if dtype == "bfloat16":
        of_numpy = sys.modules.get("ml_dtypes") if library.__name__ == "numpy" else None
        if of_numpy is None:
            raise TypeError(
                f"out_dtype: bfloat16, but {library.__name__} has no such type; pass out= or "
                "another, or import ml_dtypes for NumPy"
            )
        return library.empty(shape, of_numpy.bfloat16)
    dtype = _STORED_AS.get(dtype, dtype)
    if library.__name__ == "cupy":
        with array.device:
            return library.empty(shape, dtype)
    return library.empty(shape, dtype)
