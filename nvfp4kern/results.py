"""JSON files of results, one row a line: a change shows the rows that changed."""

import json
import os
from pathlib import Path


def text(value, depth=2, pad="\n "):
    """What lies so deep, or deeper, is on one line, as is a list of numbers."""
    of_dict, rows = isinstance(value, dict), value
    if of_dict:
        rows = value.values()
    elif not isinstance(value, list | tuple) or not {*map(type, value)} & {dict, list, tuple}:
        depth = 0
    if not depth or not value:
        return json.dumps(value)
    lines = [text(row, depth - 1, pad + " ") for row in rows]
    if of_dict:
        lines = [f"{json.dumps(key)}: {line}" for key, line in zip(value, lines, strict=True)]
    opening, closing = "{}" if of_dict else "[]"
    return f"{opening}{pad}{(',' + pad).join(lines)}{pad[:-1]}{closing}"


def write(path, value, depth=2):
    """At once: who is interrupted has the file of before, or this one."""
    path, content = Path(path), text(value, depth) + "\n"
    if path.exists() and not path.is_file():  # /dev/stdout
        path.write_text(content)
    else:
        new = path.with_name(f"{path.name}.new")
        new.write_text(content)
        os.replace(new, path)
