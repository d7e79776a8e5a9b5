"""A block of a diffusion transformer with NVFP4 weights, beside the same block in bfloat16.

    python benchmarks/dit_block.py [--json FILE]

The block is that of FLUX's size: 3072 wide, 24 heads, a feed-forward layer of four times the width,
six modulations made of one vector; biases everywhere. Tokens are those of an image's latents: 1024
of 512 x 512 pixels, 4096 of 1024 x 1024. Its linear layers are in bfloat16, W4A16 (inputs stay
bfloat16), W4A4, and where comfy_kitchen is installed as ComfyUI runs them with our backend, inputs
at 16 bits. Before anything is timed, each layer must agree with one in bfloat16 that has the
dequantised weight and the same input, quantised as W4A4's is. On a GPU a block is one replay of a
CUDA graph, on the CPU it is a call. Exits with 2 where layers disagree.
"""

import argparse
import statistics
import sys
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import torch
from decode import finish, replayed
from torch import nn
from torch.nn import functional

import nvfp4kern
from nvfp4kern import results
from nvfp4kern.bench.measure import environment
from nvfp4kern.nn import NVFP4Linear

DTYPE = torch.bfloat16
AGREE = 0.01
"""Of a result's norm. Sums of up to 12288 products are rounded to bfloat16, after another order."""
LINEARS = ("modulation", "qkv", "proj", "fc1", "fc2")
WARM_UP, ROUNDS, CALLS = 3, 5, 20


class Block(nn.Module):
    """x [1, T, width], c [1, width] -> [1, T, width]"""

    def __init__(self, width, heads, layers):
        super().__init__()
        self.width, self.heads = width, heads
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x, c):
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(functional.silu(c)).chunk(6, -1)
        y = functional.layer_norm(x, (self.width,)) * (1 + scale) + shift
        q, k, v = self.qkv(y).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + gate * self.proj(y.transpose(1, 2).reshape(x.shape))
        y = functional.layer_norm(x, (self.width,)) * (1 + scale2) + shift2
        return x + gate2 * self.fc2(functional.gelu(self.fc1(y), approximate="tanh"))


class OfQuantizedInput(nn.Module):
    """A layer in bfloat16 that gets what W4A4 multiplies."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        rows = nvfp4kern.quantize(x.flatten(0, -2))
        return self.layer(nvfp4kern.dequantize(rows, out_dtype="bfloat16").view_as(x))


def drawn_layers(width):
    sizes = (6 * width, width), (3 * width, width), (width, width), (4 * width, width)
    for n, k in (*sizes, (width, 4 * width)):
        layer = nn.Linear(k, n, device=torch.get_default_device(), dtype=DTYPE)
        nn.init.normal_(layer.weight, std=k**-0.5)
        nn.init.normal_(layer.bias, std=0.1)
        yield layer.requires_grad_(False)


def blocks_of(width, heads):
    """({name: a block}, {name: the block in bfloat16 that it must agree with})"""
    drawn = dict(zip(LINEARS, drawn_layers(width), strict=True))
    packed = {name: NVFP4Linear.from_linear(layer) for name, layer in drawn.items()}
    plain = {name: layer.dequantize(DTYPE) for name, layer in packed.items()}
    ways, twins = {"bfloat16": with_weights(drawn, plain), "W4A16": packed}, {}
    ways["W4A4"] = {
        name: NVFP4Linear.from_linear(layer, input_quant="dynamic") for name, layer in drawn.items()
    }
    twins["W4A4"] = {name: OfQuantizedInput(layer) for name, layer in ways["bfloat16"].items()}
    if find_spec("comfy_kitchen"):
        of_comfy = {name: of_comfy_kitchen(layer) for name, layer in drawn.items()}
        ways["comfy_kitchen"] = with_weights(drawn, of_comfy)
        as_it_has_them = {name: weight.dequantize() for name, weight in of_comfy.items()}
        twins["comfy_kitchen"] = with_weights(drawn, as_it_has_them)
    ways, twins = (
        {way: Block(width, heads, layers) for way, layers in each.items()} for each in (ways, twins)
    )
    return ways, {way: twins.get(way, ways["bfloat16"]) for way in ways}


def with_weights(layers, weights):
    """Such layers with these weights."""
    found = {}
    for name, layer in layers.items():
        found[name] = twin = nn.Linear(layer.in_features, layer.out_features, device="meta")
        twin.weight = nn.Parameter(weights[name], requires_grad=False)
        twin.bias = layer.bias
    return found


def of_comfy_kitchen(layer):
    """The weight as ComfyUI holds it; once our node has been loaded, torch's linear is ours."""
    from comfy_kitchen.tensor import QuantizedTensor

    import nvfp4kern.comfy

    assert nvfp4kern.comfy.register()
    return QuantizedTensor.from_float(layer.weight, "TensorCoreNVFP4Layout")


def disagreements(blocks, twins, x, c):
    """{block: the largest distance of a layer's result from its twin's of the same input, over the
    norm of that}"""
    found = {}
    for name, block in blocks.items():
        apart = [
            (getattr(block, layer)(given).float() - right).norm() / right.norm()
            for layer, (given, right) in calls_of(twins[name], x, c).items()
        ]
        found[name] = max(apart).item()
    return found


def calls_of(block, x, c):
    """{layer: (its input, its result in float32)}"""
    found = {}
    hooks = [
        getattr(block, name).register_forward_hook(
            lambda _, given, result, name=name: found.update({name: (given[0], result.float())})
        )
        for name in LINEARS
    ]
    block(x, c)
    for hook in hooks:
        hook.remove()
    return found


def times(blocks, x, c, calls):
    """{block: microseconds}, medians of rounds in turns."""
    timed = {name: replayed(lambda block=block: block(x, c)) for name, block in blocks.items()}
    for call in timed.values():
        for _ in range(WARM_UP):
            call()
    found = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, call in timed.items():
            finish()
            begin = perf_counter()
            for _ in range(calls):
                call()
            finish()
            found[name].append((perf_counter() - begin) / calls * 1e6)
    return {name: statistics.median(values) for name, values in found.items()}


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--tokens", type=int, nargs="+", default=(1024, 4096))
    parser.add_argument("--calls", type=int, default=CALLS, help="in a timed round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(words)


def main(words=None):
    arguments = arguments_of(words)
    torch.manual_seed(0)
    rows = []
    with torch.inference_mode(), torch.device(arguments.device):
        blocks, twins = blocks_of(arguments.width, arguments.heads)
        for tokens in arguments.tokens:
            x = torch.randn(1, tokens, arguments.width, dtype=DTYPE)
            c = torch.randn(1, arguments.width, dtype=DTYPE)
            apart = disagreements(blocks, twins, x, c)
            if not max(apart.values()) <= AGREE:
                print(f"{tokens} tokens: {apart}, at most {AGREE} of the norm is right")
                return 2
            found = times(blocks, x, c, arguments.calls)
            for name, us in found.items():
                rows.append({"tokens": tokens, "block": name, "us": us, "apart": apart[name]})
                ratio = found["bfloat16"] / us
                print(
                    f"{tokens:5} tokens {name:<14} {us:10.1f} us, {ratio:5.2f} times as fast as "
                    f"bfloat16, {apart[name]:.4f} apart"
                )
    if arguments.json:
        shape = {"width": arguments.width, "heads": arguments.heads}
        content = {"environment": environment(arguments.device), "shape": shape, "rows": rows}
        results.write(arguments.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
