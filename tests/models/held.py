"""What a model and a directory are, to say afterwards whether they are as before or complete."""

import copy
import shutil
import sys
from pathlib import Path

import torch
from skeletons import skeleton
from torch import nn

from nvfp4kern.checkpoint import load_checkpoint, save_checkpoint
from nvfp4kern.nn import quantize_


def identity(model):
    """Each module and each tensor by its place, itself, and what a step could change of it."""
    modules = [(n, id(m), type(m), m.training) for n, m in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return modules, [(n, id(t), t.device, t.requires_grad, contents(t)) for n, t in tensors]


def meaning(model):
    """What two models have in common that are the same but for where they lie."""
    modules = [(n, type(m), m.training) for n, m in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return modules, [(n, t.device, t.requires_grad, contents(t)) for n, t in tensors]


def contents(tensor):
    if tensor.is_meta:
        return tensor.dtype, tuple(tensor.shape)
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), flat.numpy().tobytes()


def files(directory):
    """{path: content} of all that is there."""
    found = sorted(Path(directory).rglob("*"))
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else None for p in found}


def interrupted(call, line, within=""):
    """Calls, and KeyboardInterrupt comes before a line: of those that run in files with `within` in
    their names, the one with this number, from 1. There is none where not so many run. Dynamo's
    count for none: it watches objects die, and what a callback of that raises is lost."""

    def trace(frame, event, _):
        nonlocal line
        if within not in frame.f_code.co_filename or "_dynamo" in frame.f_code.co_filename:
            return None
        line -= event == "line"
        if line == 0:
            raise KeyboardInterrupt
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(outer)


class Load:
    """A meta model that becomes a checkpoint's; a step may fail."""

    WITHIN = ""
    """Of the names of files whose functions are interrupted."""

    def __init__(self, directory):
        self.directory = directory
        self.empty = skeleton(directory)
        self.renew()
        self.run()
        self.complete = meaning(self.model)
        self.renew()

    def renew(self):
        self.model = copy.deepcopy(self.empty)
        self.before = identity(self.model)

    def run(self):
        load_checkpoint(self.model, self.directory, device="cpu", progress=False, strict=False)

    def wrong(self, finished):
        """What is wrong after a run, which may have finished. Then it is made ready for the
        next."""
        if not torch.is_grad_enabled():
            torch.set_grad_enabled(True)
            return ["the thread has no gradients any more"]
        if not finished and identity(self.model) == self.before:
            return []
        came = meaning(self.model)
        self.renew()
        if came == self.complete:
            return []
        modules, tensors = (
            sum(a != b for a, b in zip(mine, theirs, strict=False))
            for mine, theirs in zip(came, self.complete, strict=True)
        )
        meta = sum(t[1].type == "meta" for t in came[1])
        return [f"a model in between: {modules} modules and {tensors} tensors differ from the "
                f"complete one, {meta} are on the meta device"]  # fmt: skip


class Quantize(Load):
    """A model of plain layers that is quantised in place."""

    def __init__(self, directory):
        self.empty = skeleton(directory).to_empty(device="cpu")
        with torch.no_grad():
            for i, value in enumerate(self.empty.parameters()):
                value.copy_(torch.linspace(-1, 1 + i / 9, value.numel()).view(value.shape))
        self.renew()
        self.run()
        self.complete = meaning(self.model)
        self.renew()

    def run(self):
        quantize_(self.model)


class Pretrained:
    """A model that transformers makes. After an interrupt there is none, and the next is right."""

    WITHIN = "nvfp4kern"

    def __init__(self, directory, quantize=False):
        import transformers

        import nvfp4kern.transformers as ours

        self.directory, self.options = directory, {"dtype": torch.bfloat16}
        self.make = transformers.AutoModelForCausalLM.from_pretrained
        if quantize:
            self.directory = directory.with_name("plain")
            kind = transformers.AutoConfig.from_pretrained(directory)
            del kind.quantization_config
            plain = transformers.AutoModelForCausalLM.from_config(kind, dtype=torch.bfloat16)
            plain.save_pretrained(self.directory)
            self.options["quantization_config"] = ours.NVFP4KernConfig()
        self.run()
        self.complete = meaning(self.model)
        self.before = self.process()

    def run(self):
        self.model = None
        self.model = self.make(self.directory, **self.options)

    @staticmethod
    def process():
        return torch.get_default_dtype(), nn.Module.register_parameter, nn.Module.__setattr__

    def wrong(self, finished):
        if self.process() != self.before:
            yield "the process has changed"
        if not finished:
            self.run()
        if meaning(self.model) != self.complete:
            yield "another model"


class Save:
    """A directory that a model is written to. `there`: it exists, and is empty."""

    WITHIN = ""

    def __init__(self, directory, to, there):
        model = Load(directory)
        model.run()
        self.model, self.root, self.there = model.model, to, there
        self.renew()
        self.run()
        self.complete = files(to)
        self.renew()

    def renew(self):
        shutil.rmtree(self.root, ignore_errors=True)
        (self.root / "saved" if self.there else self.root).mkdir(parents=True)
        self.before = files(self.root)

    def run(self):
        config = {"model_type": "llama"}
        save_checkpoint(self.model, self.root / "saved", config=config, max_shard_bytes=40_000)

    def wrong(self, finished):
        came = files(self.root)
        if came == self.complete or not finished and came == self.before:
            if came != self.before:
                self.renew()
            return []
        self.renew()
        names = sorted(name for name in came if came[name] != self.before.get(name, b""))
        return [f"files in between: {names}"]
