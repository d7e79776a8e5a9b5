"""What is left of a text that others may read."""

import re

PATHS = re.compile(r"(?<![\w.])/(?:[^\s/:'\"]+/)+")


def without_paths(text):
    """The same, with names of files but not of folders, which may name a user."""
    return PATHS.sub("", text)
