"""What each rank of a team runs: its slice of a whole layer, on its own input."""

import torch
import torch.distributed as dist
from torch import nn

from nvfp4kern.distributed import ColumnParallel, ExpertParallel, RowParallel, slice_


def rank():
    return dist.get_rank()


def own_columns(x, mine):
    """The rank's columns of a RowParallel layer's input."""
    ((start, stop),) = mine.cuts["weight"].ranges
    return x[..., 2 * start : 2 * stop]


def column(layer, x, options):
    """(result, rows of the whole that it is of)."""
    mine = ColumnParallel.slice_of(layer, **options)
    rows = [i for start, stop in mine.cuts["weight"].ranges for i in range(start, stop)]
    return mine(x), rows


def row(layer, x, options):
    mine = RowParallel.slice_of(layer, **options)
    given = own_columns(x, mine)
    y = mine(given)
    assert torch.equal(y, mine(given))
    return y


def feed_forward(layer, x, options):
    """A whole SwiGLU layer whose slices slice_ has put in, {name: its options}."""
    model = nn.ModuleDict({"mlp": layer})
    plan = {
        "*.gate_proj": ColumnParallel.slice_of,
        "*.up_proj": ColumnParallel.slice_of,
        "*.down_proj": lambda module, group: RowParallel.slice_of(module, group=group, **options),
    }
    names = slice_(model, plan)
    assert names == ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    layer.finish()
    return layer(x)


def poisoned_empty(*args, **kwargs):
    """torch.empty with NaN everywhere, in every float format."""
    made = EMPTY(*args, **kwargs)
    made.view(torch.uint8).fill_(0xFF)
    return made


EMPTY = torch.empty


def experts(whole, inputs, options):
    """The rank's result for its own (x, ids, weights). What nobody has written is NaN."""
    mine = ExpertParallel.slice_of(whole, **options)
    x, ids, weights = inputs[rank() if mine.tokens == "own" else 0]
    torch.empty = poisoned_empty
    try:
        y = mine(x, ids, weights)
    finally:
        torch.empty = EMPTY
    assert torch.equal(y, mine(x, ids, weights))
    return y


def mixture(moe, inputs, options):
    """A whole NVFP4MoE whose experts slice_ has cut."""
    model = nn.ModuleDict({"mlp": moe})
    plan = {"mlp.experts": lambda m, group: ExpertParallel.slice_of(m, group=group, **options)}
    assert slice_(model, plan) == ["mlp.experts"]
    return moe(inputs[rank() if options.get("tokens", "own") == "own" else 0])
