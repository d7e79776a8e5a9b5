"""The notebooks of docs/notebooks run, cell after cell, and what they say they assert."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NEEDS = {"matplotlib", "torch", "transformers"}


def cells_of(path, kind):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def imports_of(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def needs_of(path):
    return NEEDS & {*imports_of("\n".join(cells_of(path, "code")))}


def with_costs(path):
    """Where transformers is installed for them, CI runs no slow tests."""
    marks = () if "transformers" in needs_of(path) else pytest.mark.slow
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [*map(with_costs, NOTEBOOKS)])
def test_a_notebook_runs_on_a_cpu(path):
    for name in sorted(needs_of(path)):
        pytest.importorskip(name, reason=f"{name} is not installed")
    environment = os.environ | {"MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}
    environment["HF_HUB_OFFLINE"] = "1"
    command = [sys.executable, "-W", "ignore", "-c", "\n".join(cells_of(path, "code"))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_found(path):
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    assert f"(notebooks/{path.name})" in (ROOT / "docs" / "tour.md").read_text()
    told = cells_of(path, "markdown")[0]
    assert all(re.search(rf"\b{name}\b", told) for name in needs_of(path))


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["quantise_and_look", "serve_and_time"]
