"""Small kernels of one array and a tile in shared memory, and what is found of them."""

import numpy as np

from . import gpu

SEEDS = range(8)
SHARED = ".shared .align 16 .b8 tile[4096];"
PLACE = """
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd5, %r0, 4;
    add.s64 %rd5, %rd0, %rd5;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, tile;
    add.s32 %r1, %r1, %r2;
"""  # rd5: a place of one's own in global memory, r1: in shared memory


def found(body, *, seeds=SEEDS, size=256, severities="EW", **launch):
    """The codes of what any seed finds."""
    module = gpu.Module(gpu.kernel(body, ["p"], SHARED))
    gpu.clear()
    for seed in seeds:
        gpu.seed(seed)
        memory = gpu.Memory(np.arange(size, dtype=np.uint32))
        try:
            module.launch("f", memory, **launch)
        except gpu.SimError as error:
            assert error.findings
    return gpu.findings(severities)
