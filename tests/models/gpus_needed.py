"""Whether this machine has the GPUs of a test across ranks."""

import torch
from conftest import GPUS, why_no_gpu


def why_not_two():
    """The reason that a skipped test shows."""
    if not GPUS:
        return f"two GPUs are needed: {why_no_gpu()}"
    found = torch.cuda.device_count()
    return None if found > 1 else f"two GPUs are needed, torch sees {found}"
