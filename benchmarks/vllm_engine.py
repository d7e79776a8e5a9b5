"""Tokens a second of vLLM with NVFP4 weights: its own kernels and ours, in turns on one GPU.

    python benchmarks/vllm_engine.py dense mixture [--json FILE] [--profile 1 64]

The models have the shapes of Llama-3-8B, 16 layers, and of Qwen3-30B-A3B, 12 layers, random W4A16
weights in compressed-tensors' format, and bfloat16 activations. Each engine is a process with
vLLM's CUDA graphs; all of them live at once, and one works at a time: in each of five rounds all
fill prompts of 256 tokens, and make 64 tokens for each of them. Before anything is timed, layers
must run by the kernels that the engine is named for, and each engine must give the tokens that
another chose, at every batch, their log probabilities. Exits with 2 where one of them does not.
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch
import vllm_remote
import vllm_steps
from vllm_model import SHAPES, make
from vllm_remote import ENGINES, Remote

from nvfp4kern import machine, results

PROMPT, STEPS, ROUNDS, BATCHES = 256, 64, 5, (1, 8, 64, 256)
BATCHED_TOKENS = 8192
"""Tokens of one step, at most."""
MOST_CAPTURED = 512
"""Tokens of the largest step of which vLLM captures a graph unless it is told to."""
CHECKED, SEQUENCES = 8, 4
"""Tokens that are checked, of so many sequences of a batch."""
AGREE = {"dense": 0.1, "mixture": 0.3}
"""Root mean square of the differences of log probabilities, whose own spread is near 1. Sums are
rounded to bfloat16 in another order; where that changes an expert of a token it counts more."""


def prompts_of(batch, shape, tokens):
    draw = torch.Generator().manual_seed(batch)
    return torch.randint(3, shape.vocabulary, (batch, tokens), generator=draw).tolist()


def runs_by_its_kernels(remote, shape, facts):
    """Whether all NVFP4 modules do."""
    own = [n for name, n in facts["modules"].items() if remote.kernels in name.lower()]
    right = sum(own) == shape.modules()
    print(f"{remote.name}: {'' if right else 'NOT ITS KERNELS: '}{facts}", flush=True)
    return right


def disagreement(chooser, judge, prompts):
    """Root mean square of what log probabilities differ by: of the tokens that one engine chose
    while decoding the whole batch, and of the same tokens in prompts of the other."""
    chosen = chooser.call("chosen", prompts, CHECKED)
    some = range(0, len(prompts), max(1, len(prompts) // SEQUENCES))
    found = judge.call("given", [prompts[i] + chosen[i][0] for i in some], CHECKED)
    pairs = [zip(chosen[i][1], own, strict=True) for i, own in zip(some, found, strict=True)]
    return statistics.fmean((a - b) ** 2 for pair in pairs for a, b in pair) ** 0.5


def measure(remotes, prompts, rounds, steps):
    """{engine: {"prefill", "decode": tokens a second, round by round}}."""
    found = {remote.name: {"prefill": [], "decode": []} for remote in remotes}
    filled = sum(map(len, prompts))
    for remote in remotes:  # allocators and clocks warm up
        remote.call("prefill", prompts)
    for i in range(rounds):
        for remote in in_turn(remotes, i):
            found[remote.name]["prefill"].append(filled / remote.call("prefill", prompts))
    for remote in remotes:
        remote.call("start", prompts)
    for i in range(rounds):
        for remote in in_turn(remotes, i):
            found[remote.name]["decode"].append(len(prompts) / remote.call("decode", steps))
    for remote in remotes:
        remote.call("stop")
    return found


def in_turn(remotes, i):
    return remotes if i % 2 == 0 else remotes[::-1]


def row(model, batch, name, speeds, first):
    """Of an engine. Ratios are to the first engine, round by round."""
    found = {"model": model, "batch": batch, "engine": name}
    for what, values in speeds.items():
        ratios = [b / a for a, b in zip(values, first[what], strict=True)]
        found[what] = {"tokens_per_second": values, "times_the_first": ratios}
    return found


def show(row):
    parts = []
    for what in ("decode", "prefill"):
        values, ratios = row[what]["tokens_per_second"], row[what]["times_the_first"]
        middle, ratio = statistics.median(values), statistics.median(ratios)
        parts.append(
            f"{what} {middle:9.0f} ({min(values):.0f} to {max(values):.0f}) "
            f"{ratio:5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(
        f"{row['model']:<8} {row['batch']:>4} {row['engine']:<10} " + "  ".join(parts), flush=True
    )


def engine_options(arguments):
    batches, steps = sorted(arguments.batches), arguments.steps + vllm_remote.WARM
    length = arguments.prompt + (arguments.rounds + 2) * steps + vllm_remote.WARM
    ahead = batches[-1] * arguments.prompt // BATCHED_TOKENS  # steps of the first prompts
    found = {
        "skip_tokenizer_init": True, "dtype": "bfloat16", "enable_prefix_caching": False,
        "max_model_len": length + ahead, "max_num_seqs": batches[-1],
        "max_num_batched_tokens": BATCHED_TOKENS, "enforce_eager": arguments.eager,
    }  # fmt: skip
    if arguments.attention:
        found["attention_backend"] = arguments.attention
    if arguments.device == "cuda":  # given, so that engines can start at once and do not measure
        found |= {"gpu_memory_utilization": 0.2, "kv_cache_memory_bytes": arguments.cache << 30}
        # Those of vLLM's own choice that are used: it captures up to 512 tokens, prompts as well.
        captured = sorted({*batches, *(n for n in (arguments.prompt,) if n <= MOST_CAPTURED)})
        found["compilation_config"] = {"cudagraph_capture_sizes": captured}
    return found


def run(model, arguments, folder, content):
    """Rows and profiles of a model go to `content`. Whether all was right."""
    shape, logs = SHAPES[model], arguments.logs or folder.parent
    if not (folder / "config.json").exists():
        spawn = multiprocessing.get_context("spawn")  # this process does without a CUDA context
        maker = spawn.Process(target=make, args=(folder, shape, arguments.device))
        maker.start()
        maker.join()
        if maker.exitcode:
            raise RuntimeError(f"{folder}: its making ended with {maker.exitcode}")
    begin, options = perf_counter(), engine_options(arguments)
    logs.mkdir(parents=True, exist_ok=True)
    remotes = [
        Remote(name, folder, options, logs / f"{model}-{name}.log") for name in arguments.engines
    ]
    try:
        up = [remote for remote in remotes if came_up(remote)]
        print(f"{model}: engines are up after {perf_counter() - begin:.0f} s", flush=True)
        facts = {remote.name: remote.call("facts") for remote in up}
        content["engines"][model] = facts
        right = [runs_by_its_kernels(each, shape, facts[each.name]) for each in up]
        if not all(right) or not up:
            return False
        done = [measured(model, batch, up, arguments, content) for batch in arguments.batches]
        for batch in arguments.profile:
            profiled(model, batch, up, arguments, content)
        return all(done) and up == remotes
    finally:
        for remote in remotes:
            remote.close()


def came_up(remote):
    """The others go on without one that did not."""
    try:
        remote.answer()
    except RuntimeError as error:
        print(error, flush=True)
        return False
    return True


def measured(model, batch, remotes, arguments, content):
    """Checks a batch, then times it. Whether engines agree."""
    shape, bound = SHAPES[model], arguments.agree or AGREE[model]
    prompts = prompts_of(batch, shape, arguments.prompt)
    for chooser, judge in zip(remotes, remotes[1:] + remotes[:1], strict=True):
        apart = disagreement(chooser, judge, prompts)
        print(f"{model} {batch}: {chooser.name} by {judge.name} {apart:.4f}, at most {bound}")
        content["checks"].append([model, batch, chooser.name, judge.name, apart])
        if not apart <= bound:
            return False
    found = measure(remotes, prompts, arguments.rounds, arguments.steps)
    first = found[remotes[0].name]
    for name, speeds in found.items():
        content["rows"].append(row(model, batch, name, speeds, first))
        show(content["rows"][-1])
    write(arguments, content)
    return True


def profiled(model, batch, remotes, arguments, content):
    """After all that is timed: a profiler that has run once may slow a process down."""
    shape = SHAPES[model]
    prompts = prompts_of(batch, shape, arguments.prompt)
    for what in ("decode", "prefill"):
        for remote in remotes:
            steps = remote.call(f"profile_{what}", prompts)
            if found := vllm_steps.summary(steps, shape.layers):
                of = {"model": model, "batch": batch, "engine": remote.name, "of": what}
                content["profiles"].append(of | found)
                vllm_steps.show(" ".join(map(str, of.values())), found)
    write(arguments, content)


def write(arguments, content):
    """After each step, so that an interruption costs one."""
    if arguments.json:
        results.write(arguments.json, content)


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[*SHAPES], metavar="|".join(SHAPES))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["marlin", "nvfp4kern"])
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--profile", nargs="+", type=int, default=(), metavar="BATCH")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a round, whose median counts")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens")
    parser.add_argument("--agree", type=float, help="in the place of the bounds that are known")
    parser.add_argument("--cache", type=int, default=12, help="GiB of keys and values of an engine")
    parser.add_argument("--attention", help="vLLM's attention_backend")
    parser.add_argument("--eager", action="store_true", help="neither torch.compile nor graphs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="keeps the models, or has them")
    parser.add_argument("--logs", type=Path, help="a folder for what engines print")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(words)


def main(words=None):
    arguments = arguments_of(words)
    environment = machine.software(arguments.device)
    environment |= next(iter(machine.nvidia_smi(("name", "driver_version"))), {})
    content = {"environment": environment, "engines": {}, "checks": [], "rows": [], "profiles": []}
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.folder or Path(temporary)
        right = [run(model, arguments, root / model, content) for model in arguments.models]
    write(arguments, content)
    return 0 if all(right) else 2


if __name__ == "__main__":
    sys.exit(main())
