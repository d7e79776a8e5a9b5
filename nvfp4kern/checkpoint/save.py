"""Writing a quantised model as NVIDIA's ModelOpt does, for every engine that reads such files."""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from .. import __version__
from ..distributed import Slice
from ..layout import SF_VEC
from ..nn import NVFP4Experts, NVFP4Linear
from ..nn.frozen import Frozen
from .destinations import ROLES
from .files import INCOMPLETE, INDEX, SINGLE

ALGORITHMS = {
    None: "W4A16_NVFP4",
    "static": "NVFP4",
    "dynamic": "W4A16_NVFP4",
    "amax": "W4A16_NVFP4",
}
MIXED, AWQ = "MIXED_PRECISION", "NVFP4_AWQ"
ROLE_NAMES = {
    "mixtral": ("w1", "w3", "w2"),
}
"""Model type -> its files' names of an expert's gate_proj, up_proj and down_proj."""
FILE_NAMES = {"mixtral": (".mlp.", ".block_sparse_moe.")}
PLAIN = {"weight": 2, "gate_up_proj": 3, "down_proj": 3}
"""Weights that engines quantise, of linear layers and of stacked experts: their dimensions."""


def save_checkpoint(
    model: nn.Module,
    path: str | Path,
    *,
    config: dict[str, Any] | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes `model`, with its NVFP4 layers in ModelOpt's layout.

    The files are safetensors with linear scale factors, an index where there are several of them,
    config.json and hf_quant_config.json.

    path: a directory that does not exist yet, or is empty, or a link to an empty one. In the end it
        is complete, or as before. A process that is killed leaves a folder that may be deleted:
        `.NAME.incomplete-*` beside a new directory, `.incomplete-*` in one that was there. What is
        beside that one is not complete, and load_checkpoint refuses it; config.json comes last.
    config: what config.json says beside quantization_config, by default `model.config.to_dict()`
        of a transformers model. Without either there is no config.json.
    max_shard_bytes: the most bytes of tensors in a file. A larger tensor has a file of its own.

    Stacked experts are written one by one, as published files have them. Such files cannot say
    input_quant="dynamic" and "amax": these layers are written as weights alone (W4A16_NVFP4), and
    load_checkpoint takes input_quant again.

    Raises FileExistsError for a directory with files. Raises ValueError for a global scale that is
    not set, for a rank's slice of a layer, and for a layer of `fuse` whose global scales differ:
    the layout has one for a layer, so save before fusing. Raises OSError with the name of the
    file that cannot be written.
    """
    path = Path(path)
    there = path.is_symlink() or path.exists()
    if there and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"path: {path} is there already, expected a new or empty directory")
    if config is None and hasattr(getattr(model, "config", None), "to_dict"):
        config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
        config.pop("_name_or_path", None)  # where it was loaded from is nobody's business
    model_type = (config or {}).get("model_type", "")
    layers = dict(_layers(model, model_type))
    quantization = _quantization(layers, _excluded(model, model_type))
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"{INCOMPLETE}{secrets.token_hex(4)}"
    work = path / name if there else path.parent / f".{path.name}{name}"
    try:
        work.mkdir()
        _write_tensors(work, _tensors(model, model_type), max_shard_bytes)
        _write_json(work / "hf_quant_config.json", _by_modelopt(quantization))
        if config is not None:
            config = {**config, "quantization_config": quantization}
            _write_json(work / "config.json", config)
        mode = (work / "hf_quant_config.json").stat().st_mode & 0o777
        for file in work.iterdir():
            file.chmod(mode)  # safetensors lets nobody else read its own
        if there:
            _move_files(work, path)
        else:
            work.replace(path)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _move_files(work: Path, directory: Path) -> None:
    """Into a directory that stays: it may be a process's own, a link's, or a mounted one. Readers
    ask for config.json, so it comes last."""
    if [file for file in directory.iterdir() if file != work]:
        raise FileExistsError(f"path: {directory} has files by now, expected an empty directory")
    files = sorted(work.iterdir(), key=lambda file: (file.name == "config.json", file.name))
    try:
        for file in files:
            file.replace(directory / file.name)
        work.rmdir()
    except BaseException:
        for file in files:
            if not file.exists():
                (directory / file.name).unlink(missing_ok=True)
        raise


# --- Tensors ---


def _in_files(name: str, model_type: str) -> str:
    ours, theirs = FILE_NAMES.get(model_type, ("", ""))
    return name.replace(ours, theirs) if ours else name


def _layers(model: nn.Module, model_type: str) -> Iterator[tuple[str, str]]:
    """(name in the files, ModelOpt's algorithm) of each NVFP4 layer. Checks global scales."""
    for name, module in model.named_modules():
        if not isinstance(module, Frozen):
            continue
        if isinstance(module, Slice):
            raise ValueError(f"{name}: a rank's slice of a layer, expected whole layers")
        for key, sentence in module.faults():
            raise ValueError(f"{name}.{key}: {sentence}")
        here = _in_files(name, model_type)
        if isinstance(module, NVFP4Linear):
            if module.weight_scale_2.dim():
                expected = "expected one global scale: save before fusing"
                raise ValueError(f"{name}.weight_scale_2: one for each row, {expected}")
            scaled = module.pre_quant_scale is not None and module.input_quant == "static"
            yield here, AWQ if scaled else ALGORITHMS[module.input_quant]
        elif isinstance(module, NVFP4Experts):
            for e in range(module.num_experts):
                for role in _roles(model_type):
                    yield f"{here}.{e}.{role}", ALGORITHMS[module.input_quant]


def _roles(model_type: str) -> tuple[str, str, str]:
    return ROLE_NAMES.get(model_type, ("gate_proj", "up_proj", "down_proj"))


def _excluded(model: nn.Module, model_type: str) -> list[str]:
    """Modules whose weights stay as they were, which engines would take for quantised ones."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, (Frozen, nn.Embedding)):
            continue
        own = module._parameters
        if any(own.get(key) is not None and own[key].dim() == rank for key, rank in PLAIN.items()):
            found.append(_in_files(name, model_type))
    return found


def _tensors(model: nn.Module, model_type: str) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of everything, tied parameters once, experts one by one."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        here = _in_files(path, model_type)
        if isinstance(module, NVFP4Experts):
            yield from _experts(here, module, _roles(model_type))
            continue
        kept = module._buffers.keys() - module._non_persistent_buffers_set
        for key, value in (*module._parameters.items(), *module._buffers.items()):
            if value is None or id(value) in seen or (key in module._buffers and key not in kept):
                continue
            seen.add(id(value))
            yield (f"{here}.{key}" if here else key), value.detach()


def _experts(path: str, experts: NVFP4Experts, roles: tuple[str, str, str]) -> Iterator[Any]:
    for e in range(experts.num_experts):
        for role in roles:
            stack, half = ROLES[role]
            whole = getattr(experts, stack)[e]
            rows = len(whole) // (2 if stack == "gate_up_proj" else 1)
            index = slice(half * rows, (half + 1) * rows)
            yield f"{path}.{e}.{role}.weight", whole[index].detach()
            scales = getattr(experts, f"{stack}_weight_scale")[e]
            yield f"{path}.{e}.{role}.weight_scale", scales[index].detach()
            for key in ("weight_scale_2", "input_scale"):
                value = getattr(experts, f"{stack}_{key}")
                if value is not None:
                    yield f"{path}.{e}.{role}.{key}", value[e].reshape(-1)[half].detach()


def _write_tensors(
    directory: Path, tensors: Iterator[tuple[str, Tensor]], max_shard_bytes: int
) -> None:
    shards: list[list[str]] = []
    total, held, size = 0, {}, 0
    for name, value in tensors:
        if held and size + value.nbytes > max_shard_bytes:
            shards.append(_write_shard(directory, len(shards), held))
            held, size = {}, 0
        held[name] = value.cpu().contiguous()
        size += value.nbytes
        total += value.nbytes
    shards.append(_write_shard(directory, len(shards), held))
    if len(shards) == 1:
        (directory / "0").rename(directory / SINGLE)
        return
    weight_map = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        (directory / str(i)).rename(directory / file)
        weight_map.update(dict.fromkeys(names, file))
    _write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_shard(directory: Path, number: int, tensors: dict[str, Tensor]) -> list[str]:
    # safetensors refuses tensors that share memory, as slices of a stack do, and parameters that
    # were made of others' data. Each gets its own.
    seen: set[int] = set()
    own = {}
    for name, value in tensors.items():
        address = value.untyped_storage().data_ptr()
        shares = address in seen or value.untyped_storage().nbytes() != value.nbytes
        own[name] = value.clone() if shares else value
        seen.add(address)
    with _named(directory / str(number)) as file:
        save_file(own, file, metadata={"format": "pt"})
    return list(tensors)


# --- Configuration ---


def _quantization(layers: dict[str, str], excluded: list[str]) -> dict[str, Any]:
    """quantization_config of config.json."""
    if not layers:
        raise ValueError("model: has no NVFP4 layer, expected one that quantize_ has changed")
    algorithms = set(layers.values())
    if AWQ in algorithms:
        algorithms -= {"NVFP4"}  # ModelOpt's layers of that algorithm need no pre_quant_scale each
    number = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": SF_VEC}
    found: dict[str, Any] = {
        "quant_method": "modelopt",
        "quant_algo": algorithms.pop() if len(algorithms) == 1 else MIXED,
        "ignore": excluded,
        "producer": {"name": "nvfp4kern", "version": __version__},
    }
    if found["quant_algo"] == MIXED:
        found["quantized_layers"] = {
            name: {"quant_algo": algorithm, "group_size": SF_VEC}
            for name, algorithm in layers.items()
        }
        return found
    if found["quant_algo"] == AWQ:
        return found
    group = {"weights": number, "targets": ["Linear"]}
    if found["quant_algo"] == "NVFP4":
        group["input_activations"] = number
    found["config_groups"] = {"group_0": group}
    return found


def _by_modelopt(found: dict[str, Any]) -> dict[str, Any]:
    """hf_quant_config.json, which says the same in other words."""
    inner = {
        "quant_algo": found["quant_algo"],
        "kv_cache_quant_algo": None,
        "group_size": SF_VEC,
        "exclude_modules": found["ignore"],
    }
    if found["quant_algo"] == AWQ:
        inner |= {"has_zero_point": False, "pre_quant_scale": True}
    if "quantized_layers" in found:
        inner["quantized_layers"] = found["quantized_layers"]
    return {"producer": found["producer"], "quantization": inner}


@contextmanager
def _named(file: Path) -> Iterator[Path]:
    """Errors of writing a file are OSErrors that name it. safetensors has one of its own."""
    try:
        yield file
    except (OSError, SafetensorError) as error:
        number, text = getattr(error, "errno", None), str(error)
        found = re.search(r"\(os error (\d+)\)", text)
        if found:
            number = int(found[1])
        if number:
            text = os.strerror(number)
        raise OSError(number or errno.EIO, text, str(file)) from error


def _write_json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, default=_spelled) + "\n"
    with _named(path):
        path.write_text(text)


def _spelled(value: Any) -> str:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else str(value)
