"""Writes the files that say what operators.py says.

python build_tools/generate.py writes the Python files, which are committed, since a clone is
imported as it is. A build writes the C files into its own folder.
"""

import textwrap
from pathlib import Path

import operators as table
from operator_kinds import OPERATORS, WORDS

ROOT = Path(__file__).parents[1]
BY = "Written by build_tools/generate.py from operators.py; do not edit"
NAMES = [o.name for o in OPERATORS]


def packed(items, width, indent, closing=""):
    """Items with commas between, in as few lines as they take."""
    text = ", ".join(item.replace(" ", "\0") for item in items) + closing
    lines = textwrap.wrap(text, width - len(indent), break_long_words=False, break_on_hyphens=False)
    return "\n".join(indent + line.replace("\0", " ") for line in lines)


def required(parameter):
    return parameter.default is parameter.empty


def starred(op, texts):
    """The texts of an operator's parameters, with the star before those that are keywords."""
    found, first = [], True
    for p, text in zip(op.parameters, texts, strict=True):
        if p.kind is p.KEYWORD_ONLY and first:
            found, first = [*found, "*"], False
        found.append(text)
    return found


def words_of(doc):
    """A docstring without what its placeholders stand for, in paragraphs."""
    for mark, text in table.SHARED.items():
        doc = doc.replace(mark, text)
    return doc.replace("{operators}", " ".join(NAMES))


def doc_of(op):
    return words_of(f"{op.doc}\n\n{{errors}}")


# --- py_operators.h and .c, py_docs.h ---


def c_header():
    drop_ins = [f"competition_{name}" for name in table.DROP_INS]
    lines = ["#pragma once", '#include "python/py_invoke.h"']
    for macro, names in {"PY_OPERATORS": NAMES, "PY_DROP_INS": drop_ins}.items():
        lines.append(f"#define {macro}(X) {' '.join(f'X({name})' for name in names)}")
        lines += [f"extern const py_operator py_{name};" for name in names]
    for op in OPERATORS:
        if op.run != "py_run_one":
            places = ", ".join(f"PY_{op.name}_{p.name}".upper() for p in op.parameters)
            lines += [f"py_runner {op.run};", f"enum {{{places}}};"]
    return "\n".join([*lines, ""])


def c_docs():
    """inspect.signature() reads their first lines."""
    docs = [(op.name, text_signature(op), doc_of(op)) for op in OPERATORS]
    docs += [(name, signature, words_of(doc)) for name, signature, _, doc in table.OTHERS]
    drop_ins = table.DROP_INS.items()
    docs += [(f"competition_{name}", "($module, /, data)", doc) for name, doc in drop_ins]
    texts = {name: f"{name}{signature}\n--\n\n{doc}\n" for name, signature, doc in docs}
    return "".join(f"static const char py_doc_{n}[] = {c_string(t)};\n" for n, t in texts.items())


def c_string(text):
    """A literal for each line."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return "\n".join(f'"{line}\\n"' for line in quoted.splitlines())


def text_signature(op):
    texts = [p.name if required(p) else f"{p.name}={p.default!r}" for p in op.parameters]
    return f"($module, /, {', '.join(starred(op, texts))})"


NK_DTYPES = {None: "NK_OTHER", "float16": "NK_F16"}


def c_default(p):
    """The member's value where the argument is not given, if that is not 0."""
    kind = p.annotation.c
    if kind.startswith("PY_SCALAR"):
        return ".value = 1"
    if kind == "PY_OUT_DTYPE":
        return f" = {NK_DTYPES[p.default]}"
    if kind == "PY_FLOAT_OR_NONE":
        return " = INFINITY"
    if kind == "PY_COUNT_OR_NONE":
        return " = -1"
    if kind in ("PY_INT", "PY_FLOAT") and not required(p) and p.default:
        return f" = {p.default!r}" + "f" * (kind == "PY_FLOAT")
    return ""


TENSORS = "PY_TENSOR", "PY_OPTIONAL", "PY_SCALAR"
"""Kinds for which py_read makes a tensor."""


def c_operator(op):
    rows, defaults, outputs = [], [op.defaults] if op.defaults else [], 0
    for i, p in enumerate(op.parameters):
        kind, member = p.annotation, op.members.get(p.name, op.prefix + p.name)
        if kind.c == "PY_LAYOUTS":
            member = f"{op.prefix}sfa_layout"
        if c_default(p):
            defaults.append(f".{member}{c_default(p)}")
        outputs = i if kind.c == "PY_OUT" else outputs
        if kind.c == "PY_OWN":
            rows.append(f"OWN({p.name})")
        else:
            words = f", {kind.words}_words" if kind.words else ", NULL"
            rows.append(f"P({p.name}, {kind.c[3:]}, {member}{words})")
    fields = [
        f'.name = "{op.name}"', f".required = {sum(map(required, op.parameters))}",
        f".positional = {sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in op.parameters)}",
        ".size = sizeof(ARGS)", f".defaults = &(const ARGS){{{', '.join(defaults) or '0'}}}",
        f".run = {op.run}", f".parameters = (const py_parameter[]){{{', '.join([*rows, '{0}'])}}}",
    ]  # fmt: skip
    if outputs:
        fields += [f".out = {outputs}", f".spec = spec_{op.function}", f".op = run_{op.function}"]
    tensors = 1 + sum(p.annotation.c.startswith(TENSORS) for p in op.parameters)  # the output, too
    before = f"#define ARGS nk_{op.args}_args", f"FITS(ARGS, {len(rows)}, {tensors})"
    lines = f"const py_operator py_{op.name} = {{", *(f"    {field}," for field in fields), "};"
    return "\n".join([*before, *lines, "#undef ARGS"])


C_SOURCE = """\
#include "py_operators.h"

#include "python/py_output.h"
#include "python/py_read.h"

#include <math.h>

#define P(name, kind, member, words) {#name, PY_##kind, offsetof(ARGS, member), words}
#define OWN(name) {#name, PY_OWN, 0, NULL}
#define FITS(type, count, tensors) \\
    _Static_assert(sizeof(type) <= PY_ARGS_BYTES, "py_run_one has room for it"); \\
    _Static_assert(count < PY_MAX_ARGS, "py_invoke has room for them"); \\
    _Static_assert(tensors <= PY_MAX_TENSORS, "py_read has room for them");
"""


def c_source():
    adapted = dict.fromkeys(
        op.function for op in OPERATORS if any(p.annotation.c == "PY_OUT" for p in op.parameters)
    )
    lines = [f"PY_ADAPT({name})" for name in adapted]
    for name, (of, prefix) in WORDS.items():
        words = ", ".join([*(f'[NK_{prefix}{word.upper()}] = "{word}"' for word in of), "NULL"])
        lines.append(f"static const char *const {name}_words[] = {{{words}}};")
    return "\n".join([C_SOURCE, *lines, *map(c_operator, OPERATORS), ""])


# --- nvfp4kern/_C.pyi ---

STUB = f'''\
# {BY}.
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

import torch
from numpy.typing import NDArray

from .layout import NVFP4
from .types import (
    Activation,
    ActivationAlone,
    Backend,
    CodesDtype,
    GateUp,
    Layout,
    Layouts,
    OutDtype,
    Scalar,
    ScaleRecipe,
    Score,
    Tensor,
)

# A result is of the kind of the first argument, or it is `out`. The type of a NumPy array says its
# dtype, which a result does not share.
_A = TypeVar("_A", Tensor, torch.Tensor, NDArray[Any])

__version__: str
_sources: str  # the hash of the files that this was built of

class BackendError(RuntimeError):
    """What this machine or this build of nvfp4kern cannot do."""
'''


def python_default(value):
    return f'"{value}"' if isinstance(value, str) else repr(value)


def declared(op, hint_of, overload=()):
    """The parameters with hints and defaults."""
    texts = []
    for p in op.parameters:
        hint, default = hint_of(p), "" if required(p) else f" = {python_default(p.default)}"
        texts.append(f"{p.name}: {overload[p.name] if p.name in overload else hint + default}")
    return starred(op, texts)


def quoted_doc(doc):
    lines = f'"""{doc}'.splitlines()
    body = "\n".join(f"    {line}".rstrip() for line in lines)
    return body + ('"""' if len(lines) == 1 else '\n    """')


def stub_hint(op):
    first = next(iter(op.parameters))
    return lambda p: "_A" if p is first and p.annotation.hint == "Tensor" else p.annotation.hint


def stub():
    parts = [STUB]
    for op in OPERATORS:
        doc = quoted_doc(doc_of(op))
        for i, overload in enumerate(op.overloads or [{}]):
            mark = "@overload\n" if op.overloads else ""
            texts = declared(op, stub_hint(op), overload)
            returns = overload.get("returns", op.returns)
            head = mark + in_lines(f"def {op.name}", texts, f" -> {returns}:")
            parts.append(head + (" ..." if i else f"\n{doc}\n"))
    for name, _, declaration, doc in table.OTHERS:
        parts.append(f"def {name}{declaration}:\n{quoted_doc(words_of(doc))}\n")
    for name, doc in table.DROP_INS.items():
        result = "list[torch.Tensor]" if name == "group_gemm" else "torch.Tensor"
        head = f"def competition_{name}(data: tuple[Any, ...]) -> {result}:"
        parts.append(f"{head}\n{quoted_doc(doc)}\n")
    return "\n".join(parts)


# --- nvfp4kern/torch/generated.py ---

TORCH = f'''\
"""The operators' schemas, kernels and functions.

{BY}."""

from typing import TypeAlias

import torch
from torch import Tensor

from .. import _C
from ..types import Activation, DtypeName, Layout, Layouts
from ..whole import layout_of
from .arguments import dtype_of, either, number, one, pair, parts

Scalar: TypeAlias = float | Tensor
OutDtype: TypeAlias = DtypeName | torch.dtype | None
_OPS = torch.ops.nvfp4kern
'''


def schema_of(op, registered):
    """The schema's arguments, in its order: (type and name, default or "")."""
    found = []
    for name in registered.arguments.split():
        p = op.signature.parameters[name.rstrip("!")]
        schema = p.annotation.schema.format(p.name)
        if name.endswith("!"):
            schema = schema.replace("? ", " ")
        elif "=" not in schema and not required(p):
            schema += f"={python_default(p.default)}"
        found += [part.partition("=")[::2] for part in schema.split(", ")]
    last = max(i for i, (_, default) in enumerate(found) if not default)
    return [(text, default if i > last else "") for i, (text, default) in enumerate(found)]


def in_lines(head, items, end, indent=""):
    """`head(items)end`, in one line or several."""
    line = f"{indent}{head}({', '.join(items)}){end}".replace(", )", ",)")
    if len(line) <= 100:
        return line
    return f"{indent}{head}(\n{packed(items, 100, indent + '    ', ',')}\n{indent}){end}"


def kernel(op, registered, schema):
    """The same call on every device. The dispatcher leaves out trailing defaults."""
    given = registered.arguments.replace("!", "").split()
    options = [name for name, value in registered.fixed.items() if value is False]
    own = [text.split()[-1] + f"={default}" * bool(default) for text, default in schema]
    own += [f"{registered.dtype}=None"] * bool(registered.dtype)
    values = []
    for p in op.parameters:
        if p.name in given:
            value = p.annotation.kernel.format(p.name)
        elif p.name in (*options, "out", registered.dtype):
            value = p.name
        elif p.name in registered.fixed:
            value = python_default(registered.fixed[p.name])
        else:
            continue
        values.append(value if p.kind is p.POSITIONAL_OR_KEYWORD else f"{p.name}={value}")
    head = [*own, "*", *(f"{name}=False" for name in options), "out=None"]
    end = f"[:{len(registered.outputs)}]" if registered.dtype == "data_dtype" else ""
    call = in_lines(f"return _C.{op.name}", values, end, "    ")
    return f"{in_lines(f'def _{registered.name}', head, ':')}\n{call}\n"


def function(op):
    """The function of nvfp4kern.torch."""

    def hint(p):
        return stub_hint(op)(p).replace("_A", "Tensor")

    texts = declared(op, hint, {"out_dtype": "OutDtype = None"})
    given = [p for p in op.parameters if p.name not in ("out", "out_dtype")]
    args = [p.annotation.call.format(p.name) for p in given]
    args += [""] * (len(args) == 1)
    dtype = ["dtype_of(out_dtype, out)"] * ("out_dtype" in op.signature.parameters)
    ops = f"_OPS.{op.name}.default", f"_OPS.{op.name}_out.default"
    head = in_lines(f"def {op.name}", texts, " -> Tensor:")
    call = in_lines("return one", [*ops, "args", "out", *dtype], "", "    ")
    return f"{head}\n{in_lines('args = ', args, '', '    ')}\n{call}\n"


def torch_module():
    kernels, rows, functions = [], [], []
    for op in OPERATORS:
        for registered in op.registered:
            schema = schema_of(op, registered)
            kernels += ["", kernel(op, registered, schema)]
            text = ", ".join(t + f"={default}" * bool(default) for t, default in schema)
            lines = textwrap.wrap(text, 88, break_long_words=False, break_on_hyphens=False)
            quoted = "'''" + "\n        ".join(lines) + "'''"
            outputs = f"{registered.outputs}".replace("'", '"')
            dtype = f'"{registered.dtype}"' if registered.dtype else None
            values = f"{outputs}, _{registered.name}, {dtype}"
            rows += [
                f'    "{registered.name}": (',
                f"        {quoted},",
                f"        {values},",
                "    ),",
            ]
        functions += ["", function(op)] * op.wrapped
    every = in_lines("FUNCTIONS = ", [f'"{name}"' for name in NAMES], "")
    public = packed([f'"{op.name}"' for op in OPERATORS if op.wrapped], 100, "    ", ",")
    return "\n".join([
        TORCH, f"__all__ = [\n{public}\n]", every, *functions, *kernels,
        "\n# name: (arguments of the schema, outputs, kernel, which argument says their dtype)",
        "REGISTERED = {", *rows, "}\n",
    ])  # fmt: skip


FILES = {"nvfp4kern/_C.pyi": stub, "nvfp4kern/torch/generated.py": torch_module}
C_FILES = {"py_operators.h": c_header, "py_docs.h": c_docs, "py_operators.c": c_source}


def build(folder):
    """Writes the C files into `folder`; returns the one to compile."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in C_FILES.items():
        (folder / name).write_text(write())
    return str(folder / "py_operators.c")


if __name__ == "__main__":
    for name, write in FILES.items():
        (ROOT / name).write_text(write())
