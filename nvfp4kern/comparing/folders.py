"""Two folders and a text -> two models and token ids."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..options import CONTEXT, TOKENS
from ..transformers.opening import model_folder, open_model, open_tokenizer
from .measures import Comparison
from .models import compare_models


def compare_folders(
    reference: str | Path,
    folder: str | Path,
    text: str,
    *,
    tokens: int = TOKENS,
    context: int | None = None,
    device: str = "cpu",
    dtype: str = "auto",
) -> Comparison:
    """Loads both models, which are held at once, and compares them on the first tokens of a text.

    reference: the folder that `folder` was made of; its tokenizer counts.
    tokens, context: how many tokens at most, and how many in a sequence. The text is cut into
        sequences that share no token; by default 512 tokens, fewer where the model has fewer
        positions.
    dtype: of both; "auto" is that of `folder`.

    Raises ValueError for what is no such folder, a text of less than two tokens, and what
    compare_models refuses, and CheckpointError for files that cannot be loaded.
    """
    theirs, ours = model_folder("REFERENCE", reference), model_folder("FOLDER", folder)
    if tokens < 2:
        raise ValueError(f"--tokens: {tokens}, expected 2 or more")
    ids = ids_of(theirs, ours, text)[:tokens]
    model = open_model(ours, device, dtype)
    check_ids(ids, model)
    sequences = list(ids.split(context_of(model, context)))
    dtype = str(model.get_input_embeddings().weight.dtype).removeprefix("torch.")
    exact = open_model(theirs, device, dtype)
    return compare_models(exact, model, tqdm(sequences, desc="comparing", disable=None))


def ids_of(reference: Path, folder: Path, text: str) -> Tensor:
    """The text's tokens, the same for both folders where both have a tokenizer."""
    found = [open_tokenizer(reference)(text, verbose=False).input_ids]
    if any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        found.append(open_tokenizer(folder)(text, verbose=False).input_ids)
    if found[0] != found[-1]:
        raise ValueError("FOLDER: its tokenizer makes other tokens of the text than REFERENCE's")
    if len(found[0]) < 2:
        raise ValueError(f"--text: has {len(found[0])} tokens, expected at least 2")
    return torch.tensor(found[0])


def check_ids(ids: Tensor, model: Any) -> None:
    size = len(model.get_input_embeddings().weight)
    if int(ids.max()) >= size:
        raise ValueError(f"--text: has token {int(ids.max())}, expected ids below {size}")


def context_of(model: Any, wanted: int | None) -> int:
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if wanted is None:
        return min(CONTEXT, most or CONTEXT)
    if not 2 <= wanted <= (most or wanted):
        raise ValueError(f"--context: {wanted}, expected 2 to {most or 'any number'}")
    return wanted
