"""The configuration that transformers makes of a checkpoint's, and whose it is."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from transformers.quantizers import auto
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..checkpoint.compressed import read_groups
from ..checkpoint.files import CheckpointError
from ..checkpoint.modelopt import read_config
from ..checkpoint.quark import read_quark
from ..nn import InputQuant, NVFP4Config
from ..nn.recipes import Recipe
from .quantizer import LikeNVFP4Config, NVFP4KernQuantizer

METHOD = "nvfp4kern"
"""Under this name transformers finds the quantiser."""
CONFIGS: dict[str, Any] = auto.AUTO_QUANTIZATION_CONFIG_MAPPING
QUANTIZERS: dict[str, Any] = auto.AUTO_QUANTIZER_MAPPING
ON_THE_FLY = "nvfp4"
"""transformers' own NVFP4Config: no files, and kernels for compute capability 10.0 alone."""
METHODS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "compressed-tensors": read_groups,
    "modelopt": read_config,
    "quark": read_quark,
    "mxfp4": lambda _: None,
}
"""Whose checkpoints nvfp4kern.checkpoint reads, and what raises CheckpointError for others."""


class NVFP4KernConfig(QuantizationConfigMixin):
    """What `config.json` says about a quantised checkpoint, or how to quantise a plain one.

    For a plain model: `from_pretrained(..., quantization_config=NVFP4KernConfig())`. The options
    are those of nvfp4kern.nn.NVFP4Config. The weights are loaded at 16 bits first.

    For a directory with ModelOpt's hf_quant_config.json whose config.json does not mention it: the
    same, without options.

    For other checkpoints transformers makes one of what config.json says. It raises CheckpointError
    for formats and algorithms that are not supported.
    """

    quant_method: Any

    def __init__(
        self,
        input_quant: InputQuant = None,
        recipe: Recipe = "amax",
        exclude: Iterable[str] = NVFP4Config.exclude,
        **of_file: Any,
    ) -> None:
        self.quant_method = METHOD
        self.on_the_fly = NVFP4Config(input_quant, recipe, exclude)
        if recipe == "gptq":
            raise ValueError("recipe: 'gptq' needs a text: `nvfp4kern quantize` or quantize_")
        self.of_file = of_file
        if of_file:
            check(of_file)

    def to_dict(self) -> dict[str, Any]:
        """A file's own words, so that a saved config.json says what the file's did."""
        if self.of_file:
            return dict(self.of_file)
        return {"quant_method": METHOD, **vars(self.on_the_fly)}


def check(config: dict[str, Any]) -> None:
    """Raises CheckpointError where a checkpoint's configuration is not one that can be loaded."""
    method = config.get("quant_method")
    if method not in METHODS:
        raise CheckpointError(f"quant_method: {method!r}, expected {' or '.join(METHODS)}")
    METHODS[method](config)


class _Choice:
    """Stands in for transformers' configuration of a method. It makes ours of what we can load."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def from_dict(self, config: dict[str, Any], **options: Any) -> Any:
        ours: Any = NVFP4KernConfig
        try:
            return ours.from_dict(config, **options)
        except CheckpointError:
            return self.theirs.from_dict(config, **options)


class _Quantizer:
    """Stands in for transformers' quantiser of `ON_THE_FLY`. It makes ours where theirs cannot."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def __call__(self, config: Any, **options: Any) -> Any:
        if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (10, 0):
            return self.theirs(config, **options)
        return LikeNVFP4Config(NVFP4KernConfig(), config.modules_to_not_convert, **options)


def take_over(method: str = "compressed-tensors") -> None:
    """NVFP4 checkpoints that transformers would load itself run on nvfp4kern.nn from now on.

    method: "compressed-tensors"; "quark"; "mxfp4", as gpt-oss has it; or "modelopt" where
        transformers has come to know it. Its checkpoints that are neither NVFP4 nor MXFP4 stay
        transformers'. "nvfp4" is no method of checkpoints: transformers' NVFP4Config then quantises
        a plain model on CPUs and on GPUs below compute capability 10.0, too, for W4A16. The
        current GPU decides, whatever `device_map` says.

    `hand_back` of the same method undoes it. Raises ValueError for methods that neither this nor
    the installed transformers knows.
    """
    known = [*METHODS, *([ON_THE_FLY] if ON_THE_FLY in QUANTIZERS else [])]
    if method not in known:
        raise ValueError(f"method: {method!r}, expected one of {', '.join(known)}")
    if method == ON_THE_FLY:
        if not isinstance(QUANTIZERS[method], _Quantizer):
            QUANTIZERS[method] = _Quantizer(QUANTIZERS[method])
        return
    theirs = CONFIGS[method]
    if theirs is not NVFP4KernConfig and not isinstance(theirs, _Choice):
        CONFIGS[method] = _Choice(theirs)


def hand_back(method: str = "compressed-tensors") -> None:
    """Undoes `take_over` of this method."""
    quantizer = QUANTIZERS.get(method)
    if isinstance(quantizer, _Quantizer):
        QUANTIZERS[method] = quantizer.theirs
    ours = CONFIGS.get(method)
    if isinstance(ours, _Choice):
        CONFIGS[method] = ours.theirs


def register() -> None:
    """Adds our names to transformers' tables, and ModelOpt's where nobody has claimed it."""
    QUANTIZERS[METHOD] = NVFP4KernQuantizer
    CONFIGS[METHOD] = NVFP4KernConfig
    CONFIGS.setdefault("modelopt", NVFP4KernConfig)


register()
