"""Fences in the machine code of the package's kernels: `python tests/disassembly.py`.

Disassembles the images of the installed extension, or of another one, and prints each kernel that
has a fence of the whole GPU: how many, and how many of them are in loops. An instruction is in a
loop where control can come back to it, by any branch or jump table.

cuobjdump and nvdisasm are those of $CUDA_HOME, on PATH, or of NVIDIA's wheels.
"""

import argparse
import os
import re
import shutil
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import machine_code

GPU_FENCE = re.compile(r"MEMBAR\.(\w+\.)*(GPU|SYS|VC)\b")
"""A fence or a release of the cluster's scope, or a wider one, in SASS."""


@dataclass
class Instruction:
    text: str
    follows: list  # what may come next, by number


def find_tool(name):
    spec = find_spec("nvidia")
    wheels = spec.submodule_search_locations or [] if spec else []
    home = os.environ.get("CUDA_HOME")
    places = [f"{home}/bin"] if home else []
    places += [os.environ.get("PATH", ""), *(f"{folder}/cu13/bin" for folder in wheels)]
    return shutil.which(name, path=os.pathsep.join(places))


def fatbins_in(data):
    """Those that lie in a file, such as the extension."""
    magic = struct.pack("<I", machine_code.FATBIN)
    at = data.find(magic)
    while at >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        yield data[at : at + header + size]
        at = data.find(magic, at + header + size)


def cubins_of(fatbin, archs):
    """The ELFs of these machines, as cuobjdump takes them out, which it decompresses."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "image.fatbin").write_bytes(fatbin)
        command = [find_tool("cuobjdump"), "-xelf", "all", "image.fatbin"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        elves = [path.read_bytes() for path in sorted(Path(folder).glob("*.cubin"))]
    return [elf for elf in elves if machine_code.arch_of(elf) in archs]


def kernels_of_cubin(elf):
    """name -> [Instruction]"""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(elf)
        file.flush()
        command = [find_tool("nvdisasm"), "-c", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sections = re.split(r"^\s+\.section\s+\.text\.(\w+).*\n", text, flags=re.M)[1:]
    return {
        name: instructions_of(lines)
        for name, lines in zip(sections[::2], sections[1::2], strict=True)
    }


def instructions_of(text):
    """Of one section: a kernel, and the functions behind it that it calls, which have no fences."""
    lines, labels = [], {}
    for line in text.splitlines():
        if label := re.match(r"([.$\w]+):", line):
            labels[label[1]] = len(lines)
        elif instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*);", line):
            lines.append(instruction[1])
    found = []
    for i, line in enumerate(lines):
        guard, name, operands = re.match(r"(@!?U?P\w+\s+)?([\w.]+)\s*(.*)", line).groups()
        kind = name.split(".")[0]
        targets = [labels[word] for word in re.findall(r"[.$\w]+", operands) if word in labels]
        if kind == "RET":
            targets = []  # a call goes on behind it
        elif kind == "BRX" and not targets:
            raise ValueError(f"a jump whose targets nvdisasm does not say: {line}")
        # A BRA's condition may be an operand, too: BRA.U !UP0, target.
        ends = not guard and (
            kind in ("EXIT", "RET", "BRX") or kind == "BRA" and "," not in operands
        )
        found.append(
            Instruction(line, targets if ends or i + 1 == len(lines) else [*targets, i + 1])
        )
    functions = [at for label, at in labels.items() if label.startswith("$")]
    if any(GPU_FENCE.search(line) for line in lines[min(functions, default=len(lines)) :]):
        raise ValueError("a fence in a function: whether its calls are in loops is not followed")
    return found


def in_loops(instructions):
    """The numbers of those that control can come back to: strongly connected components (Tarjan's,
    without recursion)."""
    order, low, stack, on_stack, found = {}, {}, [], set(), set()
    for root in range(len(instructions)):
        work = [] if root in order else [(root, iter(instructions[root].follows))]
        if work:
            order[root] = low[root] = len(order)
            stack.append(root)
            on_stack.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(instructions[other].follows)))
                    break
                if other in on_stack:
                    low[node] = min(low[node], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1 or node in instructions[node].follows:
                        found.update(component)
    return found


def gpu_fences(instructions):
    """(all, those in loops)"""
    fences = {i for i, one in enumerate(instructions) if GPU_FENCE.search(one.text)}
    return len(fences), len(fences & in_loops(instructions)) if fences else 0


def kernels_of(file, archs=("sm_90a", "sm_100f")):
    """name -> [Instruction], of all fatbins in a file."""

    def of_fatbin(fatbin):
        cubins = map(kernels_of_cubin, cubins_of(fatbin, archs))
        return [kernel for cubin in cubins for kernel in cubin.items()]

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(of_fatbin, fatbins_in(Path(file).read_bytes()))
        return dict(kernel for kernels in found for kernel in kernels)


def fences_of(file):
    """kernel -> (fences of the GPU, those in loops)"""
    return {name: gpu_fences(instructions) for name, instructions in kernels_of(file).items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extension", nargs="?", help="default: the package's")
    found = fences_of(parser.parse_args().extension or find_spec("nvfp4kern._C").origin)
    for name, (fences, looping) in sorted(found.items()):
        if fences:
            print(f"{name}: {fences} fences of the GPU, {looping} in loops")
    loops = sum(looping for _, looping in found.values())
    print(f"{len(found)} kernels, {loops} such fences in loops")


if __name__ == "__main__":
    main()
