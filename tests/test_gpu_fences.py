"""No kernel of the sm90 and sm100 rows waits for the whole GPU in a loop.

A release or a fence to the cluster is one of the GPU in machine code: 570 to 1240 cycles on an
H200, where a step's MMAs take 256 to 512.
"""

import subprocess

import disassembly
import pytest
from ptxsim import build

import nvfp4kern

MISSING = [tool for tool in ("cuobjdump", "nvdisasm") if not disassembly.find_tool(tool)]
pytestmark = pytest.mark.skipif(
    bool(MISSING),
    reason=f"no {' and no '.join(MISSING)}: wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm",
)

REASONS = {}
"""kernel -> (how many of its fences may be in loops, why)"""

KERNEL = """
extern "C" __global__ void {name}(float *x, int n, int what)
{{
    {before}
#pragma unroll 1
    for (int i = 0; i < n; i++) {{
        x[i] += 1;
        {inside}
    }}
    {behind}
    x[n] = 2;
}}
"""
CTA, CLUSTER, GPU, SYSTEM = (
    f'asm volatile("fence.acq_rel.{scope};" ::: "memory");'
    for scope in ("cta", "cluster", "gpu", "sys")
)
JUMP_TABLE = (
    "switch (what + i) {"
    + "".join(
        f"case {j}: x[{j}] = x[i] {'*+/-'[j % 4]} x[n]; {GPU if j == 2 else ''} break;"
        for j in range(8)
    )
    + "}"
)
CASES = {  # before the loop, inside, behind; fences of the GPU, those in the loop
    "none": ("", "", "", 0, 0),
    "before": (GPU, "", "", 1, 0),
    "behind": ("", "", CLUSTER, 1, 0),
    "inside": ("", GPU, "", 1, 1),
    "of_the_cluster": ("", CLUSTER, "", 1, 1),
    "everywhere": (GPU, SYSTEM, GPU, 3, 1),
    "of_the_cta": (CTA, CTA, CTA, 0, 0),
    "sometimes": ("", f"if (x[i] > what) {{ {GPU} x[0] = i; }}", "", 1, 1),
    "by_jump_table": (GPU, JUMP_TABLE, CLUSTER, 3, 1),
}


@pytest.mark.skipif(not build.find_nvcc(), reason="no nvcc")
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100f"])
def test_fences_are_found_in_loops_and_beside_them(arch, tmp_path):
    source, image = tmp_path / "fenced.cu", tmp_path / "fenced.fatbin"
    texts = [
        KERNEL.format(name=name, before=before, inside=inside, behind=behind)
        for name, (before, inside, behind, *_) in CASES.items()
    ]
    source.write_text("\n".join(texts))
    command = [build.find_nvcc(), f"-arch={arch}", "-fatbin", "-o", image, source]
    subprocess.run(command, check=True, capture_output=True)
    expected = {name: (fences, loops) for name, (*_, fences, loops) in CASES.items()}
    assert disassembly.fences_of(image) == expected
    assert "BRX" in "".join(i.text for i in disassembly.kernels_of(image)["by_jump_table"])


@pytest.mark.slow
def test_no_kernel_fences_the_gpu_in_a_loop():
    found = disassembly.fences_of(nvfp4kern._C.__file__)
    built = {row["name"] for row in nvfp4kern.backends() if not left_out(row)}
    assert {name.partition("_")[0] for name in found} == built & {"sm90", "sm100"}
    looping = {name: loops for name, (_, loops) in found.items() if loops}
    assert looping == {name: loops for name, (loops, _) in REASONS.items()}


def left_out(row):
    return (row["why_not"] or "").startswith("left out")
