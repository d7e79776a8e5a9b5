"""The small files beside a model's weights: generation, tokenizer, processor, code, licence."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATTERNS = (
    *("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.bpe", "*.spm", "*.py", "*.md"),
    *("LICENSE*", "NOTICE*", "*/*.json", "*/*.jinja"),
)
OURS = ("config.json", "hf_quant_config.json", "*.index.json", "*/*.index.json")
"""What describes the weights, and is written anew with them."""
LARGEST = 100_000_000
"""Bytes of a file that is copied. A vocabulary of a million tokens takes half."""


def companions(folder: Path) -> Iterator[Path]:
    """Their paths in a model's folder, sorted."""
    found = {path for pattern in PATTERNS for path in folder.glob(pattern)}
    for path in sorted(found - {path for pattern in OURS for path in folder.glob(pattern)}):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)
        if not hidden and path.is_file() and path.stat().st_size <= LARGEST:
            yield inside


def copy_companions(folder: Path, to: Path) -> None:
    """Contents alone: in Hugging Face's cache the files are links, and nobody may write to them."""
    for inside in companions(folder):
        (to / inside).parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / inside, to / inside)


def folder_it_came_from(model: Any) -> Path | None:
    """Where a model of transformers came from, where that is on this machine."""
    config = getattr(model, "config", None)
    name = getattr(config, "_name_or_path", None)
    if not isinstance(name, str) or not name:
        return None
    if Path(name).is_dir():
        return Path(name) if (Path(name) / "config.json").is_file() else None
    try:
        from huggingface_hub import snapshot_download

        revision = getattr(config, "_commit_hash", None)
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (ImportError, OSError, ValueError):  # not in the cache, or no name of the hub
        return None
