"""Tests of a module that states a compute capability begin with a simulated GPU of it, and without
findings."""

import pytest
from ptxsim import build, gpu


@pytest.fixture(autouse=True)
def fresh(request):
    capability = getattr(request.module, "CAPABILITY", None)
    if capability and not build.find_cc():
        pytest.skip("no C compiler")
    if capability:
        gpu.configure(cc=capability)
        gpu.clear()
