"""The mark of tests that compile kernels."""

import pytest

from . import build

_PROGRAMS = {"cc": build.find_cc(), "nvcc": build.find_nvcc()}
_MISSING = [name for name, path in _PROGRAMS.items() if not path]
COMPILES = pytest.mark.skipif(bool(_MISSING), reason=f"no {' and no '.join(_MISSING)}")
