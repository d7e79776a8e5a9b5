"""Tests of a module that states a compute capability begin with a simulated GPU of it, and without
findings."""

import pytest


@pytest.fixture(autouse=True)
def fresh(request):
    capability = getattr(request.module, "CAPABILITY", None)
    if capability is None:
        return
    from . import build, gpu

    if not build.find_cc():
        pytest.skip("no C compiler")
    gpu.configure(cc=capability)
    gpu.clear()
