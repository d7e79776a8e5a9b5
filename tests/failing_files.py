"""Files that fail: `python tests/failing_files.py --seed S --count N --only TEXT`.

While a small checkpoint is loaded or saved, the n-th call of the C library for a file fails, or
reads and writes less than it was asked for. Then the model and the directory are as before or
complete. An error names the file, and no file stays open.
"""

import errno
import os
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import campaign
from faults import CLOSE, MAP, NAME, OPEN, READ, SHORT, STAT, WRITE, during, preloaded
from interrupted import subjects

KINDS = {
    "open": (OPEN, (errno.EIO, errno.EMFILE, errno.EACCES, errno.EINTR)),
    "read": (READ, (errno.EIO, errno.EINTR, SHORT)),
    "write": (WRITE, (errno.ENOSPC, errno.EIO, errno.EINTR, SHORT)),
    "stat": (STAT, (errno.EIO, errno.EACCES)),
    "map": (MAP, (errno.ENOMEM, errno.ENODEV)),
    "name": (NAME, (errno.EIO, errno.ENOSPC, errno.EACCES)),
    "close": (CLOSE, (errno.EIO,)),
}
LASTING = WRITE | MAP
"""What may fail for good. The others are needed to take back what has been done."""
TORCH_LEAVES_IT_OPEN = "unable to mmap"


def open_files():
    return len(os.listdir("/proc/self/fd"))


def fail(subject, kinds, n, count, error, roots):
    before = open_files()
    _, raised, _, what = during(subject.run, kinds, n, n + count - 1, error)
    said, known = str(raised), isinstance(raised, (OSError, ValueError, MemoryError))
    path = what.split(" ", 1)[-1]
    if raised is not None:
        if not known:
            yield f"raised {raised!r} after {what}"
        of_ours = any(path.startswith(str(root)) for root in roots)
        if of_ours and not isinstance(raised, MemoryError) and not named(raised, path):
            yield f"{type(raised).__name__}: {said} does not name it, after {what}"
        raised.__traceback__ = raised.__context__ = None
        finished = False
    else:
        finished = True
    raised = None
    for wrong in subject.wrong(finished):
        yield f"{wrong}; {said} after {what}"
    if open_files() > before and TORCH_LEAVES_IT_OPEN not in said:
        yield f"{open_files() - before} files are open; {said} after {what}"


def named(error, path):
    """Whether an error has the name of a file, or of the directory that it shall become one of."""
    return any(part in str(error) for part in (Path(path).name, Path(path).parent.name) if part)


def points(make, kind, roots):
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    subject = make()
    bits, errors = KINDS[kind]
    *_, total, _ = during(subject.run, bits)
    assert not list(subject.wrong(finished=True))
    for n in range(1, total + 1):
        for error in errors:
            lasts = bits & LASTING and error not in (errno.EINTR, SHORT)
            for count in (1, 10**9) if lasts else (1,):
                said = "short" if error == SHORT else errno.errorcode[error]
                name = f"{kind} {n} of {total}, {said}, {'once' if count == 1 else 'always'}"
                yield name, partial(fail, subject, bits, n, count, error, roots)


def main():
    preloaded()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        cases = {
            f"{kind}: {name}": partial(points, make, kind, (folder,))
            for name, make in subjects(folder).items()
            if name.startswith(("load", "save"))
            for kind in KINDS
        }
        return campaign.main(__doc__, cases, count=40)


if __name__ == "__main__":
    sys.exit(main())
