"""Every operator on the device against the float64 oracle: the cases of `python -m nvfp4kern`."""

from functools import partial
from itertools import islice

import nvfp4kern

from ..verify.cases import OPERATORS, cases
from . import on_device


def _checked(case, device):
    name, arguments, options = case.explain
    arguments, options = on_device.to_device((arguments, options), device)
    function = getattr(nvfp4kern, name)
    result = on_device.to_host(function(*arguments, **options))
    plan = on_device.planned(function, arguments, options)
    verdict = case.judge(result, c=on_device.C["cpu" if plan["backend"] == "cpu" else "cuda"])
    return on_device.short(plan) | on_device.judged(verdict)


def items(device, extent, some=OPERATORS):
    for operator in some:
        found = cases(operator, extent == "all")
        for case in islice(found, 1) if extent == "quick" else found:
            yield f"{operator} {case.shape}", partial(_checked, case, device)
