"""The formats of tiny checkpoints: which scheme a layer has, and what the config says about it."""

import re
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class Format:
    """A producer's format. `schemes`: pattern of layer names -> scheme, the first that matches."""

    producer: str
    algorithm: str
    schemes: tuple

    def scheme(self, name):
        return next(scheme for pattern, scheme in self.schemes if fnmatch(name, pattern))


NVFP4, W4A16, AWQ, FP8 = "NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "FP8"
ONE, CT = "modelopt", "compressed-tensors"
MIXED = (("*.o_proj", FP8), ("*.self_attn.*", W4A16), ("*", NVFP4))
FORMATS = {
    "modelopt-nvfp4": Format(ONE, NVFP4, (("*", NVFP4),)),
    "modelopt-w4a16": Format(ONE, W4A16, (("*", W4A16),)),
    "modelopt-awq": Format(ONE, AWQ, (("*.experts.*", NVFP4), ("*", AWQ))),
    "modelopt-mixed": Format(ONE, "MIXED_PRECISION", MIXED),
    "ct-w4a4": Format(CT, "nvfp4-pack-quantized", (("*", NVFP4),)),
    "ct-w4a16": Format(CT, "nvfp4-pack-quantized", (("*", W4A16),)),
    "ct-mixed": Format(CT, "mixed-precision", (("*.self_attn.*", W4A16), ("*", NVFP4))),
}


def modelopt_config(form, quantised, exclude):
    """The content of hf_quant_config.json, and config.json's quantization_config."""
    details = dict(quant_algo=form.algorithm, kv_cache_quant_algo=None)
    if form.algorithm == "MIXED_PRECISION":
        details["quantized_layers"] = {
            name: {"quant_algo": s} if s == FP8 else {"quant_algo": s, "group_size": 16}
            for name, s in quantised.items()
        }
    else:
        details |= dict(group_size=16, exclude_modules=list(exclude))
    if form.algorithm == AWQ:
        details |= dict(has_zero_point=False, pre_quant_scale=True)
    producer = {"name": "modelopt", "version": "0.47.0"}
    config = dict(quant_method="modelopt", quant_algo=form.algorithm, producer=producer)
    config["ignore"] = details.get("exclude_modules", [])
    if form.algorithm == "MIXED_PRECISION":
        config["quantized_layers"] = details["quantized_layers"]
    if form.algorithm != AWQ:  # ModelOpt 0.47 writes no groups for it
        targets = defaultdict(list)
        for name, scheme in quantised.items():
            targets[scheme].append(name)
        config["config_groups"] = {
            f"group_{i}": dict(
                modelopt_group(scheme), targets=sorted(names) if len(targets) > 1 else ["Linear"]
            )
            for i, (scheme, names) in enumerate(targets.items())
        }
    return dict(producer=producer, quantization=details), config


def modelopt_group(scheme):
    args = dict(dynamic=False, num_bits=8 if scheme == FP8 else 4, type="float")
    if scheme != FP8:
        args["group_size"] = 16
    return dict(weights=args) if scheme == W4A16 else dict(weights=args, input_activations=args)


def compressed_config(form, quantised, exclude):
    """config.json's quantization_config; patterns become regular expressions."""
    weights = dict(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    weights |= dict(symmetric=True, dynamic=False)
    groups = {}
    for i, (pattern, scheme) in enumerate(form.schemes):
        groups[f"group_{i}"] = dict(
            weights=weights,
            input_activations=None if scheme == W4A16 else dict(weights, dynamic="local"),
            targets=["Linear"] if pattern == "*" else [expression(pattern)],
            format="nvfp4-pack-quantized",
        )
    return dict(
        quant_method=CT,
        format=form.algorithm,
        quantization_status="compressed",
        config_groups=groups,
        ignore=[expression(p) if "*" in p else p for p in exclude],
        kv_cache_scheme=None,
    )


def expression(pattern):
    return "re:" + re.escape(pattern).replace(r"\*", ".*") + "$"
