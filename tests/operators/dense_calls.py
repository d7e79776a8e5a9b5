"""gemm, gemv and dual_gemm of drawn operands, for the tests of operators and tiles."""

from generators import (
    codes,
    layout_of,
    rng_of,
    run,
    scales,
)

import nvfp4kern
from nvfp4kern.verify import reference


def gemm_operands(rng, make, m, n, k, batch=None, **options):
    lead = () if batch is None else (batch,)
    return make(rng, *lead, m, k, **options), make(rng, *lead, n, k, **options)


def run_gemm(a, b, device, *, forms=("linear", "linear"), rng=None, byte=None, **options):
    rng = rng or rng_of(9)
    shape = (*a.codes.shape[:-1], b.codes.shape[-2])
    sf = [scales(o, form, rng, device, byte) for o, form in zip((a, b), forms, strict=True)]
    layout = tuple(layout_of(form) for form in forms)
    return run(
        nvfp4kern.gemm,
        codes(a, device),
        codes(b, device),
        *sf,
        shape=shape,
        device=device,
        scale_layout=layout if layout[0] != layout[1] else layout[0],
        **options,
    )


def gemv_operands(rng, make, m, k, batch=None):
    lead = () if batch is None else (batch,)
    return make(rng, *lead, m, k), make(rng, *lead, 1, k)


def run_gemv(a, b, device, *, forms=("linear", "linear"), byte=None, **options):
    sf = [scales(o, form, rng_of(9), device, byte) for o, form in zip((a, b), forms, strict=True)]
    layout = tuple(layout_of(form) for form in forms)
    return run(
        nvfp4kern.gemv,
        codes(a, device),
        codes(b, device),
        *sf,
        shape=(*a.codes.shape[:-1], 1),
        device=device,
        scale_layout=layout,
        **options,
    )


def dual_operands(rng, make, m, n, k, batch=None, **options):
    lead = () if batch is None else (batch,)
    return [make(rng, *lead, rows, k, **options) for rows in (m, n, n)]


def run_dual(ops, device, *, forms=("linear", "linear"), byte=None, **options):
    forms = (forms[0], forms[1], forms[1])
    sf = [scales(o, form, rng_of(9), device, byte) for o, form in zip(ops, forms, strict=True)]
    shape = (*ops[0].codes.shape[:-1], ops[1].codes.shape[-2])
    return run(
        nvfp4kern.dual_gemm,
        *(codes(o, device) for o in ops),
        *sf,
        shape=shape,
        device=device,
        scale_layout=(layout_of(forms[0]), layout_of(forms[1])),
        **options,
    )


def expect_dual(ops, **options):
    return reference.dual_gemm(*(o.values for o in ops), **options)
