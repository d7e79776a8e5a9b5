"""How much anonymous memory a process takes meanwhile: files mapped into it are the system's."""

import re
import threading
import time
from pathlib import Path

FOUND = f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"
"""With this a program given by -c finds this module."""


def anonymous(process):
    """0 of one that has ended."""
    try:
        said = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"RssAnon:\s+(\d+)", said)
    return int(found[1]) * 1024 if found else 0


class Peak:
    """`grown` is how far it rose inside of a with statement, in bytes: of this process, or of a
    child that has not been waited for. `look` is called as often as memory is looked at; what it
    raises, the with statement does."""

    def __init__(self, process="self", look=lambda: None):
        self.process, self.look, self.error = process, look, None

    def __enter__(self):
        self.before = self.most = anonymous(self.process)
        self.done = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()
        return self

    def watch(self):
        try:
            while not self.done.is_set():
                self.sample()
                time.sleep(0.001)
            self.sample()
        except BaseException as error:
            self.error = error

    def sample(self):
        self.most = max(self.most, anonymous(self.process))
        self.look()

    def __exit__(self, *error):
        self.done.set()
        self.watcher.join()
        if self.error is not None:
            raise self.error

    @property
    def grown(self):
        return self.most - self.before
