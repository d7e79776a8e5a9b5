"""Activations in float64."""

import math

import numpy as np


def _erfc(x):
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(x), np.float64)


def swish(scale):
    return lambda h: h / (1 + np.exp(-scale * h)), -1.278464542761074 / scale


# name: the function, and its minimum: it falls before and rises after it (None: never falls)
ACTIVATIONS = {
    "silu": swish(1.0),
    "gelu": (lambda h: h / 2 * _erfc(-h / math.sqrt(2)), -0.7517916243),
    "gelu_tanh": (
        lambda h: h / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))),
        -0.7524614220,
    ),
    "relu": (lambda h: np.maximum(h, 0), None),
    "relu2": (lambda h: np.maximum(h, 0) ** 2, None),
    "identity": (lambda h: h, None),
    "swiglu_oai": swish(1.702),
}
ALONE = tuple(name for name in ACTIVATIONS if name not in ("identity", "swiglu_oai"))
"""Of sums without a gate."""
