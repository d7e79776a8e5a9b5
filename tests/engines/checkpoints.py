"""Tiny checkpoints that vLLM's attention on CPUs takes: it has no heads of 16 columns."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "models"))

import tiny  # noqa: E402
from tiny_architectures import ARCHITECTURES  # noqa: E402


def make(folder, name, form, **options):
    """See tiny.make. The folder, as vLLM wants it."""
    kind = ARCHITECTURES[name]
    kind = replace(kind, config=dict(kind.config, head_dim=32))
    return str(tiny.make(folder, kind, form, **options))
