"""Where vLLM gets our layers: which of its versions, which devices, and who asked."""

import os
import re

TESTED = (0, 26), (0, 32)
"""The oldest and the newest version of vLLM that the tests ran with."""
ON_CPUS = (0, 30)
"""The oldest there: builds for CPUs before it lack the router's operator."""
NATIVE = 10
"""Compute capabilities from this on: vLLM has native NVFP4 kernels, and no such GPU ran ours."""


def switch() -> str:
    """NVFP4KERN_VLLM: "0" no, "1" also on GPUs that vLLM has native kernels for, "" neither."""
    value = os.environ.get("NVFP4KERN_VLLM", "").lower()
    if value in ("0", "false", "no", "off"):
        return "0"
    return "1" if value in ("1", "true", "yes", "on") else ""


def why_not() -> tuple[str | None, bool]:
    """Why vLLM is left as it is, or None; and whether that should alarm."""
    import vllm
    from vllm.platforms import current_platform

    found = re.match(r"(\d+)\.(\d+)", vllm.__version__)
    version = tuple(map(int, found.groups())) if found else ()
    on_cpu = current_platform.is_cpu()
    tested = (ON_CPUS, TESTED[1]) if on_cpu else TESTED
    if not tested[0] <= version <= tested[1]:
        first, last = (".".join(map(str, each)) for each in tested)
        return f"its version is {vllm.__version__}, tested are {first} to {last}", True
    if on_cpu:
        return None, False
    if not current_platform.is_cuda():
        return f"{current_platform.device_name} is neither a CPU nor an NVIDIA GPU", False
    capability = current_platform.get_device_capability()
    if capability is None or capability.major < 8:
        return f"compute capability {capability}, expected 8.0 or newer", False
    if capability.major >= NATIVE and switch() != "1":
        has = "vLLM has native kernels from 10.0 on"
        return f"compute capability {capability}: {has}; NVFP4KERN_VLLM=1 takes ours", False
    return None, False
