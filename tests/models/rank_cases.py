"""What each rank of a team runs: its slice of a whole layer, on its own input."""

import copy
from functools import partial

import torch
import torch.distributed as dist
from empty_model import empty
from exact_layers import ones
from skeletons import plan_of
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
        "*.down_proj": partial(RowParallel.slice_of, **options),
    }
    names = slice_(model, plan)
    assert names == ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
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


def own_device():
    """Ranks take turns where there are fewer GPUs."""
    gpus = torch.cuda.device_count()
    return torch.device("cuda", rank() % gpus) if gpus else torch.device("cpu")


def disagreeing(make, whole, inputs, options):
    """What a rank's call says, whose input and options are its own. Then the group still works."""
    device = own_device()
    mine = make(whole.to(device), **options[rank()])
    x, *more = (each.to(device) for each in inputs[rank()])
    said = "nothing"
    try:
        mine(own_columns(x, mine) if isinstance(mine, RowParallel) else x, *more)
    except ValueError as error:
        said = str(error)
    told = torch.ones(1, device=device)
    dist.all_reduce(told)
    return said, told.item()


def asked(whole, given):
    """How many sets of values a layer's ranks have agreed upon, after two calls of one dtype and
    after two of another."""
    device = own_device()
    mine = ExpertParallel.slice_of(whole.to(device))
    x, *more = (each.to(device) for each in given)
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        for _ in range(2):
            mine(x.to(dtype), *more)
        found.append(len(mine.agreed))
    return found


class OwnRouter(nn.Module):
    """A router that NVFP4MoE does not know: experts by the first elements of x."""

    def __init__(self, experts, k):
        super().__init__()
        self.experts, self.k = experts, k

    def forward(self, x):
        scores = x[:, : self.experts].float()
        return scores.topk(self.k).indices, scores.topk(self.k).values.sigmoid()


def mixture(moe, inputs, options):
    """A whole NVFP4MoE whose experts slice_ has cut."""
    model = nn.ModuleDict({"mlp": moe})
    plan = {"mlp.experts": partial(ExpertParallel.slice_of, **options)}
    assert slice_(model, plan) == ["mlp.experts"]
    return moe(inputs[rank() if options.get("tokens", "own") == "own" else 0])


def captured(function, device):
    """(function to call again, its result, which it overwrites): a CUDA graph, on a GPU."""
    if device.type == "cpu":
        y = function()
        return lambda: y.copy_(function()), y
    for _ in range(2):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function()
    return graph.replay, y


def routed(tokens, experts, k, draw):
    """Any experts, of one rank alone for some tokens, of nobody for others; powers of two."""
    ids = torch.rand(tokens, experts, generator=draw).topk(k).indices
    ids[0::5] = torch.rand(len(ids[0::5]), experts // 2, generator=draw).topk(k).indices
    ids[3::7] = -1
    return ids, 2.0 ** -torch.randint(0, 4, (tokens, k), generator=draw)


def replayed_experts(whole, tokens, k, options, replays):
    """How often, of so many replays, a rank's result had the bits of the same call without a graph,
    and those of one process. Each time its tokens and their experts are others."""
    device = own_device()
    whole = whole.to(device)
    mine = ExpertParallel.slice_of(whole, **options)
    hidden, experts = whole.hidden_size, whole.num_experts
    same = mine.tokens == "same"
    draw = torch.Generator().manual_seed(0 if same else rank())
    x = ones(tokens, hidden, 0).to(device)
    ids, weights = (each.to(device) for each in routed(tokens, experts, k, draw))
    again, y = captured(lambda: mine(x, ids, weights), device)
    found = [0, 0]
    for i in range(replays):
        x.copy_(ones(tokens, hidden, i if same else 2 * i + rank()))
        for there, new in zip((ids, weights), routed(tokens, experts, k, draw), strict=True):
            there.copy_(new)
        again()
        found[0] += torch.equal(y, mine(x, ids, weights))
        found[1] += torch.equal(y, whole(x, ids, weights))
    return found


def replayed_feed_forward(layer, tokens, replays):
    """How often a SwiGLU layer of slices had the bits of one process, replayed on new tokens."""
    device = own_device()
    whole = copy.deepcopy(layer).to(device)
    model = nn.ModuleDict({"mlp": layer.to(device)})
    row = partial(RowParallel.slice_of, reduce_dtype=torch.float32)
    plan = {"*.down_proj": row, "*_proj": ColumnParallel.slice_of}
    assert len(slice_(model, plan)) == 3
    x = ones(tokens, whole.down_proj.out_features, 0).to(device)
    again, y = captured(lambda: layer(x), device)
    found = 0
    for i in range(replays):
        x.copy_(ones(tokens, x.shape[1], i))
        again()
        found += torch.equal(y, whole(x))
    return found


def logits(directory, tokens):
    """Those of transformers' model of a tiny directory, its layers and experts cut."""
    from nvfp4kern.checkpoint import load_checkpoint

    model = empty(directory)
    names = slice_(model, plan_of(model, dist.get_world_size()))
    report = load_checkpoint(model, directory, device="cpu", progress=False)
    with torch.no_grad():
        return model(tokens).logits, len(names), report.nbytes_read


def compiled(mine, args):
    """Whether torch.compile takes the layer whole, and gives the same bits."""
    torch._dynamo.reset()
    again = torch.compile(mine, fullgraph=True, backend="aot_eager")
    return torch.equal(again(*args), mine(*args))


def compiled_row(layer, x):
    mine = RowParallel.slice_of(layer)
    return compiled(mine, (own_columns(x, mine),))


def compiled_experts(whole, given, tokens):
    return compiled(ExpertParallel.slice_of(whole, tokens=tokens), given)
