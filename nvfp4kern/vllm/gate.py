"""Where vLLM gets our layers: which of its versions, which devices, and who asked."""

from ..engines import gate

TESTED = (0, 26), (0, 32)
"""The oldest and the newest version of vLLM that the tests ran with."""
ON_CPUS = (0, 30)
"""The oldest there: builds for CPUs before it lack the router's operator."""
VARIABLE = "NVFP4KERN_VLLM"


def switch() -> str:
    return gate.switch(VARIABLE)


def why_not() -> tuple[str | None, bool]:
    """Why vLLM is left as it is, or None; and whether that should alarm."""
    import vllm
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    oldest = ON_CPUS if on_cpu else TESTED[0]
    reason = gate.untested(vllm.__version__, oldest, TESTED[1])
    if reason is not None:
        return reason, True
    if on_cpu:
        return None, False
    if not current_platform.is_cuda():
        return f"{current_platform.device_name} is neither a CPU nor an NVIDIA GPU", False
    capability = current_platform.get_device_capability()
    found = None if capability is None else (capability.major, capability.minor)
    return gate.unserved(found, "vLLM", VARIABLE), False
