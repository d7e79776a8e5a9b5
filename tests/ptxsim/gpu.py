"""The simulated GPU for tests of itself: PTX in, NumPy arrays as its memory, reports out."""

import ctypes
import functools
import json
import os

import numpy as np

from . import build

SETTINGS = {"cc": "9.0", "sms": 4, "threads": 1, "spin_limit": 2_000_000}


class SimError(Exception):
    """What a launch failed of; `findings` as in report()."""

    def __init__(self, text, findings):
        super().__init__(text)
        self.findings = findings


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("n_attributes", ctypes.c_uint),
    ]


class Cluster(ctypes.Structure):
    """A CUlaunchAttribute that says the cluster's size."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("dims", ctypes.c_uint * 16)]


@functools.cache
def library():
    loaded = ctypes.CDLL(str(build.simulator()))
    loaded.ptxsim_seed.argtypes = [ctypes.c_uint64]
    loaded.ptxsim_report.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    loaded.ptxsim_report.restype = ctypes.c_size_t
    loaded.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    loaded.cuInit(0)
    return loaded


def configure(**settings):
    """PTXSIM_ variables in lower case; those not given are SETTINGS."""
    for name, value in (SETTINGS | settings).items():
        os.environ[f"PTXSIM_{name.upper()}"] = str(value)
    library().ptxsim_configure()


def check(code, what):
    if code == 0:
        return
    text = ctypes.c_char_p()
    library().cuGetErrorString(code, ctypes.byref(text))
    raise SimError(f"{what}: {text.value.decode()}", report()["findings"])


def report():
    """The counts and findings since clear()."""
    size = library().ptxsim_report(None, 0)
    text = ctypes.create_string_buffer(size + 1)
    library().ptxsim_report(text, size + 1)
    return json.loads(text.value.decode())


def clear():
    library().ptxsim_clear()


def seed(value):
    library().ptxsim_seed(value)


class Memory:
    """An allocation of the GPU, seen as a NumPy array."""

    def __init__(self, array):
        array = np.ascontiguousarray(array)
        address = ctypes.c_uint64()
        check(
            library().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(array.nbytes)), "alloc"
        )
        self.address = address.value
        buffer = (ctypes.c_uint8 * array.nbytes).from_address(self.address)
        self.array = np.frombuffer(buffer, array.dtype).reshape(array.shape)
        self.array[...] = array

    def __del__(self):
        library().cuMemFree_v2(self.address)


class Module:
    def __init__(self, text):
        self.handle = ctypes.c_void_p()
        log = ctypes.create_string_buffer(1024)
        options, values = (
            (ctypes.c_int * 2)(5, 6),
            (ctypes.c_void_p * 2)(ctypes.addressof(log), 1024),
        )
        code = library().cuLibraryLoadData(
            ctypes.byref(self.handle), text.encode(), options, values, 2, None, None, 0
        )
        if code:
            raise SimError(log.value.decode() or "cuLibraryLoadData", [])

    def kernel(self, name):
        kernel, function = ctypes.c_void_p(), ctypes.c_void_p()
        code = library().cuLibraryGetKernel(ctypes.byref(kernel), self.handle, name.encode())
        check(code, name)
        check(library().cuKernelGetFunction(ctypes.byref(function), kernel), name)
        return kernel

    def launch(self, name, *args, grid=1, block=32, shared_bytes=0, cluster=None):
        """Memory, NumPy scalars and bytes as arguments, each as large as the kernel's parameter."""
        kernel = self.kernel(name)
        if shared_bytes:
            code = library().cuKernelSetAttribute(8, shared_bytes, kernel, 0)
            check(code, "shared memory")
        kept = [raw_argument(arg) for arg in args]
        pointers = (ctypes.c_void_p * max(len(kept), 1))(*(ctypes.addressof(arg) for arg in kept))
        config = LaunchConfig(three(grid), three(block), shared_bytes)
        if cluster:
            attribute = Cluster(4, 0, (ctypes.c_uint * 16)(*three(cluster)))
            config.attributes, config.n_attributes = ctypes.addressof(attribute), 1
        check(library().cuLaunchKernelEx(ctypes.byref(config), kernel, pointers, None), name)


def three(sizes):
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return (ctypes.c_uint * 3)(*sizes, *(1,) * (3 - len(sizes)))


def raw_argument(arg):
    if isinstance(arg, Memory):
        return ctypes.c_uint64(arg.address)
    data = arg if isinstance(arg, bytes) else np.asarray(arg).tobytes()
    return (ctypes.c_uint8 * len(data)).from_buffer_copy(data)


HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def kernel(body, params=("p",), declarations="", registers=64):
    """PTX of a kernel `f` around instructions: %rd0.. are its 64-bit parameters, loaded."""
    names = ", ".join(f".param .u64 {name}" for name in params)
    loads = "\n".join(f"ld.param.u64 %rd{i}, [{name}];" for i, name in enumerate(params))
    kinds = [("pred", "p"), ("b16", "h"), ("b32", "r"), ("f32", "f"), ("b64", "rd"), ("f64", "fd")]
    registers = "\n".join(f".reg .{kind} %{name}<{registers}>;" for kind, name in kinds)
    head = f"{HEADER}.visible .entry f({names})\n{{\n{registers}\n{declarations}\n"
    return f"{head}{loads}\n{body}\n}}\n"
