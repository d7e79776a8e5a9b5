"""A loaded model's quantised modules, and what files say that each of them is."""

from dataclasses import dataclass

import bounds
import torch
from empty_model import empty
from packing import dequantized, input_scales, read_directory
from tiny_architectures import ARCHITECTURES

from nvfp4kern.nn import NVFP4Experts, NVFP4Linear

TOKENS = torch.arange(24).reshape(2, 12)
NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass
class Truth:
    """What a directory says, by plain names, from packing.py alone."""

    weights: dict
    scales: dict
    tensors: dict
    experts_at: str
    expert_names: tuple

    @classmethod
    def of(cls, directory, input_quant=True):
        """input_quant: False leaves every input at 16 bits, whatever scales the files have."""
        tensors, config = read_directory(directory)
        kind = ARCHITECTURES.get(config["model_type"], ARCHITECTURES["llama"])
        scales = input_scales(directory) if input_quant else {}
        weights = dequantized(directory, fold=False)
        return cls(weights, scales, tensors, f"{kind.experts}.experts", kind.expert_names)

    def operand(self, name, x, dtype=None):
        """What the product of layer `name` sees of x: scaled first, then quantised."""
        before = self.tensors.get(f"{name}.pre_quant_scale")
        if before is not None:
            x = x * array(before)
            x = x if dtype is None else bounds.reference.round_to(x, NAMES[dtype]).astype(float)
        return bounds.quantized(x, self.scales.get(name))

    def seen(self, name, x):
        """operand, of torch's float64 and in it."""
        return torch.from_numpy(self.operand(name, array(x)))

    def linear(self, name, x, dtype):
        """The interval of a linear layer's result for x [M, K], float64."""
        bias = self.weights.get(f"{name}.bias")
        weight = array(self.weights[f"{name}.weight"])
        a, nvfp4 = self.operand(name, x, dtype), name in self.scales
        return bounds.product(a, weight, None if bias is None else array(bias), nvfp4)

    def mixture(self, name, x, index, weights):
        """experts without an interval and a rounding, of torch's float64."""
        parts = array(x), index.numpy(), array(weights)
        return torch.from_numpy(self.experts(name, *parts).exact)

    def experts(self, name, x, index, weights, dtype=None):
        parent = name.removesuffix("mlp.experts") + self.experts_at
        count = sum(n.startswith(parent) for n in self.weights) // 3
        gate, up, down = self.expert_names
        each = [
            bounds.Expert(
                *(array(self.weights[f"{parent}.{e}.{n}.weight"]) for n in (gate, up, down))
            )
            for e in range(count)
        ]
        scales = [self.largest(parent, names) for names in ((gate, up), (down,))]
        return bounds.experts(x, index, weights, each, scales, NAMES.get(dtype))

    def largest(self, parent, names):
        """One global scale for the inputs of all experts: the largest that the files have."""
        found = [
            scale
            for name, scale in self.scales.items()
            if name.startswith(parent) and name.endswith(names)
        ]
        return max(found, default=None)


def load(directory, dtype=torch.bfloat16, **options):
    """A model that load_checkpoint has filled, on the CPU."""
    from nvfp4kern.checkpoint import load_checkpoint

    model = empty(directory, dtype)
    load_checkpoint(model, directory, device="cpu", progress=False, **options)
    return model


def array(tensor):
    return tensor.detach().double().numpy()


def observed(model, run):
    """{module name: (its inputs, its output)} of every quantised module during run()."""
    seen, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, (NVFP4Linear, NVFP4Experts)):

            def hook(module, args, output, name=name):
                seen[name] = args, output

            hooks.append(module.register_forward_hook(hook))
    with torch.no_grad():
        result = run()
    for hook in hooks:
        hook.remove()
    return seen, result


def check_modules(model, truth, run):
    """Each quantised module's output must lie in the interval of its own input.

    Returns the modules' names, the largest error as a fraction of its bound, and run()'s result.
    """
    seen, result = observed(model, run)
    modules = dict(model.named_modules())
    worst = 0.0
    for name, (args, output) in seen.items():
        x = array(args[0]).reshape(-1, args[0].shape[-1])
        if isinstance(modules[name], NVFP4Experts):
            index, weights = (t.reshape(len(x), -1) for t in args[1:])
            more = index.numpy(), array(weights)
            expected = truth.experts(name, x, *more, args[0].dtype)
        else:
            expected = truth.linear(name, x, args[0].dtype)
        got = array(output).reshape(expected.exact.shape)
        verdict = bounds.reference.check(got, expected, NAMES[output.dtype])
        assert verdict.ok, f"{name}: {verdict}"
        worst = max(worst, verdict.worst)
    return seen.keys(), worst, result


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def check(directory, dtype=torch.bfloat16, weights_only=False, **options):
    """Loads a directory and checks every quantised module; the model and its logits."""
    model, truth = load(directory, dtype, **options), Truth.of(directory, not weights_only)
    names, _, result = check_modules(model, truth, lambda: model(TOKENS).logits)
    assert names == quantised_modules(directory)
    assert torch.isfinite(result).all()
    return model, result


def quantised_modules(directory):
    """What the files have in NVFP4, by the model's names: one for all experts of a layer."""
    tensors, found = read_directory(directory)[0], set()
    for name in dequantized(directory):
        layer, _, kind = name.rpartition(".")
        held = tensors.get(name)
        if kind != "weight" or held is not None and held.dtype != torch.uint8:
            continue  # FP8 counts as 16 bits, which it becomes
        mixture, experts, _ = layer.partition(".experts.")
        found.add(f"{mixture.rpartition('.')[0]}.mlp.experts" if experts else layer)
    return found
