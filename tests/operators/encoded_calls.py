"""Calls of experts' products with quantized=True, and what their bytes must be."""

import numpy as np
import torch
from expert_calls import expert_of
from generators import Guarded, raw, unchanged

import nvfp4kern
from nvfp4kern.verify import encoded, reference

UNWRITTEN = 0x5A


def encode(a, stack, offsets, *, count=None, **options):
    """(codes, scale factors), which lie between guard bytes, rows far from the last ones."""
    rows, device = len(a.tensor) if count is None else count, stack.device
    out = tuple(
        Guarded((rows, stack.n // of), torch.uint8, device, "padded rows") for of in (2, 16)
    )
    args, options = stack.call(a.tensor, a.sf, offsets, form=a.form, quantized=True, **options)
    with unchanged(args, list(options.values())):
        given = tuple(item.tensor for item in out)
        got = getattr(nvfp4kern, stack.name)(*args, out=given, **options)
    assert got.data is out[0].tensor and got.scales is out[1].tensor
    assert out[0].guards_intact() and out[1].guards_intact()
    return raw(got.data), raw(got.scales)


def parts_of(a, w, alphas, bias=0.0):
    """The float32 gates and ups, or sums, that are exact. Biases are those of alphas of 1."""
    sums = reference.gemm(a, w, bias=bias).rounded("float32")
    parts = np.split(sums, len(alphas), axis=-1)
    return [part * np.float32(alpha) for part, alpha in zip(parts, alphas, strict=True)]


def check_bytes(
    got, offsets, a, stack, scale=None, alphas=(1.0, 1.0), inverse=None, bias=None, **gating
):
    """Each expert's rows as quantize's model makes them; rows of nobody are as they were.

    alphas: of gates and of ups, or of sums the first.
    gating: activation and limit, as reference.gated and reference.alone take them.
    """
    made = reference.gated if stack.parts == 2 else reference.alone
    owner = expert_of(offsets, len(a))
    for part in got:
        assert (part[owner < 0] == UNWRITTEN).all()
    for g, w in enumerate(stack.values):
        rows = slice(offsets[g], offsets[g + 1])
        shape = len(stack.values), stack.n
        of_expert = [np.broadcast_to(of, shape)[g] for of in alphas[: stack.parts]]
        with np.errstate(all="ignore"):
            x = made(*parts_of(a[rows], w, of_expert, 0.0 if bias is None else bias[g]), **gating)
        want = reference.quantize(x, scale, inverse=inverse)
        np.testing.assert_array_equal(got[1][rows], want[1], str(g))
        np.testing.assert_array_equal(got[0][rows], want[0], str(g))


def check_interval(got, offsets, expected_of, scale=None):
    for g in range(len(offsets) - 1):
        rows = slice(offsets[g], offsets[g + 1])
        wrong = encoded.check(got[0][rows], got[1][rows], expected_of(g, rows), scale)
        assert wrong is None, (g, wrong)
