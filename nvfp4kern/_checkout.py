"""Running from a checkout: Python files are here, the extension is in the installed copy."""

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def hash_of(csrc: Path) -> str:
    """Of every C and CUDA file, by path and content: the build stamps it into the extension."""
    digest = hashlib.sha256()
    for path in sorted(path for path in csrc.rglob("*.*") if path.is_file()):
        digest.update(f"{path.relative_to(csrc).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _has_extension(folder: Path) -> bool:
    return any(folder.glob("_C.*.so"))


def extend(path: list[str]) -> None:
    """Adds the installed copy's folder to the package's `path` where the extension is not here."""
    if _has_extension(HERE):
        return
    for folder in map(Path, sys.path):
        installed = folder / HERE.name
        if installed.resolve() != HERE.resolve() and _has_extension(installed):
            path.append(str(installed))
            return


def check(sources: str) -> None:
    """ImportError where the extension lies elsewhere and was not built of this checkout's csrc."""
    csrc = HERE.parent / "csrc"
    if _has_extension(HERE) or not csrc.is_dir() or hash_of(csrc) == sources:
        return
    raise ImportError(
        f"nvfp4kern: the installed extension was built from other sources than {csrc}: "
        f"reinstall (pip install {HERE.parent})"
    )
