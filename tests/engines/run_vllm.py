"""Runs checkpoints in vLLM, in a process of its own, and writes what came of it.

    python run_vllm.py JOB.json

The job: "runs", options of vllm.LLM for each, and "reload", a folder whose weights take the place
of the first ones after those have run and are forgotten, or are refused, and "lora", a folder of an
adapter; "environment", variables beside ENVIRONMENT; "prompts", token ids; "tokens", how many to
make of each; "result", the path of a JSON file.

The result, for each run: the tokens and their log probabilities, prompt by prompt; "methods", on
each rank the classes of the layers' methods by a layer's name; or "refused", what a reload raised.
"""

import gc
import json
import os
import sys
from pathlib import Path

import torch

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # `methods` goes to processes
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Nothing is sent, and the engine is in this process."""
OPTIONS = {
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
}


def methods(model):
    """The class of each layer's method; of its scheme, where it has one."""
    found = {}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            found[name] = type(getattr(module, "scheme", None) or method).__name__
    return found


def forget(model):
    """What sleep of level 2 leaves: memory of any content in the place of all parameters."""
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan if parameter.is_floating_point() else 255)


def run(options, job):
    from run_vllm import forget, methods  # __main__'s would not be found by other processes
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    options = dict(options)
    other, lora = options.pop("reload", None), options.pop("lora", None)
    if lora is not None:
        options |= {"enable_lora": True, "max_lora_rank": 8}
        lora = LoRARequest("adapter", 1, lora)
    llm = LLM(**OPTIONS, **options)
    wanted = SamplingParams(
        max_tokens=job["tokens"], temperature=0, detokenize=False, logprobs=0, ignore_eos=True
    )
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    if other is not None:
        llm.generate(prompts, wanted, use_tqdm=False)
        llm.apply_model(forget)
        try:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": other})
        except ValueError as e:
            llm.llm_engine.engine_core.shutdown()
            return {"refused": str(e)}
        llm.reset_prefix_cache()
    made = llm.generate(prompts, wanted, use_tqdm=False, lora_request=lora)
    made = [each.outputs[0] for each in made]
    result = {
        "tokens": [list(each.token_ids) for each in made],
        "logprobs": [
            [at[token].logprob for token, at in zip(each.token_ids, each.logprobs, strict=True)]
            for each in made
        ],
        "methods": llm.apply_model(methods),
    }
    llm.llm_engine.engine_core.shutdown()
    return result


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ |= ENVIRONMENT | job["environment"]
    results = []
    for options in job["runs"]:
        results.append(run(options, job))
        gc.collect()
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
    Path(job["result"]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
