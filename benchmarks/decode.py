"""Tokens a second of a decoding model with NVFP4 weights, beside the same model in bfloat16.

    python benchmarks/decode.py [--json FILE]

The model has Llama-3-8B's shape, random weights, one sequence and a key-value cache of fixed size.
On a GPU a token is one replay of a CUDA graph; on the CPU it is a call. NVFP4 is W4A16: the inputs
stay bfloat16. The embedding and the head are bfloat16 in both models. Both fuse q, k and v, and
gate and up. Both are timed as they are, "eager", and after torch.compile, which fuses what lies
between the products. The bfloat16 model has the dequantised weights, so all compute one function:
before anything is timed the logits of some tokens must agree. Exits with 2 where they do not.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import nn

from nvfp4kern.bench.measure import environment
from nvfp4kern.nn import NVFP4Linear, NVFP4SwiGLU

DTYPE = torch.bfloat16
AGREE = 0.03
"""Of the logits' norm. Sums of 4096 and 14336 products are rounded to bfloat16 in another order."""
CHECKED, WARM_UP, ROUNDS, TOKENS = 8, 8, 5, 64
HOW = ("eager", "compiled")


@dataclass(frozen=True)
class Shape:
    """Llama-3-8B, unless the command says otherwise."""

    layers: int = 32
    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 128256
    context: int = 1024

    @property
    def width(self):
        return self.hidden // self.heads

    def weight_bytes(self, bits):
        """Bytes of the weights that a token reads; `bits` for an element of the linear layers."""
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.width
        linear = attention + 3 * self.hidden * self.intermediate
        return self.layers * linear * bits / 8 + self.vocabulary * self.hidden * 2


class GateUp(nn.Module):
    """The feed-forward layer of the bfloat16 model."""

    def __init__(self, shape):
        super().__init__()
        self.gate_up = linear(shape.hidden, 2 * shape.intermediate)
        self.down = linear(shape.intermediate, shape.hidden)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * up)


def linear(k, n):
    layer = nn.Linear(k, n, bias=False, device=torch.get_default_device(), dtype=DTYPE)
    nn.init.normal_(layer.weight, std=k**-0.5)
    return layer.requires_grad_(False)


class Block(nn.Module):
    """Attention over the cache, then the feed-forward layer, each with its norm."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.qkv = linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.width)
        self.o = linear(shape.hidden, shape.hidden)
        self.mlp = GateUp(shape)
        for name in ("keys", "values"):
            cache = torch.zeros(1, shape.kv_heads, shape.context, shape.width, dtype=DTYPE)
            self.register_buffer(name, cache, persistent=False)

    def forward(self, x, position, rotation, unseen):
        shape = self.shape
        y = self.qkv(nn.functional.rms_norm(x, x.shape[-1:])).view(1, 1, -1, shape.width)
        q, k, v = y.transpose(1, 2).split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        self.keys.index_copy_(2, position, rotate(k, rotation))
        self.values.index_copy_(2, position, v)
        y = nn.functional.scaled_dot_product_attention(
            rotate(q, rotation), self.keys, self.values, attn_mask=unseen, enable_gqa=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(1, 1, -1))
        return x + self.mlp(nn.functional.rms_norm(x, x.shape[-1:]))


def rotate(x, rotation):
    cos, sin = rotation
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class Decoder(nn.Module):
    """One token at a time: `step` reads `token` and `position`, and renews them."""

    def __init__(self, shape, embedding, head, blocks):
        super().__init__()
        self.shape, self.embedding, self.head = shape, embedding, head
        self.blocks = nn.ModuleList(blocks)
        self.register_buffer("token", torch.zeros(1, 1, dtype=torch.int64))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        rate = 500000.0 ** -(torch.arange(0, shape.width, 2) / shape.width)
        angle = torch.outer(torch.arange(shape.context), rate).repeat(1, 2)
        self.register_buffer("rotations", torch.stack((angle.cos(), angle.sin())).to(DTYPE))

    def step(self):
        """Returns the logits."""
        x = self.embedding(self.token)
        rotation = self.rotations.index_select(1, self.position).unbind()
        places = torch.arange(self.shape.context, device=x.device)
        unseen = torch.zeros_like(places, dtype=DTYPE).masked_fill(
            places > self.position, -torch.inf
        )
        for block in self.blocks:
            x = block(x, self.position, rotation, unseen[None, None, None])
        logits = self.head(nn.functional.rms_norm(x, x.shape[-1:]))[:, -1]
        self.token.copy_(logits.argmax(-1, keepdim=True))
        self.position.copy_((self.position + 1) % self.shape.context)
        return logits


def models(shape):
    """The model in bfloat16, with dequantised weights, and the one in NVFP4."""
    embedding = nn.Embedding(shape.vocabulary, shape.hidden, dtype=DTYPE).requires_grad_(False)
    head = linear(shape.hidden, shape.vocabulary)
    plain, packed = [], []
    for _ in range(shape.layers):
        block, twin = Block(shape), Block(shape)
        for name in ("qkv", "o"):
            setattr(twin, name, quantized(getattr(block, name)))
        gate, up = block.mlp.gate_up.weight.chunk(2)
        swiglu = NVFP4SwiGLU(shape.hidden, shape.intermediate)
        swiglu.gate_proj, swiglu.up_proj = (quantized(with_weight(w)) for w in (gate, up))
        swiglu.down_proj = quantized(block.mlp.down)
        gate.copy_(swiglu.gate_proj.dequantize(DTYPE))
        up.copy_(swiglu.up_proj.dequantize(DTYPE))
        twin.mlp = swiglu
        plain.append(block)
        packed.append(twin)
    return (Decoder(shape, embedding, head, blocks) for blocks in (plain, packed))


def with_weight(weight):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def quantized(layer):
    """The layer in NVFP4; the given one gets its values."""
    packed = NVFP4Linear.from_linear(layer)
    layer.weight.copy_(packed.dequantize(DTYPE))
    return packed


def steps_of(decoders, how):
    """{(model, how): a call that makes a token}."""
    calls = {"eager": lambda step: step, "compiled": compiled}
    return {
        (name, way): calls[way](decoder.step) for name, decoder in decoders.items() for way in how
    }


def compiled(step):
    """Without tuning, which takes minutes. The graph is captured as that of eager calls."""
    return torch.compile(step, fullgraph=True, dynamic=False)


def disagreements(decoders, steps, seed=0):
    """{(model, how): the largest distance of its logits from the first's, over their norm}."""
    draw = torch.Generator().manual_seed(seed)
    vocabulary = next(iter(decoders.values())).shape.vocabulary
    tokens = torch.randint(vocabulary, (CHECKED,), generator=draw, device="cpu").tolist()
    found = {key: logits_of(decoders[key[0]], step, tokens) for key, step in steps.items()}
    right = next(iter(found.values()))
    size = right.norm(dim=-1)
    return {key: ((x - right).norm(dim=-1) / size).max().item() for key, x in found.items()}


def logits_of(decoder, step, tokens):
    """Of these tokens, one after the other from the first position on."""
    found = []
    for position, token in enumerate(tokens):
        decoder.position.fill_(position)
        decoder.token.fill_(token)
        found.append(step()[0].float())
    return torch.stack(found)


def rates(steps, tokens):
    """{(model, how): tokens a second}, medians of rounds in turns."""
    steps = {key: replayed(step) for key, step in steps.items()}
    for step in steps.values():
        for _ in range(min(WARM_UP, tokens)):
            step()
    found = {key: [] for key in steps}
    for _ in range(ROUNDS):
        for key, step in steps.items():
            finish()
            begin = perf_counter()
            for _ in range(tokens):
                step()
            finish()
            found[key].append(tokens / (perf_counter() - begin))
    return {key: statistics.median(values) for key, values in found.items()}


def finish():
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def replayed(step):
    """A call that makes a token: a graph's replay on a GPU."""
    if torch.get_default_device().type != "cuda":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="in a timed round")
    parser.add_argument("--how", nargs="+", choices=HOW, default=HOW)
    parser.add_argument("--json", type=Path, metavar="FILE")
    for name, value in asdict(Shape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args(words)


def main(words=None):
    arguments = arguments_of(words)
    shape = Shape(**{name: getattr(arguments, name) for name in asdict(Shape())})
    torch.manual_seed(0)
    with torch.no_grad(), torch.device(arguments.device):
        decoders = dict(zip(("bfloat16", "NVFP4"), models(shape), strict=True))
        steps = steps_of(decoders, arguments.how)
        apart = disagreements(decoders, steps)
        worst = max(apart.values())
        print(f"logits differ by {worst:.4f} of their norm, at most {AGREE} is right")
        if not worst <= AGREE:
            return 2
        found = rates(steps, arguments.tokens)
    rows = [row(shape, *key, speed, apart[key]) for key, speed in found.items()]
    for each in rows:
        print(
            "{model:<8} {how:<8} {tokens_per_second:8.1f} tokens/s, {gigabytes:.2f} GB a token, "
            "{gigabytes_per_second:.0f} GB/s".format(**each)
        )
    for how in arguments.how:
        ratio = found["NVFP4", how] / found["bfloat16", how]
        print(f"{how}: NVFP4 is {ratio:.2f} times as fast")
    print(f"NVFP4 reads {shape.weight_bytes(16) / shape.weight_bytes(4.5):.2f} times fewer bytes")
    if arguments.json:
        content = {"environment": environment(arguments.device), "shape": asdict(shape)}
        arguments.json.write_text(json.dumps(content | {"rows": rows}, indent=2) + "\n")
    return 0


def row(shape, model, how, speed, apart):
    gigabytes = shape.weight_bytes({"bfloat16": 16, "NVFP4": 4.5}[model]) / 1e9
    return {"model": model, "how": how, "tokens_per_second": speed, "gigabytes": gigabytes,
            "gigabytes_per_second": speed * gigabytes, "disagreement": apart}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
