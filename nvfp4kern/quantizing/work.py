"""The folder in which a run works beside its target: what it did survives a kill."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checkpoint.files import INCOMPLETE
from .shards import fsync

__all__ = ["Work"]


class Work:
    """`.NAME.incomplete-quantize` beside the target: `settings.json`, `done` and `folder`.

    `settings.json` says what the run is of, `done` how many steps it has made, a line each time.
    `folder` becomes the target by one rename.

    Raises FileExistsError for a target with files, and for work of other settings. Raises
    BlockingIOError where another process works there.
    """

    def __init__(self, target: Path, settings: dict[str, Any]) -> None:
        self.target = Path(os.path.realpath(target))
        self.path = self.target.parent / f".{self.target.name}{INCOMPLETE}quantize"
        self.folder = self.path / "folder"
        if self._published():
            if self.path.is_dir() and not self.folder.exists():  # killed after its rename
                shutil.rmtree(self.path, ignore_errors=True)
            raise FileExistsError(f"{target} is there already, expected a new or empty directory")
        self.path.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(
            self.path / "done", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        try:
            self._begin(json.dumps(settings, indent=1))
        except BaseException:
            self.close()
            raise

    def _published(self) -> bool:
        there = self.target.is_symlink() or self.target.exists()
        return there and (not self.target.is_dir() or any(self.target.iterdir()))

    def _begin(self, settings: str) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what = "another process is quantising into it"
            raise BlockingIOError(error.errno, what, str(self.target)) from None
        file = self.path / "settings.json"
        if file.exists():
            was, now = json.loads(file.read_text()), json.loads(settings)
            differ = ", ".join(key for key in now if was.get(key) != now[key])
            if differ:
                what = f"is of a run with other settings ({differ}); delete it to begin again"
                raise FileExistsError(f"{self.path} {what}")
        else:
            self.folder.mkdir(exist_ok=True)
            _write(file, settings)

    def once(self, name: str, make: Callable[[Path], Any]) -> Any:
        """What `make` makes, a value of JSON, the first time. It gets a folder that it may use."""
        file = self.path / f"{name}.json"
        if not file.exists():
            scratch = self.path / "scratch"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            _write(file, json.dumps(make(scratch)))
            shutil.rmtree(scratch)
        return json.loads(file.read_text())

    def done(self) -> int:
        """Steps whose results are on the disk."""
        lines = (self.path / "done").read_text().split("\n")[:-1]  # what follows is a torn line
        return int(lines[-1]) if lines else 0

    def record(self, steps: int) -> None:
        """Call it when their results are on the disk."""
        os.write(self._fd, f"{steps}\n".encode())
        os.fsync(self._fd)

    def publish(self) -> None:
        """Makes the folder the target, complete."""
        for path in self.folder.rglob("*"):
            fsync(path)
        fsync(self.folder)
        self.folder.replace(self.target)  # an empty directory may be there
        fsync(self.target.parent)
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _write(file: Path, text: str) -> None:
    """All of it, or nothing."""
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    fsync(temporary)
    temporary.replace(file)
    fsync(file.parent)
