"""The checkpoints in this folder: nvidia-modelopt 0.47 made them of random weights, on a CPU.

    PYTHONPATH=.. python make_modelopt.py     # wants nvidia-modelopt, transformers and requests

ModelOpt simulates NVFP4 by a CUDA kernel while it searches AWQ's scales. Here its own quantiser
stands in for that kernel: the search sees the same values, and what is exported is ModelOpt's code
alone.
"""

import copy
import json
import shutil
import warnings

import torch
from tiny_sizes import EXPORTED, OTHERS, exported

MIXTURE = dict(moe_intermediate_size=16, num_experts=3, num_experts_per_tok=2, norm_topk_prob=True)
KEYS_ARE_VALUES = dict(  # the second layer has no v_proj
    num_hidden_layers=2,
    layer_types=["sliding_attention", "full_attention"],
    sliding_window=16,
    attention_k_eq_v=True,
    global_head_dim=16,
    num_global_key_value_heads=1,
    hidden_size_per_layer_input=0,
    num_kv_shared_layers=0,
    vocab_size_per_layer_input=32,
    pad_token_id=0,
)
FP8 = dict(num_bits=(4, 3))
FP8_OUTPUTS = [  # o_proj in FP8, and the attention's keys and values, too
    dict(quantizer_name="*o_proj.weight_quantizer", cfg=FP8),
    dict(quantizer_name="*o_proj.input_quantizer", cfg=FP8),
    dict(quantizer_name="*[kv]_bmm_quantizer", cfg=FP8),
]
MADE = {  # folder -> (model type, its config, ModelOpt's config, what is added to it)
    "modelopt-nvfp4": ("qwen3_moe", MIXTURE, "NVFP4_DEFAULT_CFG", []),
    "modelopt-w4a16": ("llama", {}, "W4A16_NVFP4_CFG", []),
    "modelopt-awq": ("llama", dict(attention_bias=True), "NVFP4_AWQ_LITE_CFG", []),
    "modelopt-mixed": ("llama", {}, "NVFP4_DEFAULT_CFG", FP8_OUTPUTS),
    "modelopt-k-eq-v": ("gemma4_text", KEYS_ARE_VALUES, "NVFP4_DEFAULT_CFG", []),
}


def fake_quantize(x, block_size, amax, *bits):
    """What the CUDA kernel computes for NVFP4, by ModelOpt's quantiser."""
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    scale_2 = amax.float().amax() / 2688
    packed, scale, _ = NVFP4QTensor.quantize(x.clone(), block_size, None, scale_2)
    blocks = {-1: block_size}
    return packed.dequantize(x.dtype, scale=scale, double_scale=scale_2, block_sizes=blocks)


def export(folder, model_type, config, name, more):
    """Quantise a random model by ModelOpt's config `name`, and write it by ModelOpt's exporter."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(24)
    config = AutoConfig.for_model(model_type, **(EXPORTED | config))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.config.architectures = [type(model).__name__]  # as in a model that was loaded
    tokens = torch.arange(64).reshape(4, 16) % EXPORTED["vocab_size"]
    recipe = copy.deepcopy(getattr(mtq, name))
    recipe["quant_cfg"] += more
    model = mtq.quantize(model, recipe, lambda m: m(tokens))
    shutil.rmtree(folder, ignore_errors=True)
    with torch.no_grad():
        export_hf_checkpoint(model, export_dir=folder)
    exported(folder)


def main():
    from modelopt.torch.quantization import tensor_quant

    tensor_quant.dynamic_block_quantize_op = fake_quantize
    for folder, how in MADE.items():
        export(OTHERS / folder, *how)
        quantised = json.loads((OTHERS / folder / "config.json").read_text())["quantization_config"]
        print("   ", quantised["quant_algo"], quantised["ignore"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
