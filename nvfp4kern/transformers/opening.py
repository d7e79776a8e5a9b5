"""A folder as a user has it -> a model that runs, on our layers, and its tokenizer."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ..checkpoint.files import CheckpointError
from ..checkpoint.load import in_few_words
from ..nn.frozen import Frozen
from .config import CONFIGS, METHODS, NVFP4KernConfig, take_over


def model_folder(name: str, path: str | Path) -> Path:
    """Raises ValueError where a path is no folder of a model: transformers would ask its hub."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise ValueError(f"{name}: {str(path)!r}, expected a folder with config.json")
    return folder


def open_model(folder: Path, device: str, dtype: str = "auto") -> Any:
    """The model of config.json's architecture, for inference. NVFP4 layers are ours where
    take_over knows the files' method.

    device: "cpu", or a GPU, for which transformers needs accelerate.
    dtype: of what is not NVFP4; "auto" is the folder's, or bfloat16 where the folder is quantised
        and has the rest in float32, which W4A16 layers do not take.

    Raises CheckpointError where the files lack a tensor of the model, which transformers would
    draw, and ValueError for a dtype that the layers do not take.
    """
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(folder, **options)
    name = next(iter(config.architectures or ()), "")
    kind = getattr(transformers, name, AutoModelForCausalLM)
    said = "quantization_config" in json.loads((folder / "config.json").read_text())
    beside = (folder / "hf_quant_config.json").exists()
    if beside and not said:
        options["quantization_config"] = NVFP4KernConfig()
    wide = config.get_text_config().dtype == torch.float32
    if dtype == "auto" and wide and (said or beside):
        dtype = "bfloat16"
    if device != "cpu":
        import accelerate  # noqa: F401, without which transformers takes no device_map

        options["device_map"] = {"": device}
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    before = dict(CONFIGS)
    for method in METHODS:
        take_over(method)
    try:
        model, found = kind.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, **options
        )
    finally:
        CONFIGS.update(before)
    if found["missing_keys"]:
        raise CheckpointError(f"{folder.name}: lacks {in_few_words(sorted(found['missing_keys']))}")
    return model.eval()


def open_tokenizer(folder: Path) -> Any:
    """CheckpointError where transformers opens none."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{folder.name}: no tokenizer that opens: {reason}") from error


def nvfp4_layers(model: torch.nn.Module) -> dict[str, Frozen]:
    """The NVFP4 layers, by name."""
    return {name: each for name, each in model.named_modules() if isinstance(each, Frozen)}
