"""nvcc: finds it, makes a fatbin of every .cu file of csrc/<arch>/, embeds all in one C file, which
also has an object for each kernel.

What ptxas says of each kernel (registers, shared memory, spills) is kept beside the fatbin; a
spill is a warning.
"""

import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

ARCHS = {  # folder of csrc -> what nvcc makes of its kernels
    "sm80": [
        "-gencode=arch=compute_80,code=[sm_80,compute_80]",
        # PTX for 9.0 knows griddepcontrol. PTX for 10.0 or 12.0 has no more, and spills more.
        "-gencode=arch=compute_90,code=[sm_90,sm_100,sm_120]",
    ],
    "sm90": ["-gencode=arch=compute_90a,code=sm_90a"],
    "sm100": ["-gencode=arch=compute_100f,code=sm_100f"],  # for all of 10.x
    "sm120": ["-gencode=arch=compute_120f,code=sm_120f"],  # for all of 12.x
}
FLAGS = "-O3 -std=c++17 -fmad=false -Xptxas=-v -Wno-deprecated-gpu-targets".split()
COMPRESSION = "--compress-mode=size"
"""A wheel has a third less of it than of machine code that only the wheel compresses."""

WHEELS = [f"nvidia-{name}==13.0.*" for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime")]
WHEELS.append("nvidia-cuda-cccl==13.0.*")  # <nv/target>, which cuda_fp16.h wants
"""An nvcc without a toolkit."""


def is_set(variable: str, default: str = "0") -> bool:
    """Whether a variable says yes, in the words that the library takes (csrc/nk_settings.c)."""
    value = os.environ.get(variable) or default
    if value.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise SystemExit(f"{variable}: '{value}', expected 1, true, yes, on, 0, false, no or off")
    return value.lower() in ("1", "true", "yes", "on")


def wanted() -> list[str]:
    """The architectures that this build has kernels for: none with NVFP4KERN_CUDA=0, those that
    NVFP4KERN_ARCHS names and sm80, which stands in where another has no kernel, else all."""
    if not is_set("NVFP4KERN_CUDA", default="1"):
        return []
    names = [name.strip() for name in os.environ.get("NVFP4KERN_ARCHS", "").split(",")]
    for name in filter(None, names):
        if name not in ARCHS:
            raise SystemExit(f"NVFP4KERN_ARCHS: '{name}' is none of {', '.join(ARCHS)}")
    return [arch for arch in ARCHS if not any(names) or arch in names or arch == "sm80"]


def code_of(arch: str) -> str:
    """What a build has of its kernels, for people."""
    flags = " ".join(ARCHS[arch])
    machines = ", ".join(".".join(digits) for digits in re.findall(r"\bsm_(\d+)(\d)", flags))
    ptx = re.search(r",compute_(\d+)(\d)\]", flags)
    return f"machine code for {machines}" + (f"; PTX for {ptx[1]}.{ptx[2]}" if ptx else "")


def left_out() -> str:
    """Why backends() shows rows that this build lacks."""
    reason = "NVFP4KERN_CUDA" if not wanted() else "NVFP4KERN_ARCHS"
    return f"left out of this build by {reason}={os.environ.get(reason, '')}"


def find_nvcc() -> Path | None:
    """$NVCC, else of $CUDA_HOME, else on PATH, else from the compiler wheels."""
    if os.environ.get("NVCC"):
        found = shutil.which(os.environ["NVCC"])
        if not found:
            raise SystemExit(f"NVCC: {os.environ['NVCC']} is no executable file")
        return Path(found).resolve()
    if os.environ.get("CUDA_HOME"):
        found = Path(os.environ["CUDA_HOME"], "bin/nvcc")
        if not found.is_file():
            raise SystemExit(f"CUDA_HOME: there is no {found}")
        return found.resolve()
    if shutil.which("nvcc"):
        return Path(shutil.which("nvcc")).resolve()
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        if Path(folder, "cu13/bin/nvcc").is_file():
            return Path(folder, "cu13/bin/nvcc")
    return None


def include_folder(nvcc: Path) -> str:
    """Where cuda.h is: where nvcc itself looks (it may be a script that calls another nvcc)."""
    command = [nvcc, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    folders = re.findall(r'"-I([^"]+)"', said) + re.findall(r"TOP=(\S+)", said)
    for folder in [*folders, *(f"{top}/include" for top in folders)]:
        if Path(folder, "cuda.h").is_file():
            return folder
    raise SystemExit(f"{nvcc}: it knows no folder with cuda.h")


def _with_headers(csrc: Path, source: Path) -> set[Path]:
    """The file and all of csrc that it includes, which names them from its folder or from csrc."""
    found, fresh = set(), [source]
    while fresh:
        path = fresh.pop()
        found.add(path)
        names = re.findall(r'^\s*#\s*include\s+"(.+)"', path.read_text(), flags=re.M)
        places = (folder / name for name in names for folder in (path.parent, csrc))
        fresh += [place for place in places if place.is_file() and place not in found]
    return found


def _compile(nvcc: Path, csrc: Path, source: Path, fatbin: Path) -> str:
    """Makes the fatbin unless this compiler made it from these sources; returns ptxas's report."""
    arch = source.relative_to(csrc).parts[0]
    flags = [*FLAGS, COMPRESSION, *ARCHS[arch], f"-I{csrc}"]
    command = [nvcc, *flags, "-fatbin", "-o", fatbin, source]
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    made_by = f"# {' '.join(map(str, command))} # {' '.join(version.split())}\n"
    report = fatbin.with_suffix(".txt")
    newest = max(path.stat().st_mtime for path in _with_headers(csrc, source))
    if report.is_file() and fatbin.is_file() and fatbin.stat().st_mtime > newest:
        said = report.read_text()
        if said.startswith(made_by):
            return said.removeprefix(made_by)
    report.unlink(missing_ok=True)  # while there is none, the fatbin counts as unfinished
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        fatbin.unlink(missing_ok=True)
        raise SystemExit(f"nvcc failed on {source}:\n{done.stdout}{done.stderr}")
    said = f"{source.name}: {time.monotonic() - start:.0f} s\n{done.stdout}{done.stderr}"
    report.write_text(made_by + said)
    return said


def _entries(report: str) -> list[str]:
    """The kernels that ptxas reports, for whichever GPUs."""
    return sorted(set(re.findall(r"Compiling entry function '(\w+)'", report)))


def _summary(reports: dict[str, str]) -> str:
    """One line for each image; a warning for each kernel that spills."""
    lines, total = [], 0
    for image, text in reports.items():
        kernels = _entries(text)
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", text)]
        seconds = re.match(r".*: (\d+) s", text).group(1)
        total += len(kernels)
        lines.append(
            f"{image}: {len(kernels)} kernels, at most {max(registers)} registers, {seconds} s"
        )
        for kernel, arch, stores in re.findall(
            r"entry function '(\w+)' for '(\w+)'.*?(\d+) bytes spill stores", text, flags=re.S
        ):
            if stores != "0":
                lines.append(f"warning: {kernel} for {arch} spills {stores} bytes")
    return "\n".join([*lines, f"{total} kernels in {len(reports)} images"])


_HEADER = """/* Generated: what the host knows of each kernel, by the kernel's own name. */
#ifndef NK_CUDA_KERNELS_H
#define NK_CUDA_KERNELS_H

#include "cuda/cuda_launch.h"

#pragma GCC visibility push(hidden)
{kernels}
#pragma GCC visibility pop

#endif
"""

_IMAGE = """
__asm__(".section .rodata\\n.balign 64\\nnk_image_{name}:\\n.incbin \\"{path}\\"\\n.previous");
extern const unsigned char nk_image_{name}[] __attribute__((visibility("hidden")));
static cuda_image image_{name} = {{.name = "{name}", .row = "{row}", .begin = nk_image_{name}}};
"""
_KERNEL = 'cuda_kernel {name} = {{.name = "{name}", .image = &image_{image}}};\n'


def _host_side(images: list[tuple[str, Path, list[str]]]) -> tuple[str, str]:
    """A header that declares an object for each kernel, and the C file with these and the images.

    `images`: the row, the fatbin and the kernels of each.
    """
    text, names = '#include "cuda_kernels.h"\n', []
    for row, fatbin, kernels in images:
        image = fatbin.stem
        text += _IMAGE.format(name=image, path=fatbin, row=row)
        text += "".join(_KERNEL.format(name=name, image=image) for name in kernels)
        names += kernels
    listed = ", ".join(f"&{name}" for name in names)
    text += f"\ncuda_kernel *const cuda_kernels[] = {{{listed}, NULL}};\n"
    return _HEADER.format(kernels="\n".join(f"extern cuda_kernel {name};" for name in names)), text


def build(nvcc: Path, csrc: Path, folder: Path) -> str:
    """Compiles all kernels and writes cuda_kernels.h into `folder`; returns the C file for them."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(source for arch in wanted() for source in (csrc / arch).rglob("*.cu"))
    fatbins = [(folder / source.stem).with_suffix(".fatbin").absolute() for source in sources]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        reports = list(pool.map(partial(_compile, nvcc, csrc), sources, fatbins))
    summary = _summary({fatbin.stem: text for fatbin, text in zip(fatbins, reports, strict=True)})
    (folder / "summary.txt").write_text(summary + "\n")
    print(summary)
    rows = [source.relative_to(csrc).parts[0] for source in sources]
    header, embedding = _host_side(list(zip(rows, fatbins, map(_entries, reports), strict=True)))
    (folder / "cuda_kernels.h").write_text(header)
    (folder / "cuda_kernels.c").write_text(embedding)
    return str(folder / "cuda_kernels.c")
