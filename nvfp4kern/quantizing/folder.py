"""From a folder of safetensors to one with NVFP4 weights: all of it, or nothing."""

import hashlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .. import __version__
from ..checkpoint.companions import copy_companions
from ..checkpoint.compressed import SOURCES
from ..checkpoint.configuration import ALGORITHMS, beside, by_compressed_tensors, by_modelopt
from ..checkpoint.files import INDEX, CheckpointError, Files
from ..checkpoint.plan import EMBEDDINGS, Source
from ..checkpoint.save import write_json
from ..nn import NVFP4Config
from ..nn.frozen import InputQuant, choice
from ..nn.recipes import RECIPES, Recipe
from .calibrating import Compensations, calibrated
from .choice import Choice, Weight, choose, is_table
from .shards import Shard
from .verifying import Errors, verify_folder
from .weights import Reader, as_stored, quantized, sizes
from .work import Work

__all__ = ["Format", "Summary", "quantize_folder"]

Format = Literal["modelopt", "compressed-tensors"]
FORMATS = ("modelopt", "compressed-tensors")
SYNC_BYTES, SYNC_SECONDS = 1 << 28, 2.0
"""After so much, results are brought to the disk, and a killed run continues from there."""


@dataclass
class Summary:
    """What quantize_folder made."""

    chosen_by: str
    layers: int
    kept: dict[str, str]
    """Module whose matrix is not quantised -> why."""
    nbytes: int
    """Of all tensors, before."""
    nbytes_quantized: int
    """Of those that were quantised, before."""
    nbytes_written: int
    errors: Errors | None = None
    """With verify=True."""
    uncalibrated: list[str] = field(default_factory=list)
    """Layers that no token reached, so that recipe "amax" stands in for "gptq"."""


@dataclass
class Step:
    """A tensor that is copied, or a layer that is quantised."""

    tensor: str
    outputs: dict[str, tuple[str, str, tuple[int, ...]]]
    """Part of the layer -> (name, dtype, shape); "" of a tensor that is copied."""
    nbytes: int
    """Read."""
    weight: Weight | None = None
    index: tuple[int, slice] | None = None
    """Of a part that is copied."""


@dataclass
class Job:
    """A shard of the source, and the one that is written for it."""

    name: str
    steps: list[Step] = field(default_factory=list)


Progress = Callable[[int, int], None]
"""Is told of bytes read that are done, and of how many there are, in all."""


def quantize_folder(
    source: str | Path,
    target: str | Path,
    *,
    recipe: Recipe = "amax",
    exclude: str | Iterable[str] = (),
    input_quant: Literal["static", "dynamic", "token"] | None = None,
    calibrate: str | None = None,
    format: Format = "modelopt",
    verify: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Quantises linear weights and stacked experts of a Hugging Face folder, shard by shard.

    Nothing is held but a piece of a tensor and its codes; of stacks that lie across or by turns the
    matrix of an expert; and with recipe "gptq" the factor of a Hessian, 8 K * K bytes, and while it
    is made some of its size. `target` is absent, or complete, at every
    moment: the run works in `.NAME.incomplete-quantize` beside it, and renames it in the end. The
    same call continues a run that was killed, and its result has the same bytes.

    source: a folder with config.json and *.safetensors that are not quantised.
    target: a directory that does not exist yet, or is empty.
    recipe: NVFP4Config's. Layers that engines fuse, such as q, k and v, get one global scale.
    exclude: patterns (fnmatch) of names of modules that stay as they are, with all that is in them,
        beside those of NVFP4Config.
    input_quant: None (W4A16), "dynamic", "token", or "static" with `calibrate`: NVFP4Linear's. To
        other engines "token" is W4A16, since their formats have no word for it.
    calibrate: a text whose first 65536 tokens the model is run with, layer by layer. An input's
        static scale is its largest magnitude / 2688; all experts of a layer have the same. With
        recipe "gptq" 4 K * K bytes for each layer lie beside `target` meanwhile. Layers that no
        token reached are quantised by "amax", and the summary names them.
    format: whose layout is written; stacked experts are written one by one in both.
    verify: reads all of it again before it becomes `target`. Raises CheckpointError where a copy
        differs, or a layer's relative error is not that of NVFP4.
    progress: is called with (bytes done, bytes in all).

    Generation configuration, tokenizer, processor and other small files are copied.

    Raises FileExistsError for a target with files, and for an unfinished run with other arguments.
    Raises CheckpointError for files that cannot be read, that are quantised already, or change
    meanwhile. Raises BlockingIOError where another process does the same.
    """
    choice("recipe", recipe, RECIPES)
    choice("input_quant", input_quant, (None, "static", "dynamic", "token"))
    choice("format", format, FORMATS)
    if (input_quant == "static" or recipe == "gptq") != (calibrate is not None):
        what = "calibrate: expected with input_quant='static' or recipe='gptq', and only then"
        raise ValueError(what)
    patterns = (*NVFP4Config().exclude, *((exclude,) if isinstance(exclude, str) else exclude))
    with Files(source) as files:
        _check_source(files)
        found = choose(files, patterns)
        if not found.weights:
            raise CheckpointError(f"{files.path.name}: has no weight to be quantised")
        run = Run(files, found, recipe, input_quant, format)
        work = Work(Path(target), run.settings(patterns, calibrate))
        try:
            if calibrate is not None:
                run.calibrate(work, calibrate)
            run.write(work, progress or (lambda done, total: None))
            files.check()
            run.finish(work.folder)
            errors = verify_folder(files, found, work.folder) if verify else None
            files.check()
            work.publish()
        finally:
            work.close()
    return Summary(
        found.by,
        len(run.weights),
        found.kept,
        sum(info.nbytes for info in files.tensors.values()),
        sum(files.tensors[name].nbytes for name in found.weights),
        sum(shard.size for shard in run.shards),
        errors,
        run.uncalibrated,
    )


def _check_source(files: Files) -> None:
    name = files.path.name
    if not (files.path / "config.json").is_file():
        raise CheckpointError(f"{name}: expected a folder with config.json and *.safetensors")
    if files.quantization is not None:
        method = files.quantization.get("quant_method", "some method")
        raise CheckpointError(f"{name}: is quantised already, by {method}")
    shards = sorted({info.shard for info in files.tensors.values()})
    other = [shard for shard in shards if not shard.endswith(".safetensors")]
    if other:
        raise CheckpointError(f"{other[0]}: expected *.safetensors")


class Run:
    """The steps from one folder to the other, in order."""

    def __init__(
        self,
        files: Files,
        found: Choice,
        recipe: Recipe,
        input_quant: InputQuant,
        format: Format,
    ) -> None:
        self.files, self.found = files, found
        self.recipe, self.input_quant, self.format = recipe, input_quant, format
        self.input_scales: dict[str, float] = {}
        self.compensations: Compensations | None = None
        self.uncalibrated: list[str] = []
        self.parts = SOURCES if format == "compressed-tensors" else {k: Source(k) for k in SOURCES}
        self.weights = [each for weights in found.weights.values() for each in weights]
        self.groups: dict[str, list[Weight]] = defaultdict(list)
        for weight in self.weights:
            self.groups[weight.group].append(weight)
        self.jobs = self._jobs()
        self.shards: list[Shard] = []

    def calibrate(self, work: Work, text: str) -> None:
        static, folder = self.input_quant == "static", work.path / "hessians"
        kept = folder if self.recipe == "gptq" else None
        made = work.once(
            "calibration", lambda at: calibrated(self.files, self.found, text, static, kept, at)
        )
        self.input_scales = made["scales"]
        if kept is not None:
            self.compensations = Compensations(kept, made["hessians"])
            self.uncalibrated = [name for name, parts in made["hessians"].items() if not parts]

    def settings(self, patterns: tuple[str, ...], text: str | None) -> dict[str, Any]:
        """What a run must have in common with the one that it continues."""
        stats = {
            shard: os.stat(self.files.path / shard) for shard in (job.name for job in self.jobs)
        }
        layers = repr([(step.tensor, step.outputs) for job in self.jobs for step in job.steps])
        return {
            "version": __version__,
            "source": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()},
            "recipe": self.recipe,
            "exclude": list(patterns),
            "inputs": self.input_quant,
            "text": hashlib.sha256((text or "").encode()).hexdigest(),
            "format": self.format,
            "chosen layers": hashlib.sha256(layers.encode()).hexdigest(),
        }

    def _jobs(self) -> list[Job]:
        jobs: dict[str, Job] = {}
        for name, info in self.files.tensors.items():
            job = jobs.setdefault(info.shard, Job(info.shard))
            if name in self.found.weights:
                job.steps += [self._layer(weight) for weight in self.found.weights[name]]
            elif name in self.found.biases:
                for each in self.found.biases[name]:
                    outputs = {"": (f"{each.name}.bias", info.dtype, (each.rows,))}
                    part = info.nbytes // len(self.found.biases[name])
                    job.steps.append(Step(name, outputs, part, index=each.of_bias))
            else:
                outputs = {"": (name, info.dtype, info.shape)}
                job.steps.append(Step(name, outputs, info.nbytes))
        return list(jobs.values())

    def _layer(self, weight: Weight) -> Step:
        shape = (1,) if self.format == "compressed-tensors" else ()
        found = sizes(weight) | {"weight_scale_2": ("float32", shape)}
        if self.input_quant in ("static", "dynamic"):
            found["input_scale"] = ("float32", shape)
        outputs = {
            part: (f"{weight.name}.{self.parts[part].name}", *what) for part, what in found.items()
        }
        info = self.files.tensors[weight.tensor]
        nbytes = info.nbytes * weight.rows * weight.columns // torch.Size(info.shape).numel()
        return Step(weight.tensor, outputs, nbytes, weight)

    # ---------------------------------------------------------------------------------------------

    def write(self, work: Work, progress: Progress) -> None:
        self.shards = [
            Shard(work.folder / job.name, (o for s in job.steps for o in s.outputs.values()))
            for job in self.jobs
        ]
        left = sum(shard.needed() for shard in self.shards)
        free = shutil.disk_usage(work.folder).free
        if free < left:
            raise OSError(f"{work.folder}: {left} bytes are needed, {free} are free")
        done = self._done(work)
        of_steps = [step.nbytes for job in self.jobs for step in job.steps]
        total, nbytes = sum(of_steps), sum(of_steps[:done])
        reader, steps = Reader(self.files), 0
        progress(nbytes, total)
        for job, shard in zip(self.jobs, self.shards, strict=True):
            if steps + len(job.steps) <= done:
                steps += len(job.steps)
                continue
            shard.open()
            try:
                since, unsynced = time.monotonic(), 0
                for step in job.steps:
                    steps += 1
                    if steps <= done:
                        continue
                    self._step(reader, step, shard)
                    unsynced, nbytes = unsynced + step.nbytes, nbytes + step.nbytes
                    progress(nbytes, total)
                    if unsynced > SYNC_BYTES or time.monotonic() - since > SYNC_SECONDS:
                        shard.sync()
                        work.record(steps)
                        since, unsynced = time.monotonic(), 0
                shard.sync()
            finally:
                shard.close()
            work.record(steps)

    def _done(self, work: Work) -> int:
        """Steps that need not be made again."""
        done, steps = work.done(), 0
        for job, shard in zip(self.jobs, self.shards, strict=True):
            if steps < done and not shard.complete():
                return steps
            steps += len(job.steps)
        return min(done, steps)

    def _step(self, reader: Reader, step: Step, shard: Shard) -> None:
        if step.index is not None:
            shard.write(step.outputs[""][0], _bytes(self.files.read(step.tensor, step.index)))
            return
        if step.weight is None:
            at = 0
            for piece in self.files.pieces(step.tensor):
                shard.write(step.outputs[""][0], piece, at)
                at += len(piece)
            return
        members = self.groups[step.weight.group]
        divisor = self.parts["weight_scale_2"].divisor
        scale, stored = as_stored(reader.global_scale(members, self.recipe), divisor)
        if not stored.isfinite():
            largest = max(float(reader.largest(each)) for each in members)
            what = f"{largest:g} at most, too small for a global scale that is a divisor"
            raise CheckpointError(f"{step.tensor}: {what}")
        width = step.weight.columns // 2
        how = None if self.compensations is None else self.compensations.of(step.weight)
        recipe = "amax" if step.weight.name in self.uncalibrated else self.recipe
        for row, made in quantized(reader, step.weight, scale, recipe, how):
            shard.write(step.outputs["weight"][0], _bytes(made.data), row * width)
            shard.write(step.outputs["weight_scale"][0], _bytes(made.scales), row * width // 8)
        shard.write(step.outputs["weight_scale_2"][0], _bytes(stored))
        if "input_scale" in step.outputs:
            dynamic = self.input_quant == "dynamic"  # block scales alone
            value = torch.tensor(1.0 if dynamic else self.input_scales[step.weight.name])
            value = 1 / value if divisor else value
            shard.write(step.outputs["input_scale"][0], _bytes(value))

    def finish(self, folder: Path) -> None:
        """All that is beside the shards."""
        copy_companions(self.files.path, folder)
        weight_map = {
            name: job.name
            for job in self.jobs
            for step in job.steps
            for name, _, _ in step.outputs.values()
        }
        if len(self.jobs) > 1 or self.jobs[0].name != "model.safetensors":
            total = sum(shard.size - len(shard.head) for shard in self.shards)
            metadata = {"total_size": total}
            write_json(folder / INDEX, {"metadata": metadata, "weight_map": weight_map})
        inputs = {weight.name: self.input_quant for weight in self.weights}
        kept = sorted(name for name in self.found.kept if not is_table(name, EMBEDDINGS))
        if self.format == "modelopt":
            algorithm = ALGORITHMS[self.input_quant]
            quantization = by_modelopt(dict.fromkeys(inputs, algorithm), inputs, kept)
            write_json(folder / "hf_quant_config.json", beside(quantization))
        else:
            quantization = by_compressed_tensors(inputs, kept)
        config = {**self.files.config, "quantization_config": quantization}
        write_json(folder / "config.json", config)


def _bytes(value: Tensor) -> memoryview:
    return memoryview(value.contiguous().reshape(-1).view(torch.uint8).numpy())
