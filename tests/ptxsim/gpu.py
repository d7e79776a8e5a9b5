"""The simulated GPU for tests of itself: PTX in, NumPy arrays as its memory, reports out.

After on_hardware() the same launches run on a real GPU; only Memory.read() sees what they wrote.
"""

import ctypes
import functools
import json
import os

import numpy as np

from . import build

SETTINGS = {"cc": "9.0", "sms": 4, "threads": 1, "spin_limit": 2_000_000}
SETTINGS |= {
    "cp_behind_mma": 1,
    "scopes": 0,
    "fenced_stores": 0,
    "nan_times_zero": 1,
    "wavefronts": 0,
}


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


class Attribute(ctypes.Structure):
    """A CUlaunchAttribute: the cluster's size, or that the launch may overlap the one before it."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]

    CLUSTER, OVERLAP = 4, 6

    @classmethod
    def of(cls, kind, *values):
        return cls(kind, 0, (ctypes.c_uint * 16)(*values))


hardware = None  # the real driver, once asked for


def on_hardware():
    """From now on the first GPU of this machine, whose driver is found as the package finds it."""
    global hardware
    hardware = ctypes.CDLL(os.environ.get("NVFP4KERN_LIBCUDA", "libcuda.so.1"))
    hardware.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    context = ctypes.c_void_p()
    check(hardware.cuInit(0), "cuInit")
    check(hardware.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "the primary context")
    check(hardware.cuCtxSetCurrent(context), "the primary context")


def library():
    return hardware or simulator()


@functools.cache
def simulator():
    loaded = ctypes.CDLL(str(build.simulator()))
    loaded.ptxsim_seed.argtypes = [ctypes.c_uint64]
    loaded.ptxsim_report.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    loaded.ptxsim_report.restype = ctypes.c_size_t
    loaded.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    loaded.cuInit(0)
    context = ctypes.c_void_p()
    loaded.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    loaded.cuCtxSetCurrent(context)
    return loaded


def configure(**settings):
    """PTXSIM_ variables in lower case; those not given are SETTINGS."""
    if hardware:
        return
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
    if hardware:
        return {"findings": []}
    size = library().ptxsim_report(None, 0)
    text = ctypes.create_string_buffer(size + 1)
    library().ptxsim_report(text, size + 1)
    return json.loads(text.value.decode())


def findings(severities="EW"):
    """The codes of what was found since clear()."""
    return {f["code"] for f in report()["findings"] if f["severity"] in severities}


def clear():
    if not hardware:
        library().ptxsim_clear()


def seed(value):
    if not hardware:
        library().ptxsim_seed(value)


class Memory:
    """An allocation of the GPU; the simulated one's can be seen as a NumPy array."""

    def __init__(self, array):
        self.like = np.ascontiguousarray(array)
        self.bytes = ctypes.c_size_t(self.like.nbytes)
        address = ctypes.c_uint64()
        check(library().cuMemAlloc_v2(ctypes.byref(address), self.bytes), "alloc")
        self.address = address.value
        source = ctypes.c_void_p(self.like.ctypes.data)
        check(library().cuMemcpyHtoD_v2(ctypes.c_uint64(self.address), source, self.bytes), "copy")

    @property
    def array(self):
        assert not hardware, "memory of the device: read() it"
        buffer = (ctypes.c_uint8 * self.bytes.value).from_address(self.address)
        return np.frombuffer(buffer, self.like.dtype).reshape(self.like.shape)

    def read(self):
        """A copy of what is there now."""
        found = np.empty_like(self.like)
        target = ctypes.c_void_p(found.ctypes.data)
        check(library().cuMemcpyDtoH_v2(target, ctypes.c_uint64(self.address), self.bytes), "copy")
        return found

    def __del__(self):
        library().cuMemFree_v2(self.address)


class Module:
    """PTX, as text, or a cubin (for real GPUs), as bytes."""

    def __init__(self, image):
        image = image if isinstance(image, bytes) else image.encode()
        self.handle = ctypes.c_void_p()
        log = ctypes.create_string_buffer(1024)
        options, values = (
            (ctypes.c_int * 2)(5, 6),
            (ctypes.c_void_p * 2)(ctypes.addressof(log), 1024),
        )
        code = library().cuLibraryLoadData(
            ctypes.byref(self.handle), image, options, values, 2, None, None, 0
        )
        if code:
            raise SimError(log.value.decode() or "cuLibraryLoadData", [])

    def kernel(self, name):
        kernel, function = ctypes.c_void_p(), ctypes.c_void_p()
        code = library().cuLibraryGetKernel(ctypes.byref(kernel), self.handle, name.encode())
        check(code, name)
        check(library().cuKernelGetFunction(ctypes.byref(function), kernel), name)
        return kernel

    def allow_large_clusters(self, name):
        check(library().cuKernelSetAttribute(14, 1, self.kernel(name), 0), "large clusters")

    def launch(self, name, *args, grid=1, block=32, shared_bytes=0, cluster=None, overlap=False):
        """Memory, NumPy scalars and bytes as arguments, each as large as the kernel's parameter."""
        kernel = self.kernel(name)
        if shared_bytes:
            code = library().cuKernelSetAttribute(8, shared_bytes, kernel, 0)
            check(code, "shared memory")
        kept = [raw_argument(arg) for arg in args]
        pointers = (ctypes.c_void_p * max(len(kept), 1))(*(ctypes.addressof(arg) for arg in kept))
        config = LaunchConfig(three(grid), three(block), shared_bytes)
        attributes = [Attribute.of(Attribute.CLUSTER, *three(cluster))] if cluster else []
        attributes += [Attribute.of(Attribute.OVERLAP, 1)] if overlap else []
        array = (Attribute * len(attributes))(*attributes)
        config.attributes, config.n_attributes = ctypes.addressof(array), len(array)
        check(library().cuLaunchKernelEx(ctypes.byref(config), kernel, pointers, None), name)
        check(library().cuCtxSynchronize(), name)


SWIZZLES = {16: 0, 32: 1, 64: 2, 128: 3}  # by the bytes of a row of the pattern


def tensor_map(memory, shape, box, swizzle, pitch=None):
    """The bytes of a map of rows of uint8 or uint16: shape and box as (rows, columns)."""
    size = memory.like.itemsize
    record = ctypes.create_string_buffer(128 + 64)
    at = (ctypes.addressof(record) + 63) // 64 * 64
    (rows, cols), (box_rows, box_cols) = shape, box
    arrays = [(ctypes.c_uint64 * 2)(cols, rows), (ctypes.c_uint64 * 1)(pitch or cols * size)]
    arrays += [(ctypes.c_uint32 * 2)(box_cols, box_rows), (ctypes.c_uint32 * 2)(1, 1)]
    kind, address = {1: 0, 2: 1}[size], ctypes.c_void_p(memory.address)
    code = library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), kind, 2, address, *arrays, 0, SWIZZLES[swizzle], 0, 0
    )
    check(code, "cuTensorMapEncodeTiled")
    return ctypes.string_at(at, 128)


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
