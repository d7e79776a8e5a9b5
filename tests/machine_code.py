"""Compares the machine code of two builds: `python tests/machine_code.py OLD NEW`.

OLD and NEW are trees, which are compiled as they compile themselves (build_tools/kernels.py), or
folders of fatbins that nvcc did not compress. A kernel is identical where its instructions,
relocations, constants, launch attributes, registers, local and shared memory are. Each kernel that
is not gets a line with both; the exit status is 1 where one of them is not allowed.

    --arch sm_90a                       only these machine codes
    --rename sm80_gemm_=sm80_multiply_  a pattern in names of OLD, and what NEW has in its place
    --allow 'sm80_(gemm|dual_gemm)_.*'  kernels that may differ, come or go
"""

import argparse
import hashlib
import importlib.util
import os
import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[1] / "build" / "machine_code"
FATBIN, ELF_KIND, ELF = 0xBA55ED50, 2, b"\x7fELF"
REGISTERS, FRAME, PARAMETERS = (
    0x2F,
    0x11,
    0x0A,
)  # attributes; the last begins with a symbol's number


@dataclass(frozen=True)
class Kernel:
    """What a GPU is given of a kernel."""

    code: bytes
    relocations: tuple
    constants: tuple
    attributes: tuple
    registers: int
    frame: int
    shared: int
    spills: int = 0  # as ptxas reported; the frame says the same of the machine code

    def __str__(self):
        return (
            f"{self.registers} registers, {self.spills} bytes of spills, {self.frame} of stack, "
            f"{self.shared} of shared memory, {len(self.code)} of code"
        )

    def parts_that_differ(self, other):
        return [name for name in vars(self) if getattr(self, name) != getattr(other, name)]


# --- Machine code as nvcc writes it ---


def elves_of_fatbin(data):
    """Every ELF of a fatbin; PTX text, which lies there too, is left out."""
    magic, _, at = struct.unpack_from("<IHH", data)
    if magic != FATBIN:
        raise ValueError("no fatbin")
    while at < len(data):
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        content = data[at + header : at + header + size]
        if kind == ELF_KIND:
            if not content.startswith(ELF):
                raise ValueError("its machine code is compressed, as a build's: compare trees")
            yield content
        at += header + size


def sections_of(elf):
    """[(name, content, link, info, size)] in their order; what takes no room in the file is b""."""
    table, (count, names) = struct.unpack_from("<Q", elf, 40)[0], struct.unpack_from("<HH", elf, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * i) for i in range(count)]
    texts = elf[headers[names][4] :]
    return [
        (text_at(texts, name), b"" if kind == 8 else elf[at : at + size], link, info, size)
        for name, kind, _, _, at, size, link, info, _, _ in headers
    ]


def text_at(table, at):
    return table[at : table.index(b"\0", at)].decode()


def attributes_of(info):
    """[(attribute, content)] of a .nv.info section."""
    found, at = [], 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        size = value if form == 4 else 0  # others have two bytes where this has a size
        found.append(
            (attribute, info[at + 4 : at + 4 + size] if form == 4 else info[at + 2 : at + 4])
        )
        at += 4 + size
    return found


def relocations_of(section, symbols):
    name, content = section[:2]
    form = "<QQq" if name.startswith(".rela") else "<QQ"
    for at, info, *addend in struct.iter_unpack(form, content):
        yield at, info & 0xFFFFFFFF, symbols[info >> 32], *addend


def kernels_of(elf):
    """name -> Kernel of an ELF that nvcc made."""
    sections = sections_of(elf)
    named = {section[0]: section for section in sections}
    strings = named[".strtab"][1]
    symbols = [
        text_at(strings, struct.unpack_from("<I", named[".symtab"][1], at)[0])
        for at in range(0, len(named[".symtab"][1]), 24)
    ]
    of_symbol = {}
    for attribute, content in attributes_of(named[".nv.info"][1]):
        if attribute in (REGISTERS, FRAME):
            symbol, value = struct.unpack("<II", content)
            of_symbol[symbols[symbol], attribute] = value
    kernels = {}
    for text, code, _, _, _ in sections:
        name = text.removeprefix(".text.")
        info = named.get(f".nv.info.{name}")
        if name == text or not info:
            continue
        related = [s for s in sections if s[0] in (f".rel{text}", f".rela{text}")]
        constants = [s for s in sections if re.fullmatch(rf"\.nv\.constant\d+\.{name}", s[0])]
        kernels[name] = Kernel(
            code=code,
            relocations=tuple(sorted(r for s in related for r in relocations_of(s, symbols))),
            constants=tuple(sorted((s[0].removesuffix(name), s[1]) for s in constants)),
            attributes=tuple(
                sorted(
                    (attribute, content[4:] if attribute == PARAMETERS else content)
                    for attribute, content in attributes_of(info[1])
                )
            ),
            registers=of_symbol[name, REGISTERS],
            frame=of_symbol[name, FRAME],
            shared=named.get(f".nv.shared.{name}", (0,))[-1],
        )
    return kernels


# --- Builds ---


def fatbins_of(place):
    """Those of a folder that a build left, or of a tree, compiled once for every state of it."""
    place = Path(place).resolve()
    found = sorted(place.glob("*.fatbin"))
    if found:
        return found
    tool, csrc = place / "build_tools" / "kernels.py", place / "csrc"
    if not tool.is_file():
        raise SystemExit(f"{place}: neither a tree nor a folder of fatbins")
    digest = hashlib.sha256(tool.read_bytes() + os.environ.get("NVFP4KERN_ARCHS", "").encode())
    for path in sorted(p for p in csrc.rglob("*") if p.suffix in {".cu", ".cuh", ".h"}):
        digest.update(str(path.relative_to(csrc)).encode() + path.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    done = folder / "done"
    if not done.is_file():
        spec = importlib.util.spec_from_file_location("kernels_of_tree", tool)
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        kernels.COMPRESSION = "--compress-mode=none"
        kernels.build(kernels.find_nvcc(), csrc, folder)
        done.touch()
    return sorted(folder.glob("*.fatbin"))


def spills_of(report):
    """(kernel, machine code) -> bytes, of what ptxas reported beside a fatbin."""
    found = re.findall(
        r"entry function '(\w+)' for '(\w+)'.*?(\d+) bytes spill stores", report, flags=re.S
    )
    return {(kernel, arch): int(stores) for kernel, arch, stores in found}


def arch_of(elf):
    """As nvcc calls it: sm_80, sm_90a."""
    return re.search(rb"-arch (sm_\w+)", elf).group(1).decode()


def kernels_of_build(place, archs=()):
    """(kernel, machine code) -> Kernel."""
    kernels = {}
    for fatbin in fatbins_of(place):
        report = fatbin.with_suffix(".txt")
        spills = spills_of(report.read_text()) if report.is_file() else {}
        for elf in elves_of_fatbin(fatbin.read_bytes()):
            arch = arch_of(elf)
            if archs and arch not in archs:
                continue
            for name, kernel in kernels_of(elf).items():
                spilled = spills.get((name, arch), 0)
                kernels[name, arch] = Kernel(**{**vars(kernel), "spills": spilled})
    return kernels


# --- The comparison ---


def compare(old, new, allowed=()):
    """(lines, how many are identical, how many differ that may not)"""
    lines, counts = [], Counter()
    for name, arch in sorted({*old, *new}):
        a, b = old.get((name, arch)), new.get((name, arch))
        if a and b and not a.parts_that_differ(b):
            counts["identical"] += 1
            continue
        may = any(re.fullmatch(pattern, name) for pattern in allowed)
        counts["allowed" if may else "refused"] += 1
        lines.append(f"{'allowed' if may else 'DIFFERS'}: {name} ({arch})")
        if a and b:
            lines[-1] += f": {', '.join(a.parts_that_differ(b))}"
        lines += [f"    old: {a or 'none'}", f"    new: {b or 'none'}"]
    return lines, counts


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--arch", action="append", default=[])
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--allow", action="append", default=[], metavar="PATTERN")
    arguments = parser.parse_args()
    old = kernels_of_build(arguments.old, arguments.arch)
    for rename in arguments.rename:
        pattern, replacement = rename.split("=", 1)
        old = {(re.sub(pattern, replacement, name), arch): k for (name, arch), k in old.items()}
    new = kernels_of_build(arguments.new, arguments.arch)
    lines, counts = compare(old, new, arguments.allow)
    print(*lines, sep="\n", end="\n" if lines else "")
    print(*(f"{counts[kind]} {kind}" for kind in ("identical", "allowed", "refused")), sep=", ")
    return counts["refused"] > 0 or not counts["identical"]


if __name__ == "__main__":
    raise SystemExit(main())
