"""Damaged and hostile checkpoints, 200 drawn from a seed: each an error that names what is bad."""

import shutil
from functools import cache

import pytest
import ways  # noqa: F401, fills WAYS
from damage import BASES, WAYS, cases
from empty_model import empty

from nvfp4kern.checkpoint import CheckpointError, inspect, load_checkpoint

COUNT = 200


@pytest.fixture(scope="module")
def drawn(campaign):
    return cases(campaign.seed, COUNT)


@pytest.fixture
def damaged(checkpoint, tmp_path):
    """damaged(case) -> (directory, names of which the error has one)."""

    def get(case):
        architecture, form, options = BASES[case.base]
        directory = tmp_path / "m"
        shutil.copytree(checkpoint(architecture, form, **options), directory)
        return directory, case.damage(directory)

    return get


def found_by_lint(directory):
    """Messages of what is wrong."""
    try:
        return inspect(directory).errors
    except CheckpointError as error:
        return [str(error)]


skeleton = cache(empty)


def state(model):
    """What a model is: its modules, and each tensor's identity, in order."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [(n, id(m)) for n, m in model.named_modules()], [(n, id(t)) for n, t in tensors]


def found_by_load(model, directory):
    before = state(model)
    try:
        load_checkpoint(model, directory, device="cpu", progress=False)
    except CheckpointError as error:
        assert state(model) == before
        return [str(error)]
    return []


def names_one(messages, names):
    return any(name in message for message in messages for name in names)


def test_the_cases_are_of_every_kind(drawn):
    assert len(WAYS) > 35
    assert {way.name for case in drawn for way in case.ways} == {way.name for way in WAYS}
    assert {case.base for case in drawn} == {*BASES} and len({*map(str, drawn)}) == COUNT
    assert sum(len(case.ways) > 1 for case in drawn) > 10


@pytest.mark.parametrize("base", BASES)
def test_whole_checkpoints_have_no_error(checkpoint, base):
    architecture, form, options = BASES[base]
    directory = checkpoint(architecture, form, **options)
    assert found_by_lint(directory) == []


@pytest.mark.parametrize("i", range(COUNT))
def test_the_lint_names_it(drawn, damaged, i):
    case = drawn[i]
    directory, names = damaged(case)
    messages = found_by_lint(directory)
    if case.stage == "lint":
        assert names_one(messages, names), (str(case), messages, names)
        assert all(message.isprintable() and len(message) < 1500 for message in messages)


@pytest.mark.parametrize("i", range(COUNT))
def test_loading_names_it_and_leaves_the_model(checkpoint, drawn, damaged, i):
    case = drawn[i]
    pytest.importorskip("transformers", reason="transformers is not installed")
    architecture, form, options = BASES[case.base]
    model = skeleton(checkpoint(architecture, form, **options))
    directory, names = damaged(case)
    messages = found_by_load(model, directory)
    assert names_one(messages, names), (str(case), messages, names)
