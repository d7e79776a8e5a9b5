"""gemm, gemv and dual_gemm of drawn operands, for the tests of operators and tiles."""

from generators import codes, layout_of, rng_of, run, scales

import nvfp4kern
from nvfp4kern.verify import reference

LINEAR = ("linear", "linear")


def operands(rng, make, rows, k, batch=None, **options):
    """One of each number of rows."""
    lead = () if batch is None else (batch,)
    return [make(rng, *lead, m, k, **options) for m in rows]


def gemm_operands(rng, make, m, n, k, batch=None, **options):
    return operands(rng, make, (m, n), k, batch, **options)


def gemv_operands(rng, make, m, k, batch=None):
    return operands(rng, make, (m, 1), k, batch)


def dual_operands(rng, make, m, n, k, batch=None, **options):
    return operands(rng, make, (m, n, n), k, batch, **options)


def run_dense(function, ops, device, *, forms=LINEAR, byte=None, **options):
    """The values of an operator's guarded output."""
    of_each = (forms[0], *[forms[1]] * (len(ops) - 1))
    sf = [scales(o, form, rng_of(9), device, byte) for o, form in zip(ops, of_each, strict=True)]
    layout = tuple(map(layout_of, forms))
    options["scale_layout"] = layout[0] if layout[0] == layout[1] else layout
    shape = (*ops[0].codes.shape[:-1], ops[1].codes.shape[-2])
    given = [codes(o, device) for o in ops]
    return run(function, *given, *sf, shape=shape, device=device, **options)


def run_gemm(a, b, device, **options):
    return run_dense(nvfp4kern.gemm, (a, b), device, **options)


def run_gemv(a, b, device, **options):
    return run_dense(nvfp4kern.gemv, (a, b), device, **options)


def run_dual(ops, device, **options):
    return run_dense(nvfp4kern.dual_gemm, ops, device, **options)


def expect_dual(ops, **options):
    return reference.dual_gemm(*(o.values for o in ops), **options)
