"""Engines of vLLM in processes of their own, whose methods vllm_engine.py calls through pipes."""

import gc
import itertools
import multiprocessing
import os
import statistics
from dataclasses import dataclass, field
from time import perf_counter

import torch
import vllm_steps

WARM = 4
"""Steps before those that are timed."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the profiler sees the process that it is in
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


@dataclass(frozen=True)
class Kind:
    """An engine: variables, options of vllm.LLM, and what its kernels have in their names."""

    variables: dict
    kernels: str
    options: dict = field(default_factory=dict)


OWN = {"NVFP4KERN_VLLM": "0"}
ENGINES = {
    "nvfp4kern": Kind({"NVFP4KERN_VLLM": "1"}, "nvfp4kern"),
    "marlin": Kind(OWN, "marlin"),
    "humming": Kind(OWN, "humming", {"linear_backend": "humming", "moe_backend": "humming"}),
}


class Engine:
    """In the process that it works in; what is returned goes through a pipe."""

    def __init__(self, folder, options):
        from vllm import LLM

        self.llm = LLM(model=str(folder), **options)
        self.core = self.llm.llm_engine
        self.made = {}  # request -> tokens

    def facts(self):
        import vllm

        config = self.core.vllm_config
        return {
            "vllm": vllm.__version__,
            "graphs": str(config.compilation_config.cudagraph_mode),
            "async": config.scheduler_config.async_scheduling,
            "modules": self.llm.apply_model(modules)[0],
        }

    def chosen(self, prompts, tokens):
        """Greedy tokens of each, and their log probabilities."""
        outs = self._generate(prompts, tokens, logprobs=0)
        made = [(list(out.token_ids), out.logprobs) for out in (each.outputs[0] for each in outs)]
        return [(ids, [at[i].logprob for i, at in zip(ids, by, strict=True)]) for ids, by in made]

    def given(self, sequences, tokens):
        """The log probabilities of the last tokens of each."""
        outs = self._generate(sequences, 1, prompt_logprobs=0)
        ends = [zip(out.prompt_token_ids, out.prompt_logprobs, strict=True) for out in outs]
        return [[at[i].logprob for i, at in list(end)[-tokens:]] for end in ends]

    def prefill(self, prompts):
        """Seconds until all have their first token."""
        begin = perf_counter()
        self._generate(prompts, 1)
        return perf_counter() - begin

    def _generate(self, prompts, tokens, **options):
        asked = parameters(tokens, **options)
        given = [{"prompt_token_ids": ids} for ids in prompts]
        return self.llm.generate(given, asked, use_tqdm=False)

    def start(self, prompts):
        """Fills the prompts, and keeps the requests for `decode`."""
        from vllm.sampling_params import RequestOutputKind

        asked = parameters(None, output_kind=RequestOutputKind.DELTA)
        self.made = {f"{len(prompts)}-{i}": 0 for i in range(len(prompts))}
        for name, ids in zip(self.made, prompts, strict=True):
            self.core.add_request(name, {"prompt_token_ids": ids}, asked)
        self._advance(1)

    def decode(self, steps):
        """Seconds that a token of each request takes: the median of so many, after some that are
        not timed. A mean would have what else the host did meanwhile."""
        self._advance(WARM)
        at = [perf_counter()]
        for _ in range(steps):
            self._advance(1)
            at.append(perf_counter())
        return statistics.median(b - a for a, b in itertools.pairwise(at))

    def _advance(self, tokens):
        """Steps until the requests with the fewest tokens have so many more. Prompts that do not
        fit into one step get their first token later than others, and stay behind."""
        wanted = min(self.made.values()) + tokens
        while min(self.made.values()) < wanted:
            if not self.core.has_unfinished_requests():
                raise RuntimeError(f"requests have ended: {min(self.made.values())} of {wanted}")
            for out in self.core.step():
                self.made[out.request_id] += len(out.outputs[0].token_ids)

    def profile_decode(self, prompts):
        """[(name, start, microseconds)] of what the GPU did in each of some steps."""
        self.start(prompts)
        self._advance(WARM)
        found = profiled(self.core.step)
        self.stop()
        return found

    def profile_prefill(self, prompts):
        """The same of prompts that are filled again and again, in a step each time if they fit."""
        return profiled(lambda: self._generate(prompts, 1))

    def stop(self):
        self.core.abort_request(list(self.made))
        while self.core.has_unfinished_requests():
            self.core.step()
        self.made = {}


def profiled(step, times=5):
    from torch.profiler import ProfilerActivity, profile, record_function

    synchronize()
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with profile(activities=activities) as found:
        for _ in range(times):
            with record_function(vllm_steps.STEP):
                step()
                synchronize()
    return vllm_steps.by_step(found.events())


def parameters(tokens, **options):
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True, **options
    )


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def modules(model):
    """{what computes a module, and by which kernel: how many}."""
    found = {}
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        method = getattr(module, "scheme", None) or method
        if method is not None:
            parts = [type(method).__name__]
            if (kernel := getattr(method, "kernel", None)) is not None:
                parts.append(type(kernel).__name__)
            if (backend := getattr(method, "nvfp4_backend", None)) is not None:
                parts.append(backend.name)
            name = " ".join(parts)
            found[name] = found.get(name, 0) + 1
    return found


def serve(pipe, kind, folder, options, log):
    """A process: makes an engine, and answers [name of a method, arguments]."""
    with open(log, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ |= ENVIRONMENT | kind.variables
    engine = Engine(folder, options | kind.options)
    gc.collect()
    gc.freeze()  # what an engine is made of would be looked at between steps
    pipe.send(None)
    for name, arguments in iter(pipe.recv, None):
        pipe.send(getattr(engine, name)(*arguments))


class Remote:
    """An engine in a process of its own: call(name, ..) is that of its method."""

    def __init__(self, name, folder, options, log):
        spawn = multiprocessing.get_context("spawn")
        self.name, self.log, self.kernels = name, log, ENGINES[name].kernels
        self.pipe, other = spawn.Pipe()
        arguments = other, ENGINES[name], folder, options, log
        self.process = spawn.Process(target=serve, args=arguments)
        self.process.start()
        other.close()

    def answer(self):
        try:
            return self.pipe.recv()
        except EOFError:
            end = self.log.read_text(errors="replace")[-6000:]
            raise RuntimeError(
                f"{self.name}: its process ended; its log ends with\n{end}"
            ) from None

    def call(self, name, *arguments):
        self.pipe.send((name, arguments))
        return self.answer()

    def close(self):
        try:
            self.pipe.send(None)
        except OSError:  # its process ended
            pass
        self.process.join(10)
        self.process.kill()
