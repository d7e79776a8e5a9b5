"""What nvfp4kern.vllm.register does to vLLM, case by case: python registering.py RESULT.json"""

import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import vllm
from said import Said, changed
from vllm import envs, platforms
from vllm.model_executor.layers import quantization

import nvfp4kern.vllm

METHODS = ("modelopt_fp4", "modelopt_mixed", "compressed-tensors")
KEY = "NVFP4KERN_VLLM"


def state(said):
    configs = [quantization.get_quantization_config(name) for name in METHODS]
    found = {
        "configs": [f"{config.__module__}.{config.__name__}" for config in configs],
        "supported": list(platforms.current_platform.supported_quantization),
        "key": envs.environment_variables.get(KEY, lambda: None)(),
        "factors": sorted(map(str, envs.compile_factors().items())),
        "batch invariant": os.environ.get("NVFP4KERN_BATCH_INVARIANT"),
        "said": list(said.lines),
    }
    said.lines.clear()
    return found


def gpu(major, minor):
    class Capability(SimpleNamespace):
        def __str__(self):
            return f"{self.major}.{self.minor}"

    return SimpleNamespace(
        is_cpu=lambda: False,
        is_cuda=lambda: True,
        get_device_capability=lambda: Capability(major=major, minor=minor),
        supported_quantization=[],
    )


def main():
    said = Said()
    logger = logging.getLogger("vllm.nvfp4kern")
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    register, cases = nvfp4kern.vllm.register, {"before": state(said)}
    os.environ[KEY] = "0"
    register()
    cases["switched off"] = state(said)
    del os.environ[KEY]
    with changed(vllm, "__version__", "0.1.0"):
        register()
    cases["unknown version"] = state(said)
    for name, capability in (("Blackwell", (10, 0)), ("Turing", (7, 5))):
        with changed(platforms, "_current_platform", gpu(*capability)):
            register()
        cases[name] = state(said)
    sys.modules["vllm.model_executor.layers.quantization.modelopt"] = None
    register()
    del sys.modules["vllm.model_executor.layers.quantization.modelopt"]
    cases["something is missing"] = state(said)

    def raises():
        raise RuntimeError("no driver")

    with changed(platforms, "_current_platform", SimpleNamespace(is_cpu=raises)):
        register()
    cases["something raises"] = state(said)

    def afresh():
        quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG.clear()
        envs.environment_variables.pop(KEY, None)

    for name, capability, asked in (
        ("Hopper", (9, 0), ""),
        ("Blackwell, asked for", (10, 0), "1"),
        ("CPU", None, ""),
        ("CPU again", None, ""),
    ):
        os.environ[KEY] = asked
        platform = platforms.current_platform if capability is None else gpu(*capability)
        if name == "CPU again":
            os.environ["VLLM_BATCH_INVARIANT"] = "1"
        with changed(platforms, "_current_platform", platform):
            register()
        cases[name] = state(said)
        if capability is not None:
            afresh()
    Path(sys.argv[1]).write_text(json.dumps(cases))


if __name__ == "__main__":
    main()
