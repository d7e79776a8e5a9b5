"""What vLLM is told. Importing this needs a vLLM that has everything that is subclassed."""

import os

from vllm import envs
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.platforms import current_platform

from .. import __version__
from .configs import CONFIGS

KEY = "NVFP4KERN_VLLM"


def register() -> None:
    # vLLM keeps compiled graphs by a key that knows no plugins, and would run a graph of its own
    # methods with our parameters. These variables are part of the key.
    envs.environment_variables[KEY] = lambda: f"registered {__version__}"
    for name, ours in CONFIGS.items():
        register_quantization_config(name)(ours)
        supported = current_platform.supported_quantization
        if supported and name not in supported:  # a CPU's list, say
            supported.append(name)
    if envs.VLLM_BATCH_INVARIANT:
        os.environ.setdefault("NVFP4KERN_BATCH_INVARIANT", "1")
