"""Whether this machine has the GPUs of a test across ranks."""

import torch
from conftest import GPUS, why_no_gpu


def why_not(world):
    """The reason that a skipped test of so many ranks shows."""
    if not GPUS:
        return f"{world} GPUs are needed: {why_no_gpu()}"
    found = torch.cuda.device_count()
    return None if found >= world else f"{world} GPUs are needed, torch sees {found}"
