"""The types that signatures name, for type checkers and for whoever annotates calls."""

from typing import Any, Literal, Protocol, TypeAlias, TypedDict


class Tensor(Protocol):
    """Whatever speaks DLPack: torch, NumPy, CuPy, JAX, ..."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


Scalar: TypeAlias = float | Tensor
Layout: TypeAlias = Literal["linear", "blocked"]
Layouts: TypeAlias = Layout | tuple[Layout, Layout]
Activation: TypeAlias = Literal[
    "silu", "gelu", "gelu_tanh", "relu", "relu2", "identity", "swiglu_oai"
]
ActivationAlone: TypeAlias = Literal["identity", "silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""Of sums that no gate multiplies."""
GateUp: TypeAlias = Literal["halves", "interleaved"]
Recipe: TypeAlias = Literal["amax", "four_six", "mse", "gptq"]
"""How a weight becomes NVFP4, see nvfp4kern.nn.NVFP4Config."""
ScaleRecipe: TypeAlias = Literal["amax", "four_six"]
Score: TypeAlias = Literal["topk_softmax", "softmax_topk", "sigmoid", "sqrt_softplus", "logits"]
DtypeName: TypeAlias = Literal["float16", "bfloat16", "float32"]
OutDtype: TypeAlias = DtypeName | Any
"""Or a dtype object of such a name, of any library."""

CodesDtype: TypeAlias = Literal["float4_e2m1fn_x2", "uint8"] | Any
"""The same for codes; None is float4_e2m1fn_x2 where the library has it."""


class Backend(TypedDict):
    """A row of backends()."""

    name: str
    devices: str
    available: bool
    why_not: str | None
    code: str | None
    needs: str | None
