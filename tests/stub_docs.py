"""Writes the docstrings of the extension into its stub, where editors read them: the extension has
them from csrc/python/py_docs.h.

python tests/stub_docs.py
"""

import ast
import inspect
from pathlib import Path

from nvfp4kern import _C

STUB = Path(__file__).parents[1] / "nvfp4kern" / "_C.pyi"


def docstring(name):
    """As the body of a function in the stub."""
    lines = inspect.getdoc(getattr(_C, name)).splitlines()
    quoted = [f'    """{lines[0]}', *(f"    {line}".rstrip() for line in lines[1:])]
    return [quoted[0] + '"""'] if len(lines) == 1 else [*quoted, '    """']


def first_definitions(text):
    """{name: AST node}; of several overloads the first, which has the docstring."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, node)
    return found


def documented(text):
    """The stub with every docstring."""
    lines = text.splitlines()
    for name, node in reversed(first_definitions(text).items()):
        body = node.body[0]
        head = lines[body.lineno - 1][: body.col_offset].rstrip()
        begin = body.lineno - 1
        lines[begin : node.end_lineno] = [head] * bool(head) + docstring(name)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    STUB.write_text(documented(STUB.read_text()))
