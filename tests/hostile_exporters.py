"""Tensors whose exporters misbehave: `python tests/hostile_exporters.py --seed S --count N`.

Each way is tried in every place of every operator that takes a tensor. The call is right, or it
raises what is documented, with the argument's name, and has written nothing. Ways of SAME are
honest: these calls must be right. References are as before.
"""

import ctypes
import gc
import sys
import threading
from contextlib import suppress
from functools import partial

import calls
import campaign
import numpy as np
import torch
from capsules import Capsule
from exporters import Legacy, Versioned
from failing_memory import copied, same
from fuzz import DOCUMENTED, MESSAGE
from views import DTYPES

import nvfp4kern

WAYS, SAME = {}, set()
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def way(function):
    """(tensor, a call to make in the middle) -> what is given instead."""
    WAYS[function.__name__] = function
    return function


def honest(function):
    SAME.add(function.__name__)
    return way(function)


class Told:
    """__dlpack__ is a function of the keywords."""

    def __init__(self, export, device=(1, 0)):
        self.export, self.device = export, device

    def __dlpack__(self, **options):
        return self.export(**options)

    def __dlpack_device__(self):
        return self.device() if callable(self.device) else self.device


def by_hand(t, **fields):
    """Like t, but for some fields. It says nothing more of `lies` about memory than t has."""
    strides = fields.pop("strides", t.stride())
    made = Capsule.at(t.data_ptr(), DTYPES[t.dtype], t.shape, strides, **fields)
    made.tensor = t
    return made


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


for _error in (TypeError("no"), ValueError(""), BufferError("two\nlines"), AttributeError("gone"),
               RuntimeError(object()), OverflowError(), StopIteration(), UnicodeError("\udc80"),
               RecursionError("deep"), MemoryError(), LookupError(b"\xff")):  # fmt: skip
    WAYS[f"raises {_error!r}"] = lambda t, call, e=_error: Told(raising(e))
    WAYS[f"device raises {_error!r}"] = lambda t, call, e=_error: Told(t.__dlpack__, raising(e))
for _value in (None, 1, "capsule", (), [1, 0], (1,), (1, 0, 0), (2**40, 0), (1, 2**70), ("a", "b"),
               (-1, 0), (99, 0), (1, -1), (1, 5)):  # fmt: skip
    WAYS[f"device is {_value!r}"] = lambda t, call, v=_value: Told(
        lambda **_: t.__dlpack__(max_version=(1, 3)), v
    )
for _fields in (
    {"major": 0}, {"major": 2}, {"major": 2**32 - 1}, {"minor": 0}, {"minor": 2**32 - 1},
    {"ndim": -1}, {"ndim": 7}, {"ndim": 2**31 - 1}, {"flags": 1}, {"flags": 2}, {"flags": 4},
    {"flags": 2**64 - 1}, {"device_type": 0}, {"device_type": 3}, {"device_type": 13},
    {"device_type": 10}, {"device_type": -1}, {"device_id": 7}, {"device_id": -(2**31)},
    {"data": None},
    {"lanes": 0}, {"lanes": 2**16 - 1}, {"bits": 0}, {"bits": 255}, {"code": 255}, {"code": 3},
):  # fmt: skip
    WAYS[f"fields {_fields}"] = lambda t, call, f=_fields: by_hand(t, **f)
SIZES = (-1, 0, -(2**63), 2**63 - 1, 2**31, 2**62)
for _n in SIZES:
    WAYS[f"extents {_n}"] = lambda t, call, n=_n: sized(t, lambda shape: [n] * len(shape))
    WAYS[f"first extent {_n}"] = lambda t, call, n=_n: sized(t, lambda shape: [n, *shape[1:]])
    WAYS[f"last extent {_n}"] = lambda t, call, n=_n: sized(t, lambda shape: [*shape[:-1], n])


def sized(t, change):
    """Of other extents, and without memory: nobody may read it, and where it is empty nobody
    does."""
    shape = change(list(t.shape)) if t.dim() else []
    return Capsule.at(None, DTYPES[t.dtype], shape, [1] * len(shape))


# --- Honest ones ---


@honest
def made_by_hand(t, call):
    return by_hand(t)


@honest
def by_the_protocol(t, call):
    return Versioned(t)


@honest
def calls_operators_meanwhile(t, call):
    def export(**options):
        call()
        return t.__dlpack__(**options)

    return Told(export)


@honest
def calls_operators_of_threads_meanwhile(t, call):
    def export(**options):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return t.__dlpack__(**options)

    return Told(export)


@honest
def forgets_itself(t, call):
    """Its method is deleted while it runs."""

    class Once:
        def __dlpack__(self, **options):
            del Once.__dlpack__
            return t.__dlpack__(**options)

        kept = __dlpack__

    return Once()


@honest
def has_no_device(t, call):
    class Bare:
        def __dlpack__(self, **options):
            return t.__dlpack__(**options)

    return Bare()


@honest
def deleter_calls_operators(t, call):
    return with_deleter(t, call)


@honest
def deleter_raises(t, call):
    return with_deleter(t, raising(KeyError("in a deleter")))


@honest
def deleter_of_another_thread(t, call):
    def elsewhere():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    return with_deleter(t, elsewhere)


def with_deleter(t, run):
    """Exported by hand; the capsule's destructor runs Python code."""
    made = by_hand(t)
    made.end = DELETER(lambda _: run())
    end = ctypes.cast(made.end, ctypes.c_void_p)
    return Told(lambda **_: capsule_at(ctypes.addressof(made), Capsule.NAME, end))


def capsule_at(address, name, destructor=None):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, name, destructor)


# --- Others ---


@way
def before_1_0(t, call):
    """Read-only."""
    return Legacy(t)


@way
def consumed(t, call):
    """The second time it is another's."""
    capsule = t.__dlpack__()
    torch.from_dlpack(capsule)
    return Told(lambda **_: capsule)


@way
def a_bare_consumed_capsule(t, call):
    capsule = t.__dlpack__()
    torch.from_dlpack(capsule)
    return capsule


@way
def one_capsule_for_all_calls(t, call):
    capsule = t.__dlpack__(max_version=(1, 3))
    return Told(lambda **_: capsule)


@way
def a_capsule_of_another_name(t, call):
    return Told(lambda **_: capsule_at(1, b"dltensor\xff%n"))


@way
def a_capsule_without_a_name(t, call):
    return Told(lambda **_: capsule_at(1, None))


@way
def returns_itself(t, call):
    told = Told(lambda **_: told)
    return told


@way
def recurses(t, call):
    told = Told(lambda **_: nvfp4kern.to_blocked(told))
    return told


@way
def wants_other_arguments(t, call):
    class Strict:
        def __dlpack__(self, stream):
            return t.__dlpack__(stream=stream)

    return Strict()


@way
def says_it_is_a_tensor(t, call):
    class Liar:
        __class__ = torch.Tensor
        __array_interface__ = {"shape": (1,), "typestr": "|u1", "data": (1, False), "version": 3}

    return Liar()


@way
def an_array_whose_interface_lies(t, call):
    class Lying(np.ndarray):
        @property
        def __array_interface__(self):
            return {"data": (1, False), "shape": (2**40,), "typestr": "|u1", "version": 3}

    return np.zeros(tuple(t.shape), "u1").view(Lying)


@way
def an_array_whose_method_returns_none(t, call):
    class Empty(np.ndarray):
        def __dlpack__(self, **_):
            return None

    return np.zeros(tuple(t.shape), "u1").view(Empty)


@way
def a_tensor_whose_functions_raise(t, call):
    class Raising(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_, **__):
            raise KeyError("of torch")

    return t.as_subclass(Raising)


@way
def a_memoryview(t, call):
    return memoryview(t.contiguous().view(torch.uint8).numpy()) if t.dim() else memoryview(b"")


@way
def an_api_of_another_name(t, call):
    return type("Type", (), {"__dlpack_c_exchange_api__": t.__dlpack__()})()


@way
def an_api_that_raises(t, call):
    class Meta(type):
        @property
        def __dlpack_c_exchange_api__(cls):
            raise KeyError("no api")

    return Meta("Type", (), {})()


# --- Where ---


def places(base):
    """(argument's name, item's number or None, tensor) of a good call."""
    for name, value in base("cpu").items():
        value = calls.tensors_of(value)
        items = enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
        yield from ((name, i) for i, item in items if isinstance(item, torch.Tensor))


def points(function):
    for base in calls.FUNCTIONS:
        for name, item in places(base):
            where = name if item is None else f"{name}[{item}]"
            attempt = partial(tried, function, base, name, item)
            yield f"{base.__name__} {where}, {function.__name__}", attempt


def tried(function, base, name, item):
    args = {n: calls.tensors_of(value) for n, value in base("cpu").items()}
    outs = args["out"] if isinstance(args["out"], list) else [args["out"]]
    run = getattr(nvfp4kern, calls.FUNCTIONS[base])
    positional, keywords = calls.arranged(calls.FUNCTIONS[base], args)
    run(*positional, **keywords)
    answer = copied(outs)
    tensors = [t for v in args.values() for t in (v if isinstance(v, (list, tuple)) else [v])]
    tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
    inputs = [t for t in tensors if all(t is not out for out in outs)]
    first = copied(inputs)
    small = torch.zeros((1, 1), dtype=torch.uint8)
    value = args[name]
    given = function(value if item is None else value[item], lambda: nvfp4kern.to_blocked(small))
    if item is None:
        args[name] = given
    else:
        args[name] = type(value)([*value[:item], given, *value[item + 1 :]])
    positional, keywords = calls.arranged(calls.FUNCTIONS[base], args)
    [out.view(torch.uint8).fill_(0xA5) for out in outs]
    before, kept = [sys.getrefcount(t) for t in tensors], sys.getrefcount(given)
    blank, came = copied(outs), "returned"
    try:
        run(*positional, **keywords)
    except DOCUMENTED as error:
        came = repr(error)
        if not MESSAGE.match(str(error)):
            yield f"says {came}"
        if not same(copied(outs), blank):
            yield f"{came}, and wrote its outputs"
        with suppress(AttributeError):
            error.__cause__.__traceback__ = None  # it may be one of WAYS
    except MemoryError as error:
        came, error.__traceback__ = repr(error), None
    except Exception as error:
        came = repr(error)
        yield f"raised {came}"
    else:
        if function.__name__ in SAME and not same(copied(outs), answer):
            yield "another answer"
    if came != "returned" and function.__name__ in SAME:
        yield f"refused: {came}"
    if not same(copied(inputs), first):
        yield f"{came}, and an input changed"
    gc.collect()
    after = [sys.getrefcount(t) for t in tensors], sys.getrefcount(given)
    if after != (before, kept):
        yield f"{came}, and references {before, kept} became {after}"


for _name, _way in WAYS.items():
    _way.__name__ = _name
CASES = {name: partial(points, function) for name, function in WAYS.items()}

if __name__ == "__main__":
    sys.unraisablehook = lambda _: None  # a deleter's exceptions
    sys.exit(campaign.main(__doc__, CASES, count=10))
