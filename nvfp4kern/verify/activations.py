"""Activations in float64, and what is encoded of float32 by the operations of the contract."""

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


def silu(x):
    """silu by the float32 operations of the contract (csrc/nk_math.h), each rounded."""
    f = np.float32
    x = np.where(np.asarray(x, f) < -128, f(-128), np.asarray(x, f))
    t = np.where(x > 128, f(128), x)
    shifted = t * f(-1.44269504) + f(12582912)
    k = shifted - f(12582912)
    n = shifted.view(np.int32).astype(np.int64) - f(12582912).view(np.int32)
    r = (-t - k * f(0.693359375)) - k * f(-2.12194440e-4)
    tail = np.full_like(r, float.fromhex("0x1.6db64cp-10"))
    for coefficient in ("0x1.123ce0p-7", "0x1.55545cp-5", "0x1.55548cp-3", "0x1p-1"):
        tail = tail * r + f(float.fromhex(coefficient))
    p = (r * r) * tail + r

    small = np.ldexp(f(1), -np.minimum(np.abs(n), 126)).astype(f)
    denominator = (small + np.where(n > 0, p, f(1))) + np.where(n > 0, f(1), small * p)
    quotient = x / denominator
    beyond = np.ldexp(f(1), -np.clip(n - 126, 0, 59)).astype(f)
    return np.where(n > 0, quotient * small, quotient) * beyond


def alone(h, activation="identity"):
    """What grouped_gemm encodes of float32 sums where the contract gives its bits.

    Not of gelu and gelu_tanh: see gemm for their interval.
    """
    relu = np.where(h < 0, np.float32(0), h)
    return {"silu": silu(h), "relu": relu, "relu2": relu * relu, "identity": h}[activation]


def gated(gates, ups, activation="silu", limit=np.inf):
    """The same of grouped_dual_gemm, of gates and ups. Not of swiglu_oai, either: see dual_gemm."""
    limit = np.float32(limit)
    h = np.where(gates > limit, limit, gates)
    return alone(h, activation) * np.where(ups > limit, limit, np.where(ups < -limit, -limit, ups))
