"""gemm, gemv and dual_gemm of drawn operands, for the tests of operators and tiles."""

from generators import Halves, elements, layout_of, rng_of, run, scales

import nvfp4kern
from nvfp4kern.verify import data, reference

LINEAR = ("linear", "linear")
NO_WEIGHTS_AT = -3
"""The byte of two codes that are 0 where uneven() has tiny values."""


def operands(rng, make, rows, k, batch=None, **options):
    """One of each number of rows."""
    lead = () if batch is None else (batch,)
    return [make(rng, *lead, m, k, **options) for m in rows]


def gemm_operands(rng, make, m, n, k, batch=None, **options):
    return operands(rng, make, (m, n), k, batch, **options)


def uneven(rng, dtype, m, k):
    """Tokens whose parts of K fp16 can hold times different powers of two, and a part that it
    cannot."""
    x = data.small_integers(rng, m, k)
    x[:, : k // 4] *= 8
    x[:, k // 2 :] /= 8
    if dtype == "bfloat16":
        x[:, k // 2 : 3 * k // 4] = 0
        x[:, 2 * NO_WEIGHTS_AT] = 2.0**-100
    return Halves(x, dtype)


def gemv_operands(rng, make, m, k, batch=None):
    return operands(rng, make, (m, 1), k, batch)


def dual_operands(rng, make, m, n, k, batch=None, **options):
    return operands(rng, make, (m, n, n), k, batch, **options)


def call_of(ops, device, *, forms=LINEAR, byte=None, place=elements, **options):
    """(arguments, options) of a call. `place` makes the operands' elements."""
    of_each = (forms[0], *[forms[1]] * (len(ops) - 1))
    sf = [scales(o, form, rng_of(9), device, byte) for o, form in zip(ops, of_each, strict=True)]
    layout = tuple(map(layout_of, forms))
    options["scale_layout"] = layout[0] if layout[0] == layout[1] else layout
    return [*(place(o, device) for o in ops), *sf], options


def explain(operator, ops, device, **how):
    args, options = call_of(ops, device, **how)
    return nvfp4kern.explain(operator, *args, **options)


def run_dense(function, ops, device, **how):
    """The values of an operator's guarded output."""
    args, options = call_of(ops, device, **how)
    shape = (*args[0].shape[:-1], args[1].shape[-2])
    return run(function, *args, shape=shape, device=device, **options)


def run_gemm(a, b, device, **options):
    return run_dense(nvfp4kern.gemm, (a, b), device, **options)


def run_gemv(a, b, device, **options):
    return run_dense(nvfp4kern.gemv, (a, b), device, **options)


def run_dual(ops, device, **options):
    return run_dense(nvfp4kern.dual_gemm, ops, device, **options)


def expect_dual(ops, **options):
    return reference.dual_gemm(*(o.values for o in ops), **options)
