"""`nvfp4kern generate FOLDER PROMPT`: whether a model runs here, and how fast, with its words."""

import argparse
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from .. import explain
from .. import torch as nk
from ..machine import cpu_in_use, device_in_use, in_words
from ..nn import NVFP4Linear
from ..options import exit_status
from .opening import model_folder, nvfp4_layers, open_model, open_tokenizer

WARM = 3
"""New tokens before the clock runs: by then kernels are loaded for the prompt and for one token."""
UNFINISHED = "\ufffd"
"""What a tokenizer makes of the first bytes of a character."""


def run(arguments: argparse.Namespace) -> int:
    """0: the text is on stdout, and what it took on stderr. 2: something is wrong. 130:
    interrupted."""
    return exit_status(generate, arguments)


def generate(arguments: argparse.Namespace) -> None:
    if arguments.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens: {arguments.max_new_tokens}, expected 1 or more")
    if arguments.temperature is not None and not 0 < arguments.temperature < float("inf"):
        raise ValueError(f"--temperature: {arguments.temperature}, expected a number above 0")
    folder = model_folder("FOLDER", arguments.folder)
    device = device_in_use(arguments.device)
    tokenizer = open_tokenizer(folder)
    prompt = prompt_of(tokenizer, arguments.prompt, arguments.raw)
    begin = time.perf_counter()
    model = open_model(folder, device, arguments.dtype)
    loaded = time.perf_counter() - begin
    prompt = {name: value.to(device) for name, value in prompt.items()}
    model.generation_config = configured(model.generation_config, arguments, tokenizer)
    warm = warmed(model, prompt) if device != "cpu" or arguments.compile else None
    torch.manual_seed(arguments.seed)
    stream = Stream(tokenizer, sys.stdout.write)
    stream.begin()
    model.generate(**prompt, streamer=stream)
    print(flush=True)
    for name, value in facts(model, device, loaded, warm, stream).items():
        print(f"{name:<8} {value}", file=sys.stderr)


def prompt_of(tokenizer: Any, text: str, raw: bool) -> dict[str, Tensor]:
    """Token ids and their mask. Raises ValueError where there are none."""
    if raw or not tokenizer.chat_template:
        found = tokenizer(text, return_tensors="pt")
    else:
        found = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
    if not found["input_ids"].numel():
        raise ValueError(f"PROMPT: {text!r} has no tokens, expected at least one")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def configured(given: Any, arguments: argparse.Namespace, tokenizer: Any) -> Any:
    """The folder's generation configuration with what the arguments say."""
    config = deepcopy(given)
    config.max_new_tokens, config.max_length = arguments.max_new_tokens, None
    config.num_beams = 1  # beams have no words before the end
    config.do_sample = arguments.sample or arguments.temperature is not None
    if arguments.temperature is not None:
        config.temperature = arguments.temperature
    if not config.do_sample:  # transformers warns of what says how to draw
        config.temperature = config.top_k = config.top_p = None
    if config.pad_token_id is None:  # and that it takes another
        config.pad_token_id = tokenizer.pad_token_id or 0
    if arguments.compile:
        config.cache_implementation = "static"
        config.compile_config = transformers.CompileConfig()
        config.compile_config._compile_all_devices = True
    return config


def warmed(model: Any, prompt: dict[str, Tensor]) -> float:
    """Seconds of a first pass, which nobody sees."""
    begin, most = time.perf_counter(), model.generation_config.max_new_tokens
    if model.generation_config.cache_implementation != "static":  # compiled for its size
        most = min(WARM, most)
    model.generate(**prompt, max_new_tokens=most)
    return time.perf_counter() - begin


class Stream(BaseStreamer):
    """Writes what new tokens say as soon as it is certain, and keeps the times at which they came.

    All that is written is the text of all tokens: what belongs to a character whose other bytes are
    still to come waits, and each token is decoded behind the ones before, which some tokenizers
    need for its space.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], Any]) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.prompt, self.new, self.times = 0, list[int](), list[float]()
        self._before = self._written = 0

    def begin(self) -> None:
        self.start = time.perf_counter()

    def put(self, value: Tensor) -> None:
        if value.dim() > 1:
            self.prompt = value.numel()
            return
        self.times.append(time.perf_counter())
        self.new += value.tolist()
        self._say(final=False)

    def end(self) -> None:
        self._say(final=True)

    def _say(self, final: bool) -> None:
        before = self._text(self._before, self._written)
        text = self._text(self._before, len(self.new))
        if len(text) > len(before) and (final or not text.endswith(UNFINISHED)):
            self.write(text[len(before) :])
            sys.stdout.flush()
            self._before, self._written = self._written, len(self.new)

    def _text(self, first: int, last: int) -> str:
        return self.tokenizer.decode(self.new[first:last], skip_special_tokens=True)


def facts(
    model: Any, device: str, loaded: float, warm: float | None, stream: Stream
) -> dict[str, str]:
    """What it ran on, and what it took."""
    cpu = in_words(cpu_in_use(torch.empty(1, 1, dtype=torch.uint8)))
    found = {"device": cpu if device == "cpu" else torch.cuda.get_device_name()}
    layers = nvfp4_layers(model)
    found["backend"] = "torch alone: the folder has no NVFP4 layers"
    if layers:
        found["backend"] = f"{backend_of(next(iter(layers.values())))}, {len(layers)} NVFP4 layers"
    found["load"] = f"{loaded:.2f} s"
    if warm is not None:
        found["warm-up"] = f"{warm:.2f} s"
    first, last, new = stream.times[0], stream.times[-1], len(stream.new)
    found["prompt"] = f"{stream.prompt} tokens, {rate(stream.prompt, first - stream.start)}"
    found["new"] = f"{new} tokens"
    if new > 1:  # the first is the prompt's
        found["new"] += f", {rate(new - 1, last - first)}"
    return found


def backend_of(layer: Any) -> str:
    """Of a layer's product for one token."""
    parts = ("weight", "weight_scale")
    if not isinstance(layer, NVFP4Linear):
        parts = layer.stacks[0], f"{layer.stacks[0]}_weight_scale"
    codes, scales = (getattr(layer, part).detach().flatten(0, -2) for part in parts)
    x = torch.zeros(1, 2 * codes.shape[1], dtype=torch.bfloat16, device=codes.device)
    a, sfa, row_scale = x, None, None
    if layer.input_quant is not None:
        how = "token" if layer.input_quant == "token" else None
        a, sfa, own = nk.quantize(x, global_scale=how, data_dtype=torch.uint8)
        row_scale = own if how else None
    return str(explain("gemm", a, codes, sfa, scales, row_scale=row_scale)["backend"])


def rate(tokens: int, seconds: float) -> str:
    return f"{seconds:.3f} s, {tokens / seconds:.1f} tokens/s"
