"""Quantising a model's linear layers and experts in place."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .chosen import EXCLUDED, Candidate, Filter, candidates
from .experts import NVFP4Experts
from .frozen import Frozen, InputQuant, choice
from .gptq import Hessians
from .linear import NVFP4Linear, is_linear
from .recipes import RECIPES, Recipe
from .replacing import AllOrNothing, replace, why_not_replaced
from .stacks import names_of

NUMBERS = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
"""Of layers and experts, in names."""


@dataclass(frozen=True)
class NVFP4Config:
    """How quantize_ quantises.

    input_quant: None for W4A16. For W4A4 "dynamic", "token" or, for linear layers alone, "amax":
        see NVFP4Linear.
    recipe: "amax", or one that takes longer and has a smaller error: by "four_six" the largest
        magnitude of a block becomes code 6 or code 4, whichever is better; "mse" searches the
        global scale and each block's scale factor for the smallest squared error; "gptq" makes up
        for errors by other columns, and needs quantize_'s `calibrate`.
    exclude: patterns (fnmatch) of the names of modules that stay as they are; a string is one.
        "<head>" is what get_output_embeddings() of the model or of a part of it returns, and
        "<router>" a module whose class has a router's name (..Router, ..Gate), with its parts. By
        default these two, what is called like heads, classifiers and routers, and adapters:
        NVFP4Config.exclude, to which (*NVFP4Config.exclude, "more") adds.
    """

    input_quant: InputQuant = None
    recipe: Recipe = "amax"
    exclude: Iterable[str] = EXCLUDED

    def __post_init__(self) -> None:
        choice("input_quant", self.input_quant, (None, "dynamic", "amax", "token"))
        choice("recipe", self.recipe, RECIPES)
        given = (self.exclude,) if isinstance(self.exclude, str) else self.exclude
        listed = isinstance(given, Iterable) and not isinstance(given, bytes)
        patterns = tuple(given) if listed else (None,)
        if not all(isinstance(each, str) for each in patterns):
            raise TypeError(f"exclude: {given!r}, expected patterns, such as ('*lm_head',)")
        for pattern in patterns:
            if re.fullmatch("<.*>", pattern or "") and pattern not in EXCLUDED:
                raise ValueError(f"exclude: {pattern!r}, expected '<head>' or '<router>'")
        object.__setattr__(self, "exclude", patterns)


class QuantizationReport(list[str]):
    """The names of the layers that quantize_ replaced, and what it did beside.

    kept: name of a layer -> why it stayed as it was.
    linear_bytes: of the weights of all linear layers and experts before, each counted once. Those
        of a head that is an embedding's, too, do not count; those that were NVFP4 already do, as 16
        bits.
    quantized_bytes: of those among them that are NVFP4 now.
    uncalibrated: names of what no input of calibration reached, so that recipe "amax" stands in for
        "gptq": of layers, and of an expert's weights, such as "experts.down_proj.3".

    print(report) shows it. As a list it is that of the names.
    """

    kept: dict[str, str]
    linear_bytes: int
    quantized_bytes: int
    uncalibrated: list[str]

    @property
    def share(self) -> float:
        """Of linear_bytes, how much is NVFP4 now; 0 where there are none."""
        return self.quantized_bytes / self.linear_bytes if self.linear_bytes else 0.0

    def __str__(self) -> str:
        sizes = f"{self.quantized_bytes / 1e6:.1f} of {self.linear_bytes / 1e6:.1f} MB"
        lines = [f"{len(self)} layers quantised: {self.share:.0%} of the linear bytes, {sizes}"]
        lines += [f"  {line}" for line in self.reasons()]
        reached = "by 'amax', as no input of calibration reached it"
        return "\n".join([*lines, *(f"  {name}: {reached}" for name in self.uncalibrated)])

    def reasons(self) -> list[str]:
        """What stayed and why, layers of one name in a line."""
        found = Counter((NUMBERS.sub("*", name), why) for name, why in self.kept.items())
        return [
            f"{name}{f' ({count})' if count > 1 else ''} stays: {why}"
            for (name, why), count in found.items()
        ]


def quantize_(
    model: nn.Module,
    config: NVFP4Config | None = None,
    filter_fn: Filter | None = None,
    *,
    calibrate: Callable[[nn.Module], object] | None = None,
) -> QuantizationReport:
    """Replaces linear layers and stacked experts of `model` by NVFP4 ones, and returns a report: it
    is the list of their names, and says what stayed and why.

    filter_fn: says of (module, name) whether to replace it. config.exclude counts first.
    calibrate: with recipe "gptq" and no other. Is called with the model once, and runs it on what
        shall count, without gradients. For each layer K * K numbers of float32 are held then.
        Experts of transformers have to run one by one, with experts_implementation="eager". What
        no input reaches is quantised by "amax": the report names it, and a warning does.

    A layer stays as it is, and the report says why, where its K is no multiple of 16; where its
    weight is made of other parameters, by weight_norm, spectral_norm or pruning; where it is of a
    subclass of nn.Linear with a forward or parts of its own; where another module reads its weight,
    as T5, Mamba and nn.TransformerEncoder do and the sources of their methods say; and experts of
    other gates or layouts than NVFP4Experts'. Weights are float16, bfloat16 or float32, on any
    device that nvfp4kern serves. Hooks of a layer's calls stay, and so do their handles.

    Warns where less than half of the linear bytes are NVFP4 in the end and no filter_fn chose so.

    Without input_quant a layer takes inputs of 16 bits. So a model in float32 is refused, and
    single layers in float32 among others of 16 bits stay.

    Raises ValueError for a model that is itself a layer, since nothing holds it, for one in
    float32 whose inputs are not quantised, for experts with "amax", for weights and inputs of
    calibration with NaN or infinities, and for layers with what cannot be kept: hooks of state_dict
    or of parts, parts of a linear layer, a forward of their own. Raises TypeError for weights of
    other dtypes.
    All replacements are made before the first of them is put in, beside the weights they replace.
    So the model is as it was after any error, such as one for want of memory, and after an
    interrupt.
    """
    config = config or NVFP4Config()
    found = candidates(model, config.exclude, filter_fn, config.input_quant)
    chosen = {each.name: each.module for each in found if each.why is None}
    for name, module in chosen.items():
        check(name, module, config)
    report = reported(model, found)
    hessians = calibrated(model, chosen, config, calibrate)
    report.uncalibrated = [] if hessians is None else sorted(unreached(chosen, hessians))
    made: dict[nn.Module, nn.Module] = {}  # one where the model has the same layer twice
    for name, module in chosen.items():
        if module in made:
            continue
        try:
            made[module] = quantized(name, module, config, hessians)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if filter_fn is None and report.quantized_bytes * 2 < report.linear_bytes:
        why = "; ".join(report.reasons()[:4])
        what = f"{report.share:.0%} of the linear bytes became NVFP4: {why}"
        warnings.warn(f"quantize_: {what}. print() of its result says all", stacklevel=2)
    if report.uncalibrated:
        names = ", ".join(report.uncalibrated[:4])
        what = f"recipe 'amax' for {len(report.uncalibrated)} weights, as no input reached them"
        warnings.warn(f"quantize_: {what}: {names}; see .uncalibrated", stacklevel=2)
    with AllOrNothing(model):
        for name, module in chosen.items():
            replace(model, name, made[module])
    return report


def check(name: str, module: nn.Module, config: NVFP4Config) -> None:
    """Raises an error for a module that cannot be replaced."""
    if not name:
        raise ValueError("model: itself a layer, expected a module that contains it")
    reason = why_not_replaced(module)
    if reason:
        raise ValueError(f"{name}: {reason}; exclude it")
    if config.input_quant == "amax" and not is_linear(module):
        raise ValueError(f"{name}: experts have no input_quant='amax'; exclude them")
    for key, value in module.named_parameters():
        if value.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise TypeError(f"{name}.{key}: {value.dtype}, expected float16, bfloat16 or float32")
        wide = value.dtype == torch.float32 and value.dim() > 1 and not key.endswith("bias")
        if wide and config.input_quant is None:
            raise ValueError(
                f"model: {name} is float32; inputs that are not quantised are float16 or bfloat16: "
                "model.to(torch.bfloat16), or input_quant='dynamic'"
            )


def reported(model: nn.Module, found: list[Candidate]) -> QuantizationReport:
    report = QuantizationReport(each.name for each in found if each.why is None)
    report.kept = {each.name: each.why for each in found if each.why is not None}
    seen = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    held = [
        value for m in model.modules() if isinstance(m, Frozen) for value in m.parameters(False)
    ]
    already = 4 * sum(value.nbytes for value in {*held} if value.dtype == torch.uint8)
    report.linear_bytes = report.quantized_bytes = already
    for each in found:
        for weight in each.weights:
            if id(weight) not in seen:
                seen.add(id(weight))
                report.linear_bytes += weight.nbytes
                report.quantized_bytes += weight.nbytes if each.why is None else 0
    return report


Calibration = dict[tuple[str, int | None], Tensor]


def calibrated(
    model: nn.Module,
    chosen: dict[str, nn.Module],
    config: NVFP4Config,
    calibrate: Callable[[nn.Module], object] | None,
) -> Calibration | None:
    """The Hessians of Hessians.values, for a recipe that needs them."""
    if (config.recipe == "gptq") != (calibrate is not None):
        raise ValueError("calibrate: expected with recipe='gptq', and only then")
    if calibrate is None:
        return None
    named = {module: name for name, module in reversed(chosen.items())}  # by the first
    linears = {name: module for module, name in named.items() if is_linear(module)}
    stacks = {name: module for module, name in named.items() if name not in linears}
    hessians = Hessians()
    with hessians.watching(linears, stacks), torch.no_grad():
        calibrate(model)
    return hessians.values


def unreached(chosen: dict[str, nn.Module], hessians: Calibration) -> set[str]:
    found = set()
    for module, name in {module: name for name, module in reversed(chosen.items())}.items():
        if is_linear(module):
            found |= set() if (name, None) in hessians else {name}
        else:
            for key in names_of(module):
                for e in range(len(getattr(module, key))):
                    if (f"{name}.{key}", e) not in hessians:
                        found.add(f"{name}.{key}.{e}")
    return found


def quantized(
    name: str, module: nn.Module, config: NVFP4Config, hessians: Calibration | None
) -> nn.Module:
    options: dict[str, Any] = {"input_quant": config.input_quant, "recipe": config.recipe}
    if not is_linear(module):
        if hessians is not None:
            options["hessians"] = {
                (key.removeprefix(f"{name}."), e): value for (key, e), value in hessians.items()
            }
        return NVFP4Experts.from_experts(module, **options)
    if hessians is not None:
        options["hessian"] = hessians.get((name, None))
        options["recipe"] = config.recipe if (name, None) in hessians else "amax"
    return NVFP4Linear.from_linear(module, **options)
