"""Clocks, power and temperature of the GPU while sections run."""

import threading
import time

from .. import machine

QUERIES = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
PERIOD = {"quick": 2, "usual": 5, "all": 10}
"""Seconds from a sample to the next."""


def _number(text):
    """Of a text with a unit; None where the GPU does not say."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return None


class Clocks:
    """A thread that appends [seconds, section, MHz, MHz of memory, W, degrees Celsius] to a list
    while it is entered. `gpu`: what nvidia-smi knows it by."""

    def __init__(self, samples, period, gpu):
        self.samples, self.period, self.gpu, self.section = samples, period, gpu, ""
        self.over = threading.Event()
        self.begin = time.monotonic() - (samples[-1][0] if samples else 0)
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self):
        while True:
            section, found = self.section, machine.nvidia_smi(QUERIES, f"--id={self.gpu}")
            if not found:
                return
            at = round(time.monotonic() - self.begin, 1)
            self.samples.append([at, section, *map(_number, found[0].values())])
            if self.over.wait(self.period):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(5)


def by_section(samples):
    """{section: (lowest and highest clock in MHz, highest W)} of those that were sampled."""
    found = {}
    for _, section, clock, _, power, _ in samples:
        if section and clock is not None:
            low, high, most = found.get(section, (clock, clock, 0.0))
            found[section] = min(low, clock), max(high, clock), max(most, power or 0.0)
    return found
