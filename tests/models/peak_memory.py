"""How much anonymous memory this process takes meanwhile: files mapped into it are the system's."""

import re
import threading
import time
from pathlib import Path

FOUND = f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"
"""With this a program given by -c finds this module."""


def anonymous():
    with open("/proc/self/status") as lines:
        return int(re.search(r"RssAnon:\s+(\d+)", lines.read())[1]) * 1024


class Peak:
    """`grown` is how far it rose inside of a with statement, in bytes."""

    def __enter__(self):
        self.before = self.most = anonymous()
        self.done = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()
        return self

    def watch(self):
        while not self.done.is_set():
            self.most = max(self.most, anonymous())
            time.sleep(0.001)

    def __exit__(self, *error):
        self.done.set()
        self.watcher.join()
        self.most = max(self.most, anonymous())

    @property
    def grown(self):
        return self.most - self.before
