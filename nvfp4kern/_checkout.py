"""The compiled extension `_C` of a package that may be imported from its source tree.

An install has `_C` beside its Python files; a clone has none and takes the installed copy's. Where
its sources lie beside the package, `_C` must have been built of them.
"""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

PACKAGE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(PACKAGE)
ENDINGS = (".c", ".h", ".cu", ".cuh", ".py")


def hash_of(root: str) -> str:
    """A hash of the C and CUDA files and of what generates and builds others, by path and content.
    The build stamps it into `_C`."""
    import hashlib  # here: an install never needs it

    found = []
    for place in ("csrc", "build_tools"):
        for folder, _, names in os.walk(os.path.join(root, place)):
            found += [os.path.join(folder, name) for name in names if name.endswith(ENDINGS)]
    digest = hashlib.sha256()
    for path in sorted(found):
        with open(path, "rb") as file:
            digest.update(os.path.relpath(path, root).encode() + b"\n" + file.read())
    return digest.hexdigest()[:16]


def extend(path: list[str]) -> None:
    """Appends the installed copy's folder to `path`, the package's, where `_C` is not here."""
    if _has_extension(PACKAGE):
        return
    for entry in filter(lambda entry: isinstance(entry, str), sys.path):
        folder = os.path.join(os.path.abspath(entry), "nvfp4kern")
        if _has_extension(folder):
            path.append(folder)
            return
    raise ImportError(
        f"nvfp4kern: {PACKAGE} has no compiled extension _C, and no nvfp4kern in sys.path has one; "
        f"install it: {_command()}"
    )


def check(extension: ModuleType) -> None:
    """ImportError where `extension` was not built of the sources beside the package."""
    if not _has_sources():
        return
    if getattr(extension, "_sources", None) != hash_of(ROOT):
        raise ImportError(
            f"nvfp4kern: {extension.__file__} was built of other sources than those in {ROOT}; "
            f"reinstall it: {_command()}"
        )


def _has_extension(folder: str) -> bool:
    return any(os.path.isfile(os.path.join(folder, "_C" + end)) for end in EXTENSION_SUFFIXES)


def _has_sources() -> bool:
    return os.path.isfile(os.path.join(ROOT, "csrc", "nvfp4kern.h"))


def _command() -> str:
    """Builds `_C` where it was looked for: an editable install has it in the source tree."""
    if not _has_sources():
        return "pip install --force-reinstall WHEEL, or CLONE, whatever it came from"
    return f"pip install {'-e ' if _has_extension(PACKAGE) else ''}{ROOT}"
