"""What operators.py says of an operator: kinds of arguments, and what else there is to say."""

import inspect
import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args


@dataclass(frozen=True)
class Kind:
    """How an argument is read in C, what a type checker is told, what the torch schema has."""

    c: str
    hint: str
    schema: str = ""
    kernel: str = "{0}"
    """From the schema's arguments to the package's."""
    call: str = "{0}"
    """From the package's to the schema's."""
    words: str = ""


SCALAR = {
    "schema": "float {0}=1.0, Tensor? {0}_tensor=None",
    "kernel": "either({0}, {0}_tensor)",
    "call": '*number({0}, "{0}")',
}
PAIR = {
    "schema": 'str sfa_layout="linear", str sfb_layout="linear"',
    "kernel": "(sfa_layout, sfb_layout)",
    "call": "*pair({0})",
}
PARTS = {
    "schema": "Tensor data, Tensor scales, " + SCALAR["schema"].format("global_scale"),
    "kernel": "(data, scales, either(global_scale, global_scale_tensor))",
    "call": "*parts({0})",
}

tensor = Kind("PY_TENSOR", "Tensor", "Tensor {0}")
optional = Kind("PY_OPTIONAL", "Tensor | None", "Tensor? {0}")
scales = Kind("PY_OPTIONAL", "Tensor", "Tensor {0}")  # None gets a message of the operator's own
scalar = Kind("PY_SCALAR", "Scalar", **SCALAR)
scalar_or_none = Kind("PY_SCALAR_OR_NONE", "Scalar | None", **SCALAR)
count = Kind("PY_INT", "int", "int {0}")
size = Kind("PY_INT", "int", "SymInt {0}")
size_or_none = Kind("PY_COUNT_OR_NONE", "int | None", "SymInt? {0}")  # None is -1
number = Kind("PY_FLOAT", "float", "float {0}")
bound = Kind("PY_FLOAT_OR_NONE", "float | None", "float? {0}")  # None is infinite
flag = Kind("PY_BOOL", "bool", "bool {0}")
activation = Kind("PY_WORD", "Activation", "str {0}", words="activation")
# Without a gate; 'swiglu_oai' gets a message of the operator's own:
alone = Kind("PY_WORD", "ActivationAlone", "str {0}", words="activation")
gate_up = Kind("PY_WORD", "GateUp", "str {0}", words="gate_up")
recipe = Kind("PY_WORD", "ScaleRecipe", "str {0}", words="recipe")
score = Kind("PY_WORD", "Score", "str {0}", words="score")
layout = Kind("PY_LAYOUT", "Layout", "str {0}")
layouts = Kind("PY_LAYOUTS", "Layouts", **PAIR)
# A tensor, or NVFP4 whole, which knows its layout:
first_operand = Kind("PY_TENSOR", "_A | tuple[_A, Tensor, Scalar | None]", "Tensor {0}")
operand = Kind("PY_TENSOR", "Tensor | tuple[Tensor, Tensor, Scalar | None]", "Tensor {0}")
known_layouts = Kind("PY_LAYOUTS", "Layouts | None", **PAIR)
out = Kind("PY_OUT", "_A | None")
out_dtype = Kind("PY_OUT_DTYPE", "OutDtype")
# What the operator's own C code reads:
own_count = Kind("PY_OWN", "int | None", "int? {0}")
own_flag = Kind("PY_OWN", "bool | None", "bool? {0}")
own_outs = Kind("PY_OWN", "Sequence[_A | None] | None")
own_dtype = Kind("PY_OWN", "OutDtype | None")
codes_dtype = Kind("PY_OWN", "CodesDtype")
global_scale = Kind("PY_OWN", "Scalar | None", **SCALAR)
inverse = Kind(
    "PY_OWN", "Scalar | None", "float? {0}=None, Tensor? {0}_tensor=None", SCALAR["kernel"],
    '*number_or_none({0}, "{0}")',
)  # fmt: skip
q_layout = Kind("PY_OWN", "Layout | None", 'str {0}="linear"', call='layout_of(q, "q", {0})')
nvfp4 = Kind("PY_OWN", "tuple[_A, Tensor, Scalar | None]", **PARTS)

TYPES = runpy.run_path(str(Path(__file__).parents[1] / "nvfp4kern" / "types.py"))
WORDS = {
    "activation": (get_args(TYPES["Activation"]), ""),
    "score": (get_args(TYPES["Score"]), ""),
    "recipe": (get_args(TYPES["ScaleRecipe"]), "RECIPE_"),
    "gate_up": (get_args(TYPES["GateUp"]), "GATE_UP_"),
}
"""Of a kind of words: them, and how C's names of them begin."""


@dataclass
class Registered:
    """An operator of torch.ops.nvfp4kern. `arguments` are in the schema's order; "k!": every call
    gives k. `fixed` are those of the function that this operator fixes."""

    name: str
    arguments: str
    outputs: tuple = ("result",)
    dtype: str | None = "out_dtype"
    fixed: dict = field(default_factory=dict)


@dataclass
class Operator:
    name: str
    signature: inspect.Signature
    doc: str
    args: str
    """Its struct of the C API is nk_<args>_args."""
    function: str
    """Its function of the C API."""
    run: str
    """Which C function makes the call."""
    returns: str
    overloads: list
    """{argument: what follows its colon in the stub}, and "returns"."""
    prefix: str
    members: dict
    """Where an argument goes in the struct, if not to the member `prefix` + its name."""
    defaults: str
    """Of members that are no arguments."""
    registered: list
    wrapped: bool
    """The function of nvfp4kern.torch follows from the table."""

    @property
    def parameters(self):
        return self.signature.parameters.values()


OPERATORS = []


def operator(
    args=None, *, function=None, run=None, returns="_A", overloads=(), prefix="", members=None,
    defaults="", registered=(), wrapped=True,
):  # fmt: skip
    def add(f):
        signature, name = inspect.signature(f), f.__name__
        names = [p for p in signature.parameters if p not in ("out", "out_dtype")]
        dtype = "out_dtype" if "out_dtype" in signature.parameters else None
        new = list(registered) or [Registered(name, " ".join(names), dtype=dtype)]
        OPERATORS.append(
            Operator(
                name, signature, inspect.getdoc(f), args or name, function or name,
                run or "py_run_one", returns, list(overloads), prefix, members or {}, defaults, new,
                wrapped and len(new) == 1 and new[0].outputs == ("result",),
            )
        )  # fmt: skip

    return add
