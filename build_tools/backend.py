"""setuptools as PEP 517 backend; asks for compiler wheels where kernels are wanted without nvcc."""

import kernels
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def _compiler() -> list[str]:
    return kernels.WHEELS if kernels.wanted() and not kernels.find_nvcc() else []


def get_requires_for_build_wheel(config_settings=None):
    return build_meta.get_requires_for_build_wheel(config_settings) + _compiler()


def get_requires_for_build_editable(config_settings=None):
    return build_meta.get_requires_for_build_editable(config_settings) + _compiler()
