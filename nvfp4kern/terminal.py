"""How wide tables are printed."""

import os
import sys

PIPED = 190


def width() -> int | None:
    """Of a console: the terminal's (None). Where output is piped, so wide that no row wraps, unless
    COLUMNS says otherwise."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return PIPED if piped else None
