"""Builds nvfp4kern/_C.abi3.so: plain C with the kernels as data, for every CPython from 3.11 on."""

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "build_tools"))
import generate  # noqa: E402
import kernels  # noqa: E402

# Run as a file: importing the package needs the extension, and its folder on sys.path hides torch.
SOURCES_HASH = runpy.run_path(str(ROOT / "nvfp4kern" / "_checkout.py"))["hash_of"](ROOT)

FLAGS = "-std=c11 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math".split()
FLAGS += "-fvisibility=hidden -Wall -Wextra -Wconversion".split()
LINK = ["-lm", "-pthread", "-ldl"]
if kernels.is_set("NVFP4KERN_WERROR"):
    FLAGS.append("-Werror")
    kernels.FLAGS.append("-Werror=all-warnings")
if kernels.is_set("NVFP4KERN_SANITIZE"):
    FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g"]
    LINK += ["-fsanitize=address,undefined"]
else:  # Python's own flags ask for debug information
    FLAGS.append("-g0")
    LINK.append("-Wl,--strip-all")


def dlpack_header() -> str:
    """Torch's dlpack.h, else the one in apache-tvm-ffi; finds them without importing anything."""
    found = []
    for package, place in [
        ("torch", "include/ATen/dlpack.h"),
        ("tvm_ffi", "include/dlpack/dlpack.h"),
        ("tvm_ffi", "3rdparty/dlpack/include/dlpack/dlpack.h"),
    ]:
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or [] if spec else []:
            header = Path(folder, place)
            if not header.is_file():
                continue
            numbers = dict(
                re.findall(r"define DLPACK_(MAJOR|MINOR)_VERSION (\d+)", header.read_text())
            )
            version = int(numbers["MAJOR"]), int(numbers["MINOR"])
            if version[0] == 1 and version >= (1, 3):
                return str(header)
            found.append(f"{header} is {version[0]}.{version[1]}")
    raise SystemExit(
        "nvfp4kern needs dlpack.h of DLPack 1.3 or a later 1.x, as in torch >= 2.10 or "
        f"apache-tvm-ffi >= 0.1.2; found: {'; '.join(found) or 'none'}"
    )


def files(pattern: str) -> list[str]:
    """Of csrc, without the folders of what is not wanted."""
    wanted = kernels.wanted()
    left_out = kernels.ARCHS.keys() - wanted | (set() if wanted else {"cuda", "gemm"})
    found = (path.relative_to(ROOT) for path in (ROOT / "csrc").rglob(pattern))
    return sorted(str(path) for path in found if path.parts[1] not in left_out)


class BuildWithGenerated(build_ext):
    def build_extension(self, ext):
        self.force = True  # what is up to date depends on options, too; kernels know for themselves
        operators = Path(self.build_temp, "operators")
        ext.sources.append(generate.build(operators))
        ext.include_dirs.append(str(operators))
        if kernels.wanted():
            nvcc = kernels.find_nvcc()
            if nvcc is None:
                raise SystemExit(
                    "no nvcc: set NVCC or CUDA_HOME, or NVFP4KERN_CUDA=0 for the CPU only"
                )
            folder = Path(self.build_temp, "kernels")
            ext.sources.append(kernels.build(nvcc, ROOT / "csrc", folder))
            ext.include_dirs += [str(folder), kernels.include_folder(nvcc)]
        # Where this machine's Python has its libraries is nothing to a wheel.
        linker = [flag for flag in self.compiler.linker_so if not flag.startswith("-Wl,-rpath")]
        self.compiler.set_executable("linker_so", linker)
        super().build_extension(ext)


extension = Extension(
    "nvfp4kern._C",
    sources=files("*.c"),
    include_dirs=["csrc"],
    depends=files("*.h") + files("*.cu") + files("*.cuh"),
    define_macros=[
        ("Py_LIMITED_API", "0x030B0000"),
        ("NK_DLPACK_H", f'"{dlpack_header()}"'),
        ("NK_SOURCES", f'"{SOURCES_HASH}"'),
        ("NK_LEFT_OUT", f'"{kernels.left_out()}"'),
        *(
            (f"NK_ROW_{arch}", f"&nk_backend_{arch}" if arch in kernels.wanted() else "NULL")
            for arch in kernels.ARCHS
        ),
        *((f"NK_CODE_{arch}", f'"{kernels.code_of(arch)}"') for arch in kernels.ARCHS),
        ("_GNU_SOURCE", None),
    ],
    extra_compile_args=FLAGS,
    extra_link_args=LINK,
    py_limited_api=True,
)

setup(
    version=re.search(r'define NK_VERSION "(.+)"', (ROOT / "csrc/nk_version.h").read_text()).group(
        1
    ),
    cmdclass={"build_ext": BuildWithGenerated},
    ext_modules=[extension],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
