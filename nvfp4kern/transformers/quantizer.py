"""The quantiser: puts layers of nvfp4kern.nn into a model before transformers loads it."""

import re
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from ..checkpoint.files import CheckpointError, Files
from ..checkpoint.formats import Plan, read_plan
from ..checkpoint.load import in_few_words
from ..checkpoint.plan import refuse
from ..checkpoint.report import Report, inspect
from ..layout import SF_VEC
from ..nn import NVFP4Config, QuantizationReport, quantize_
from ..nn.replacing import replace
from .conversion import Converter, Loading
from .layers import assign


class NVFP4KernQuantizer(HfQuantizer):
    """transformers makes one for each `from_pretrained`, and calls its methods in this order.

    Raises nvfp4kern.checkpoint.CheckpointError, a ValueError, with the tensor's name.
    """

    requires_calibration = False
    quantization_config: Any
    loading: Loading | None = None
    report: QuantizationReport | None = None
    """Of a plain model: `model.hf_quantizer.report`."""

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **_: Any
    ) -> None:
        refuse_distributed(model)
        if not self.pre_quantized and not has_hf_quant_config(checkpoint_files):
            return
        if not checkpoint_files:
            raise ValueError("state_dict: NVFP4 layers are loaded from files alone")
        self.pre_quantized = True
        with Files(Path(checkpoint_files[0]).parent) as files:  # transformers reads them itself
            plan = read_plan(files)
            report = inspect(files, plan)
            refuse(report.problems)
            warn(report)
            conversions = get_model_conversion_mapping(model)
            self.loading = Loading(assign(model, conversions, files, plan))
        for name, module in self.loading.assignment.modules.items():
            replace(model, name, module)
            untie(model, name)
        ignore_unexpected(model, plan)

    def update_weight_conversions(
        self, weight_conversions: list[Any], model: PreTrainedModel | None = None
    ) -> list[Any]:
        if self.loading is None:
            return weight_conversions
        routes = self.loading.routes(weight_conversions)
        return [Converter(self.loading, routes), *weight_conversions]

    def get_new_dtype(self, converter: Any, param: Any, dtype: Any) -> Any:
        """Keeps the files' dtype for tensors of the layers. transformers asks from 5.23 on."""
        if isinstance(converter, Converter):
            return None
        return super().get_new_dtype(converter, param, dtype)

    def _process_model_after_weight_loading(
        self, model: PreTrainedModel, **_: Any
    ) -> PreTrainedModel:
        if self.loading is None:
            self.report = quantize_(model, self.quantization_config.on_the_fly)
            return model
        loading, self.loading = self.loading, None
        for error in loading.errors:
            raise error
        for name in loading.assignment.modules:
            refuse_offloaded(name, model.get_submodule(name))
        loading.complete(model)
        for name in loading.assignment.modules:
            finish(name, model.get_submodule(name))
        return model

    def is_serializable(self) -> bool:
        """nvfp4kern.checkpoint.save_checkpoint writes such a model."""
        return False

    @property
    def is_trainable(self) -> bool:
        """With adapters: gradients pass through the layers."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True


class LikeNVFP4Config(NVFP4KernQuantizer):
    """Quantises what transformers' NVFP4Config does: linear layers without a bias whose sizes are
    multiples of 16, and no experts. It reads nothing of a folder but 16-bit weights."""

    def __init__(self, config: Any, kept: list[str] | None, **options: Any) -> None:
        super().__init__(config, **options)
        self.kept = kept

    def validate_environment(self, *_: Any, **__: Any) -> None:
        if self.pre_quantized:  # transformers' own words
            raise ValueError("Loading pre-quantized NVFP4 checkpoints is not supported yet.")

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype: {dtype}, expected torch.bfloat16 or torch.float16")
        return dtype

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **_: Any
    ) -> None:
        refuse_distributed(model)
        if has_hf_quant_config(checkpoint_files):  # transformers 5.17 would load codes as weights
            raise ValueError("hf_quant_config.json: NVFP4Config, expected NVFP4KernConfig()")

    def _process_model_after_weight_loading(
        self, model: PreTrainedModel, **_: Any
    ) -> PreTrainedModel:
        kept = self.get_modules_to_not_convert(model, self.kept, model._keep_in_fp32_modules)

        def named(module: nn.Module, name: str) -> bool:
            return (
                isinstance(module, nn.Linear)
                and module.bias is None
                and module.in_features % SF_VEC == 0
                and module.out_features % 16 == 0
                and should_convert_module(name, kept)
            )

        self.report = quantize_(model, NVFP4Config(exclude=()), named)
        return model


def has_hf_quant_config(files: list[str] | None) -> bool:
    """Whether the folder of the files says so that it is quantised."""
    return bool(files) and (Path(files[0]).parent / "hf_quant_config.json").exists()


def refuse_distributed(model: PreTrainedModel) -> None:
    if getattr(model.config, "distributed_config", None) is not None:
        raise ValueError("distributed_config, tp_plan: not supported with NVFP4 layers")


def warn(report: Report) -> None:
    """One warning for each kind of problem, which thousands of experts may have."""
    names = defaultdict(list)
    for problem in report.problems:
        names[problem.sentence].append(problem.name)
    for sentence, each in names.items():
        warnings.warn(f"{in_few_words(each)}: {sentence}", stacklevel=2)


def untie(model: PreTrainedModel, name: str) -> None:
    """A quantised head beside a plain embedding is not tied, whatever config.json says."""
    if model.all_tied_weights_keys.pop(f"{name}.weight", None):
        model.config.get_text_config().tie_word_embeddings = False


def refuse_offloaded(name: str, module: nn.Module) -> None:
    for key, value in module.named_parameters(recurse=False):
        if value.is_meta:
            raise ValueError(
                f"device_map: {name}.{key} is offloaded; NVFP4 layers must stay on their devices"
            )


def finish(name: str, module: Any) -> None:
    for key, what in module.faults():
        raise CheckpointError(f"{name}.{key}: {what}")
    module.finish()


def ignore_unexpected(model: PreTrainedModel, plan: Plan) -> None:
    """Scales of the key-value cache and the like, which nothing here reads."""
    ignored = {rf"\.{re.escape(name.rpartition('.')[2])}$" for name in plan.ignored}
    known = model._keys_to_ignore_on_load_unexpected or set()
    model._keys_to_ignore_on_load_unexpected = ignored.union(known)
