"""Modules of plain torch with a tiny checkpoint's names, on the meta device: no transformers."""

from functools import partial

import torch
from packing import dequantized
from tiny_architectures import EXPERT, EXPERTS, HIDDEN
from torch import nn

from nvfp4kern.distributed import ColumnParallel, ExpertParallel, RowParallel

META = {"device": "meta", "dtype": torch.bfloat16}


class Stack(nn.Module):
    """Experts as transformers has them."""

    def __init__(self, experts=EXPERTS, inner=EXPERT, hidden=HIDDEN, device="meta"):
        super().__init__()
        kind = {"dtype": torch.bfloat16, "device": device}
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * inner, hidden, **kind))
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, inner, **kind))
        self.act_fn = nn.SiLU()


def put(root, path, thing):
    *parents, last = path.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    setattr(root, last, thing)


def fused(shapes):
    """q, k, v and gate, up of dense layers as engines have them: the rows of all in one."""
    groups = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    for name in [n for n in shapes if n.endswith(".weight")]:
        parent, _, own = name.removesuffix(".weight").rpartition(".")
        for one, parts in groups.items():
            if own == parts[0]:
                for key in ("weight", "bias"):
                    found = [shapes.pop(f"{parent}.{p}.{key}", None) for p in parts]
                    if found[0] is not None:
                        rows = sum(shape[0] for shape in found)
                        shapes[f"{parent}.{one}.{key}"] = (rows, *found[0][1:])


def skeleton(directory, fuse=False):
    """A module for every weight of the directory."""
    shapes = {name: tuple(t.shape) for name, t in dequantized(directory).items()}
    shapes = {n.replace(".block_sparse_moe.", ".mlp."): shape for n, shape in shapes.items()}
    if fuse:
        fused(shapes)
    root = nn.Module()
    for name, shape in shapes.items():
        path, _, key = name.rpartition(".")
        if ".experts." in path:
            put(root, f"{path.partition('.experts.')[0]}.experts", Stack())
        elif path.endswith(("_proj", "_mqa", "lm_head")) and key == "weight":
            put(root, path, nn.Linear(shape[1], shape[0], f"{path}.bias" in shapes, **META))
        elif not (key == "bias" and f"{path}.weight" in shapes):
            kind = torch.float32 if key == "e_score_correction_bias" else torch.bfloat16
            put(root, name, nn.Parameter(torch.empty(shape, device="meta", dtype=kind)))
    return root.eval()


PLAN = {
    "*.qkv_proj": partial(ColumnParallel.slice_of, parts=(64, 32, 32), head_dim=16),
    "*.[qkv]_proj": partial(ColumnParallel.slice_of, head_dim=16),
    "*.o_proj": RowParallel.slice_of,
    "*.gate_up_proj": partial(ColumnParallel.slice_of, parts=(96, 96)),
    "*.gate_proj": ColumnParallel.slice_of,
    "*.up_proj": ColumnParallel.slice_of,
    "*.down_proj": partial(RowParallel.slice_of, reduce_dtype=torch.float32),
    "*.experts": partial(ExpertParallel.slice_of, tokens="same", reduce_dtype=torch.float32),
}


def plan_of(model, world):
    """What of PLAN the model has and so many ranks can share: two key-value heads, for two."""
    from fnmatch import fnmatchcase

    names = [name for name, _ in model.named_modules()]
    attention = ("*.qkv_proj", "*.[qkv]_proj", "*.o_proj")
    return {
        pattern: make
        for pattern, make in PLAN.items()
        if any(fnmatchcase(name, pattern) for name in names)
        and not (world > 2 and pattern in attention)
    }
