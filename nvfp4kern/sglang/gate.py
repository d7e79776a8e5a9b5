"""Where SGLang gets our layers: which of its versions, which devices, and who asked."""

from ..engines import gate

TESTED = (0, 5, 23), (0, 5, 23)
"""The oldest and the newest version of SGLang that the tests ran with."""
VARIABLE = "NVFP4KERN_SGLANG"


def switch() -> str:
    return gate.switch(VARIABLE)


def why_not() -> tuple[str | None, bool]:
    """Why SGLang is left as it is, or None; and whether that should alarm."""
    from sglang import version
    from sglang.srt.utils import common

    reason = gate.untested(version.__version__, *TESTED)
    if reason is not None:
        return reason, True
    if common.is_cpu():
        return None, False
    if not common.is_cuda():
        return "it runs on neither a CPU (SGLANG_USE_CPU_ENGINE=1) nor an NVIDIA GPU", False
    major, minor = common.get_device_capability()
    found = None if major is None else (major, minor)
    return gate.unserved(found, "SGLang", VARIABLE), False
