"""Every operator in every kernel that a plan can pick, at small odd shapes: for sanitize_gpu.sh.

    python tests/sanitize_cases.py run | kernels | bug

`run` calls them, `kernels` also prints the kernels that ran and fails where one of the extension's
did not, `bug` reads past the end of an allocation, which memcheck must see.
"""

import ctypes
import re
import sys
from pathlib import Path

import torch
from cuda_calls import OPERATORS, leaves, mapped
from generators import rng_of

import nvfp4kern

FATBIN = (0xBA55ED50).to_bytes(4, "little")  # how one begins

# M, N, K: one step of K and many, a tile of every size, more than one tile of the largest.
SHAPES = [
    (1, 33, 48), (3, 70, 2064), (12, 70, 528), (30, 130, 272), (60, 200, 144), (40, 516, 1040),
    (130, 270, 80), (260, 1100, 144), (300, 2500, 272),
]  # fmt: skip


def cases():
    """(name, call) for whatever makes a plan that none before it made."""
    seen = set()
    for shape in SHAPES:
        for name, make in OPERATORS.items():
            function, args, options = make(rng_of(0), *shape)
            args, options = mapped(lambda t: t.cuda(), (args, options))
            plan = nvfp4kern.explain(function.__name__, *args, **options)
            key = name, plan["kernel"], plan["workspace_bytes"] > 0
            if key not in seen:
                seen.add(key)
                yield name, lambda f=function, a=args, o=options: f(*a, **o)


def run():
    """Reading a result back shows initcheck what was not written; rows of nobody never are."""
    for name, call in cases():
        results = leaves((call(),))
        torch.cuda.synchronize()
        if not name.startswith("contiguous"):
            mapped(lambda t: t.view(torch.uint8).cpu(), results)


def embedded():
    """The names of all kernels in the extension, from the driver: it holds fatbins as they are."""
    (extension,) = Path(nvfp4kern.__file__).parent.glob("_C*.so")
    driver, code, names = ctypes.CDLL("libcuda.so.1"), extension.read_bytes(), set()
    for fatbin in re.finditer(re.escape(FATBIN), code):
        library, count, name = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_char_p()
        image = code[fatbin.start() :]
        nothing = None, None, 0
        assert driver.cuLibraryLoadData(ctypes.byref(library), image, *nothing, *nothing) == 0
        driver.cuLibraryGetKernelCount(ctypes.byref(count), library)
        found = (ctypes.c_void_p * count.value)()
        driver.cuLibraryEnumerateKernels(found, count, library)
        for kernel in found:
            driver.cuKernelGetName(ctypes.byref(name), ctypes.c_void_p(kernel))
            names.add(name.value.decode())
    return names


def kernels():
    """Prints what ran; 1 where not everything did, the exit status."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
    ran = {event.key for event in profile.key_averages() if re.match(r"sm\d+_", event.key)}
    left = sorted(embedded() - ran)
    print(f"{len(ran)} kernels ran:", *sorted(ran))
    if left:
        print(f"{len(left)} did not:", *left)
    return 1 if left or not ran else 0


def bug():
    """A matrix whose memory is cut short after its shape is known."""
    function, args, options = OPERATORS["gemv_of_halves"](rng_of(0), 1, 300, 2048)
    args, options = mapped(lambda t: t.cuda(), (args, options))
    args[0].untyped_storage().resize_(1024)
    function(*args, **options)
    torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit({"run": run, "kernels": kernels, "bug": bug}[sys.argv[1]]())
