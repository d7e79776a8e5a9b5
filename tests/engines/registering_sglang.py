"""What nvfp4kern.sglang.register does to SGLang, case by case: python registering_sglang.py FILE"""

import json
import logging
import os
import sys
from pathlib import Path

import sglang_on_cpus  # noqa: F401
from said import Said, changed
from sglang import version
from sglang.srt import plugins
from sglang.srt.layers import linear, quantization
from sglang.srt.utils import common

import nvfp4kern.sglang

METHODS = ("modelopt_fp4", "modelopt_mixed", "compressed-tensors")
KEY = "NVFP4KERN_SGLANG"


def state(said):
    tables = quantization.QUANTIZATION_METHODS, quantization.CPU_QUANTIZATION_METHODS
    configs = [table.get(name) for table in tables for name in METHODS]
    found = {
        "configs": [each and f"{each.__module__}.{each.__name__}" for each in configs],
        "loaders": list(linear.WEIGHT_LOADER_V2_SUPPORTED),
        "said": list(said.lines),
    }
    said.lines.clear()
    return found


def main():
    said = Said()
    logger = logging.getLogger("sglang.nvfp4kern")
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    register, cases = nvfp4kern.sglang.register, {"before": state(said)}
    os.environ[KEY] = "0"
    register()
    cases["switched off"] = state(said)
    del os.environ[KEY]
    with changed(version, "__version__", "0.5.22.post1"):
        register()
    cases["unknown version"] = state(said)
    with changed(common, "is_cpu", lambda: False):
        register()
        cases["no NVIDIA GPU"] = state(said)
        with changed(common, "is_cuda", lambda: True):
            for name, capability in (("Blackwell", (10, 0)), ("Turing", (7, 5))):
                with changed(common, "get_device_capability", lambda found=capability: found):
                    register()
                cases[name] = state(said)
    module = "sglang.srt.layers.quantization.modelopt_quant"
    kept, sys.modules[module] = sys.modules[module], None
    register()
    sys.modules[module] = kept
    cases["something is missing"] = state(said)
    stock = dict(quantization.QUANTIZATION_METHODS), dict(quantization.CPU_QUANTIZATION_METHODS)
    for name, capability, asked in (("Hopper", (9, 0), ""), ("Blackwell, asked for", (10, 0), "1")):
        os.environ[KEY] = asked
        with (
            changed(common, "is_cpu", lambda: False),
            changed(common, "is_cuda", lambda: True),
            changed(common, "get_device_capability", lambda found=capability: found),
        ):
            register()
        cases[name] = state(said)
        quantization.QUANTIZATION_METHODS.update(stock[0])
        quantization.CPU_QUANTIZATION_METHODS.clear()
        quantization.CPU_QUANTIZATION_METHODS.update(stock[1])
        linear.WEIGHT_LOADER_V2_SUPPORTED[:] = cases["before"]["loaders"]
    os.environ[KEY] = ""
    plugins.entry_points = lambda group: [Entry()] * (group == "sglang.srt.plugins")
    plugins.load_plugins()
    cases["CPU, by SGLang"] = state(said)
    register()
    cases["CPU again"] = state(said)
    Path(sys.argv[1]).write_text(json.dumps(cases))


class Entry:
    """That of pyproject.toml, also where the package is not installed."""

    name, value, dist = "nvfp4kern", "nvfp4kern.sglang:register", None

    def load(self):
        return nvfp4kern.sglang.register


if __name__ == "__main__":
    main()
