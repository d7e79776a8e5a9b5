"""Writing a quantised model as NVIDIA's ModelOpt does, for every engine that reads such files."""

import errno
import json
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from ..distributed import Slice
from ..nn import NVFP4Experts, NVFP4Linear
from ..nn.frozen import Frozen, InputQuant
from .companions import copy_companions, folder_it_came_from
from .configuration import ALGORITHMS, AWQ, SVD, beside, by_modelopt
from .destinations import ROLES, UNGATED_ROLES
from .files import INCOMPLETE, INDEX, SINGLE
from .plan import EMBEDDINGS

ROLE_NAMES = {
    "mixtral": ("w1", "w3", "w2"),
}
"""Model type -> its files' names of an expert's gate_proj, up_proj and down_proj."""
FILE_NAMES = {"mixtral": (".mlp.", ".block_sparse_moe.")}
PLAIN = {"weight": 2, "gate_up_proj": 3, "up_proj": 3, "down_proj": 3}
"""Weights that engines quantise, of linear layers and of stacked experts: their dimensions."""


def save_checkpoint(
    model: nn.Module,
    path: str | Path,
    *,
    config: dict[str, Any] | None = None,
    tokenizer: Any = None,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes `model`, with its NVFP4 layers in ModelOpt's layout.

    The files are safetensors with linear scale factors, an index where there are several of them,
    config.json and hf_quant_config.json, and for a model of transformers generation_config.json
    and what a tokenizer or a processor needs.

    path: a directory that does not exist yet, or is empty, or a link to an empty one. In the end it
        is complete, or as before. A process that is killed leaves a folder that may be deleted:
        `.NAME.incomplete-*` beside a new directory, `.incomplete-*` in one that was there. What is
        beside that one is not complete, and load_checkpoint refuses it; config.json comes last.
    config: what config.json says beside quantization_config, by default `model.config.to_dict()`
        of a transformers model. Without either there is no config.json.
    tokenizer: a tokenizer or a processor of transformers, or a model's folder whose small files
        are copied. By default that is the folder that the model came from, where it is on this
        machine.
    max_shard_bytes: the most bytes of tensors in a file. A larger tensor has a file of its own.

    Stacked experts are written one by one, as published files have them.
    input_quant="dynamic", "amax" and "token" come back by an entry that other engines pass over. To
    them "dynamic" is an input_scale of 1 (NVFP4), which is the same, and the others are weights
    alone (W4A16_NVFP4).
    A layer of `fuse` whose global scales differ is written with one for each row, and a warning:
    load_checkpoint takes that, other engines do not.

    Raises FileExistsError for a directory with files. Raises ValueError for a global scale that is
    not set, for a rank's slice of a layer, and for a model without an NVFP4 layer. Raises TypeError
    for another tokenizer. Raises OSError with the name of the file or folder that cannot be written
    or read.
    """
    path = Path(path)
    there = path.is_symlink() or path.exists()
    if there and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"path: {path} is there already, expected a new or empty directory")
    write_companions = _companions(model, tokenizer)
    if config is None and hasattr(getattr(model, "config", None), "to_dict"):
        config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
        config.pop("_name_or_path", None)  # where it was loaded from is nobody's business
    model_type = (config or {}).get("model_type", "")
    quantization = _quantization(model, model_type)
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"{INCOMPLETE}{secrets.token_hex(4)}"
    work = path / name if there else path.parent / f".{path.name}{name}"
    try:
        work.mkdir()
        write_companions(work)
        _write_tensors(work, _tensors(model, model_type), max_shard_bytes)
        write_json(work / "hf_quant_config.json", beside(quantization))
        if config is not None:
            config = {**config, "quantization_config": quantization}
            write_json(work / "config.json", config)
        mode = (work / "hf_quant_config.json").stat().st_mode & 0o777
        for file in work.glob("*.safetensors"):
            file.chmod(mode)  # safetensors lets nobody else read its own
        if there:
            _move_files(work, path)
        else:
            work.replace(path)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _companions(model: nn.Module, tokenizer: Any) -> Callable[[Path], None]:
    """What writes the files that belong to a model beside its weights."""
    folder = folder_it_came_from(model) if tokenizer is None else tokenizer
    if isinstance(folder, (str, Path)):
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"tokenizer: {folder} is no directory")
    elif folder is not None and not hasattr(folder, "save_pretrained"):
        came = type(folder).__name__
        raise TypeError(f"tokenizer: {came}, expected a folder, or one with save_pretrained")
    generation = getattr(model, "generation_config", None)

    def write(work: Path) -> None:
        if hasattr(folder, "save_pretrained"):
            folder.save_pretrained(work)
        elif folder is not None:
            copy_companions(Path(folder), work)
        if hasattr(generation, "to_json_string"):
            write_text(work / "generation_config.json", generation.to_json_string())

    return write


def _move_files(work: Path, directory: Path) -> None:
    """Into a directory that stays: it may be a process's own, a link's, or a mounted one. Readers
    ask for config.json, so it comes last."""
    if [file for file in directory.iterdir() if file != work]:
        raise FileExistsError(f"path: {directory} has files by now, expected an empty directory")
    files = sorted(work.iterdir(), key=lambda file: (file.name == "config.json", file.name))
    try:
        for file in files:
            file.replace(directory / file.name)
    except BaseException:
        for file in files:
            if not file.exists():
                _remove(directory / file.name)
        raise
    work.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- Tensors ---


def _in_files(name: str, model_type: str) -> str:
    ours, theirs = FILE_NAMES.get(model_type, ("", ""))
    return name.replace(ours, theirs) if ours else name


def _quantization(model: nn.Module, model_type: str) -> dict[str, Any]:
    """quantization_config of config.json. Checks global scales."""
    layers: dict[str, str] = {}
    inputs: dict[str, InputQuant] = {}
    by_row = []
    for name, module in model.named_modules():
        if isinstance(module, Slice):
            raise ValueError(f"{name}: a rank's slice of a layer, expected whole layers")
        if not isinstance(module, (NVFP4Linear, NVFP4Experts)):
            continue
        for key, sentence in module.faults():
            raise ValueError(f"{name}.{key}: {sentence}")
        names = [_in_files(name, model_type)]
        algorithm = ALGORITHMS[module.input_quant]
        if isinstance(module, NVFP4Experts):
            each = range(module.num_experts)
            roles = _layers_of(module, model_type)
            names = [f"{names[0]}.{e}.{role}" for e in each for role in roles]
            if module.row_scales:
                by_row.append(f"{name}.down_proj")
        else:
            if module.weight_scale_2.dim():
                by_row.append(name)
            if module.svdquant_lora_a is not None and algorithm == "NVFP4":
                algorithm = SVD
            elif module.pre_quant_scale is not None and algorithm == "NVFP4":
                algorithm = AWQ
        layers |= dict.fromkeys(names, algorithm)
        inputs |= dict.fromkeys(names, module.input_quant)
    if not layers:
        raise ValueError("model: has no NVFP4 layer, expected one that quantize_ has changed")
    if by_row:
        more = f" and {len(by_row) - 1} more" if len(by_row) > 1 else ""
        sentence = "one for each row, which engines other than nvfp4kern do not read"
        warnings.warn(f"{by_row[0]}.weight_scale_2{more}: {sentence}", stacklevel=3)
    return by_modelopt(layers, inputs, _excluded(model, model_type))


def roles_of(model_type: str) -> tuple[str, str, str]:
    return ROLE_NAMES.get(model_type, ("gate_proj", "up_proj", "down_proj"))


def _layers_of(experts: NVFP4Experts, model_type: str) -> dict[str, tuple[str, int]]:
    """An expert's layers in files, and where their rows are: as in ROLES."""
    if not experts.gated:
        return UNGATED_ROLES
    return {name: ROLES[name] for name in roles_of(model_type)}


def _excluded(model: nn.Module, model_type: str) -> list[str]:
    """Modules whose weights stay as they were, which engines would take for quantised ones."""
    found = []
    for name, module in model.named_modules():
        called_so = any(word in name.rpartition(".")[2] for word in EMBEDDINGS)
        if isinstance(module, Frozen) or called_so and isinstance(module, nn.Embedding):
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
            yield from _experts(here, module, _layers_of(module, model_type))
            continue
        kept = module._buffers.keys() - module._non_persistent_buffers_set
        for key, value in (*module._parameters.items(), *module._buffers.items()):
            if value is None or id(value) in seen or (key in module._buffers and key not in kept):
                continue
            seen.add(id(value))
            name = f"{here}.{key}" if here else key
            yield as_multiplier(name, value.detach())
        if isinstance(module, NVFP4Linear) and module.input_quant == "dynamic":
            yield f"{here}.input_scale", torch.ones(())


def _experts(path: str, experts: NVFP4Experts, roles: dict[str, tuple[str, int]]) -> Iterator[Any]:
    for e in range(experts.num_experts):
        for role, (stack, half) in roles.items():
            whole = getattr(experts, stack)[e]
            rows = len(whole) // (2 if stack == "gate_up_proj" else 1)
            index = slice(half * rows, (half + 1) * rows)
            yield f"{path}.{e}.{role}.weight", whole[index].detach()
            scales = getattr(experts, f"{stack}_weight_scale")[e]
            yield f"{path}.{e}.{role}.weight_scale", scales[index].detach()
            bias = getattr(experts, f"{stack}_bias", None)
            if bias is not None:
                yield f"{path}.{e}.{role}.bias", bias[e, index].detach()
            for key in ("weight_scale_2", "input_scale", "input_scale_inverse"):
                value = getattr(experts, f"{stack}_{key}")
                if value is not None:
                    by_row = experts.row_scales and key == "weight_scale_2"
                    one = value[e].reshape(-1)[index if by_row else half].detach()
                    yield as_multiplier(f"{path}.{e}.{role}.{key}", one)
            if experts.input_quant == "dynamic":
                yield f"{path}.{e}.{role}.input_scale", torch.ones(())


def as_multiplier(name: str, value: Tensor) -> tuple[str, Tensor]:
    """The layout has multipliers alone: an input scale whose inverse a layer has is rounded."""
    if not name.endswith("input_scale_inverse"):
        return name, value
    return name.removesuffix("_inverse"), 1 / value


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
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


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


# --- Files ---


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


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, default=_spelled) + "\n")


def write_text(path: Path, text: str) -> None:
    with _named(path):
        path.write_text(text)


def _spelled(value: Any) -> str:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else str(value)
