"""Instructions of csrc/cuda/ptx/ that come in sizes: ptxas takes all, used by a kernel or not."""

import re
import subprocess
from pathlib import Path

import pytest
from ptxsim import build

pytestmark = pytest.mark.skipif(not build.find_nvcc(), reason="no nvcc")

PTX = Path(build.CSRC) / "cuda" / "ptx"
SUMS = (4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)
DIMENSIONS = (2, 3, 4, 5)


def assembled(folder, arch, includes, body):
    """What ptxas says of a kernel made of these statements; it must take them."""
    source = folder / "layer.cu"
    lines = [f'#include "cuda/ptx/{name}.cuh"' for name in includes]
    lines += ['extern "C" __global__ void layer(const uint8_t *from, float *to, int n) {', *body]
    source.write_text("\n".join([*lines, "}\n"]))
    command = [build.find_nvcc(), f"-arch={arch}", "-std=c++17", "-Xptxas=-v", "-cubin"]
    command += [f"-I{build.CSRC}", source, "-o", folder / "layer.cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("sums", SUMS)
def test_wgmma_of_every_size(sums, tmp_path):
    body = [f"float d[{sums}]; uint32_t a[4] = {{1u + n, 2u + n, 3u + n, 4u + n}};"]
    body += [
        "const uint64_t b = wgmma_descriptor(n, 16, 256, WGMMA_NO_SWIZZLE);",
        "wgmma_fence(a);",
    ]
    body += [
        f"wgmma_{kind}(d, {a}, b, {add});"
        for kind, a, add in (
            ("f16", "a", "false"),
            ("bf16", "a", "n > 0"),
            ("e4m3", "a", "true"),
            ("f16", "b", "true"),
            ("bf16", "b", "true"),
        )
    ]
    body += ["wgmma_commit_group(); wgmma_wait_group<0>(d);"]
    body += [
        f"#pragma unroll\nfor (int i = 0; i < {sums}; i++) to[threadIdx.x * {sums} + i] = d[i];"
    ]
    said = assembled(tmp_path, "sm_90a", ["wgmma"], body)
    assert "0 bytes spill stores" in said and "serializ" not in said


@pytest.mark.parametrize("dimensions", DIMENSIONS)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_boxes_of_every_dimension(arch, dimensions, tmp_path):
    name, at = f"cp_async_bulk_tensor_{dimensions}d", ", ".join("n" * dimensions)
    body = ["const cuda_tensor_map *map = (const cuda_tensor_map *)from;"]
    body += ["uint32_t s = n; uint64_t policy = createpolicy_evict_first();"]
    body += [f"const int at[{dimensions}] = {{{at}}};", f"{name}(s, map, at, s);"]
    body += [f"{name}_hint(s, map, at, s, policy);", f"{name}_multicast(s, map, at, s, 3);"]
    body += [f"{name}_prefetch(map, at);", f"{name}_store(map, at, s);"]
    if arch == "sm_100a":
        body += [f"{name}_pair(s, map, at, s);", f"{name}_pair_multicast(s, map, at, s, 3);"]
    assembled(tmp_path, arch, ["async_copy", "tensor_map"], body)


def test_the_lists_here_are_those_of_the_headers():
    sizes = re.findall(r"^    V\((\d+), (\d+), ", (PTX / "wgmma.cuh").read_text(), flags=re.M)
    assert [(int(r), int(n)) for r, n in sizes] == [(r, 2 * r) for r in SUMS]
    boxes = re.findall(r"^NK_BOXES\((\d),", (PTX / "tensor_map.cuh").read_text(), flags=re.M)
    assert tuple(map(int, boxes)) == DIMENSIONS
