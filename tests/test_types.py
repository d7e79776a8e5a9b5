"""The calls that type checkers read run, too. CI has mypy and pyright check their types."""

import numpy as np
import pytest
import torch
import typed_calls

import nvfp4kern


@pytest.mark.parametrize(
    "calls, shape",
    [
        (typed_calls.numpy_calls, (4, 32)),
        (typed_calls.torch_calls, (4, 2)),
        (typed_calls.registered_calls, (4, 2)),
        (typed_calls.layer_calls, (4, 16)),
    ],
)
def test_typed_calls_run(calls, shape):
    assert calls().shape == shape


def test_typed_calls_of_any_library_run():
    for x in (np.ones((2, 32), np.float32), torch.ones(2, 32)):
        assert isinstance(typed_calls.a_function_of_any_library(x), type(x))
    assert typed_calls.facts() == [r["name"] for r in nvfp4kern.backends() if r["available"]]
