"""Linear layers across ranks against the whole layer in one process, and against float64."""

import pytest
import torch
from exact_layers import exact, exact_swiglu, finished, integers, ones
from layers import activations, decoded, filled, seen
from rank_cases import column, compiled_row, disagreeing, feed_forward, row
from torch import nn

from nvfp4kern.checkpoint import save_checkpoint
from nvfp4kern.distributed import ColumnParallel, RowParallel, slice_
from nvfp4kern.nn import NVFP4Linear, NVFP4SwiGLU, fuse

WORLDS = (2, 3)
QUANTS = (None, "static", "dynamic")
UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""The largest relative error of a rounding."""


# --- Rows ---


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", [*QUANTS, "amax"])
@pytest.mark.parametrize("scaled", [False, True])
def test_columns_are_those_of_the_whole_layer(team, world, input_quant, scaled):
    layer = filled(
        NVFP4Linear(64, 6 * 7, input_quant=input_quant, pre_quant_scale=scaled,
                    row_scales=scaled, dtype=torch.bfloat16), 3,
    )  # fmt: skip
    x = activations(2, 5, 64)
    want = layer(x)
    seen_rows = []
    for got, rows in team(world).run(column, layer, x, {}):
        assert torch.equal(got, want[..., rows])
        seen_rows += rows
    assert seen_rows == list(range(42))


@pytest.mark.parametrize("world", WORLDS)
def test_a_fused_layer_is_cut_part_by_part(team, world):
    """Each rank has heads of q, of k and of v, with their global scales and biases."""
    heads = {"q": 12, "k": 6, "v": 6}
    layers = [
        filled(NVFP4Linear(48, 16 * n, input_quant="static", dtype=torch.bfloat16), i)
        for i, n in enumerate(heads.values())
    ]
    fused, x = fuse(layers), activations(4, 48)
    sizes = tuple(layer.out_features for layer in layers)
    want = fused(x).split(sizes, -1)
    results = team(world).run(column, fused, x, {"parts": sizes, "head_dim": 16})
    for rank, (got, _) in enumerate(results):
        mine = [part.chunk(world, -1)[rank] for part in want]
        assert torch.equal(got, torch.cat(mine, -1))


# --- Columns ---


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("tokens", [(), (1,), (2, 3), (0,)], ids=str)
def test_exact_sums_have_the_bits_of_one_process(team, world, dtype, tokens):
    layer = exact(NVFP4Linear(96, 40, dtype=dtype), 5)
    layer.bias.data = integers(40, most=100, dtype=dtype, seed=2)
    x = integers(*tokens, 96, dtype=dtype)
    want = layer(x)
    for got in team(world).run(row, layer, x, {"reduce_dtype": torch.float32}):
        assert got.dtype == dtype and torch.equal(got, want)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", QUANTS)
def test_16_bits_reduce_small_sums_exactly(team, world, input_quant):
    """Where every rank's sum fits 8 bits, nothing is rounded: the bias is there once."""
    layer = NVFP4Linear(96, 24, input_quant=input_quant, dtype=torch.bfloat16)
    exact(layer, 6)
    layer.weight.data = torch.where(torch.arange(48) % 8 == 0, layer.weight & 0x22, 0).byte()
    if input_quant == "static":
        layer.input_scale.data.fill_(0.5)
        layer.finish()
    layer.bias.data = integers(24, most=8, seed=4)
    x = 6 * integers(7, 96, most=1)  # a block's largest number becomes code 6 under a scale of 1
    want = layer(x)
    assert want.unique().numel() > 10 and want.abs().max() <= 128
    for options in ({}, {"reduce_dtype": torch.float32}):
        for got in team(world).run(row, layer, x, options):
            assert torch.equal(got, want)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", QUANTS)
@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("reduce_dtype", [None, torch.float32])
def test_sums_over_ranks_keep_their_bound(team, world, input_quant, dtype, reduce_dtype):
    """docs/distributed.md has it: one rounding for each rank, or in fp32 one at the end."""
    options = {"input_quant": input_quant, "pre_quant_scale": True, "dtype": dtype}
    layer = filled(NVFP4Linear(192, 40, row_scales=True, **options), 8)
    x = activations(5, 192, dtype=dtype)
    weight = decoded(layer.weight, layer.weight_scale, layer.weight_scale_2.double()[:, None])
    a, bias = seen(layer, x), layer.bias.double()
    each = [a_r @ w_r.T for a_r, w_r in zip(a.chunk(world, 1), weight.chunk(world, 1), strict=True)]
    each[0] = each[0] + bias
    want, unit = sum(each), UNIT[dtype]
    in_fp32 = 2.0**-24 * (192 + 8 + 2 * world) * (a.abs() @ weight.abs().T + bias.abs())
    if reduce_dtype is None:
        bound = 1.01 * world * unit * sum(part.abs() for part in each) + 1.1 * in_fp32
    else:
        bound = unit * want.abs() + 1.1 * in_fp32
    results = team(world).run(row, layer, x, {"reduce_dtype": reduce_dtype})
    for got in results:
        assert torch.equal(got, results[0])
        error = (got.double() - want).abs()
        assert bool((error <= bound).all()), (error / bound).max()


def test_two_ranks_round_their_sums_and_the_sum_of_these(team):
    layer = filled(NVFP4Linear(64, 24, dtype=torch.bfloat16), 9)
    x, parts = activations(6, 64), []
    for i in range(2):
        half = NVFP4Linear(32, 24, bias=i == 0, dtype=torch.bfloat16)
        half.weight.data = layer.weight[:, 16 * i : 16 * i + 16].clone()
        half.weight_scale.data = layer.weight_scale[:, 2 * i : 2 * i + 2].clone()
        half.weight_scale_2.data = layer.weight_scale_2.clone()
        if i == 0:
            half.bias.data = layer.bias.clone()
        parts.append(half(x[:, 32 * i : 32 * i + 32]))
    for got in team(2).run(row, layer, x, {}):
        assert torch.equal(got, parts[0] + parts[1])


# --- A feed-forward layer ---


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", QUANTS)
def test_an_exact_feed_forward_layer_has_the_bits_of_one_process(team, world, input_quant):
    layer, x = exact_swiglu(input_quant), ones(9, 64, 7)
    want = layer(x)
    assert want.unique().numel() > 100
    for got in team(world).run(feed_forward, layer, x, {"reduce_dtype": torch.float32}):
        assert torch.equal(got, want)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", QUANTS)
def test_a_feed_forward_layer(team, world, input_quant):
    """What the last product sees is the same to the bit, so its bound is all there is."""
    layer = filled(NVFP4SwiGLU(64, 96, input_quant=input_quant), 4)
    x, inputs = activations(2, 7, 64), []
    layer.down_proj.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    want = layer(x).double()
    layer.down_proj._forward_pre_hooks.clear()
    down, h = layer.down_proj, seen(layer.down_proj, inputs[0])
    weight = decoded(down.weight, down.weight_scale, down.weight_scale_2.double())
    parts = [
        (h_r @ w_r.T).abs()
        for h_r, w_r in zip(h.chunk(world, -1), weight.chunk(world, -1), strict=True)
    ]
    for reduce_dtype, units in ((None, world + 1), (torch.float32, 2)):
        for got in team(world).run(feed_forward, layer, x, {"reduce_dtype": reduce_dtype}):
            size = sum(parts) if reduce_dtype is None else want.abs()
            error = (got.double() - want).abs()
            bound = 1.01 * units * 2.0**-8 * size + 2.0**-14 * (h.abs() @ weight.abs().T)
            assert bool((error <= bound).all()), (error / bound).max()


@pytest.mark.slow
def test_a_row_cut_layer_compiles_whole(team):
    layer = filled(NVFP4Linear(64, 24, input_quant="static", dtype=torch.bfloat16), 9)
    assert team(2).run(compiled_row, layer, activations(6, 64)) == [True, True]


def test_a_feed_forward_layer_of_row_scales(team):
    """What it derives from gate and up is of the rank's rows, too."""
    layer = exact_swiglu("static")
    for each in (layer.gate_proj, layer.up_proj):
        scales = 2.0 ** torch.arange(each.out_features).remainder(3)
        each.weight_scale_2 = nn.Parameter(scales, requires_grad=False)
    finished(layer)
    x = ones(5, 64, 8)
    want = layer(x)
    for got in team(2).run(feed_forward, layer, x, {"reduce_dtype": torch.float32}):
        assert torch.equal(got, want)


# --- What is refused ---

REFUSED = {
    "columns": (
        lambda: RowParallel(64, 16),
        "in_features: 64, expected a multiple of 3 ranks x 16",
    ),
    "rows": (
        lambda: ColumnParallel(64, 16),
        "out_features: 16 rows, expected a multiple of 3 rank",
    ),
    "heads": (
        lambda: ColumnParallel(64, 32, head_dim=16),
        "out_features: 2 heads of 16 rows, expected a multiple of 3 ranks",
    ),
    "half a head": (
        lambda: ColumnParallel(64, 24, head_dim=16),
        "out_features: 1.5 heads of 16 rows, expected a multiple of 3 ranks",
    ),
    "heads of a part": (
        lambda: ColumnParallel(64, 96, parts=(48, 32, 16), head_dim=16),
        r"parts\[1\]: 2 heads of 16 rows, expected a multiple of 3 ranks",
    ),
    "parts": (
        lambda: ColumnParallel(64, 48, parts=(24, 12)),
        r"parts: \[24, 12\], expected a sum of out_features = 48",
    ),
    "head_dim": (lambda: ColumnParallel(64, 48, head_dim=0), "head_dim: 0, expected at least 1"),
    "amax": (
        lambda: RowParallel(96, 16, input_quant="amax"),
        "input_quant: 'amax', expected one that needs no whole row of the input",
    ),
    "token": (
        lambda: RowParallel(96, 16, input_quant="token"),
        "input_quant: 'token', expected one that needs no whole row of the input",
    ),
    "reduce_dtype": (
        lambda: RowParallel(96, 16, reduce_dtype=torch.float64),
        "reduce_dtype: torch.float64, expected one of None, torch.float32",
    ),
    "values": (
        lambda: RowParallel.slice_of(nn.Linear(96, 16)),
        "layer: nn.Linear with values, expected it quantised or on 'meta'",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(as_rank, kind):
    as_rank(1, 3)
    make, message = REFUSED[kind]
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def test_other_modules_and_others_groups_are_refused(as_rank):
    with pytest.raises(ValueError, match="init_process_group"):
        ColumnParallel(32, 32)
    as_rank(-1, 2)
    with pytest.raises(ValueError, match="group: this process is not in it"):
        ColumnParallel(32, 32)
    as_rank(0, 2)
    mine = ColumnParallel.slice_of(filled(NVFP4Linear(32, 32), 1))
    for module in (nn.LayerNorm(32), mine):
        with pytest.raises(
            TypeError, match=f"layer: {type(module).__name__}, expected NVFP4Linear"
        ):
            RowParallel.slice_of(module)


def test_a_slice_is_never_taken_for_a_whole_layer(as_rank, tmp_path):
    """Fused or saved it would be a layer of other values."""
    as_rank(0, 2)
    layer = filled(NVFP4Linear(32, 32, False), 1)
    mine = RowParallel.slice_of(layer)
    with pytest.raises(TypeError, match=r"layers\[1\]: RowParallel, expected NVFP4Linear"):
        fuse([layer, mine])
    with pytest.raises(ValueError, match="^o: a rank's slice of a layer, expected whole layers"):
        save_checkpoint(nn.ModuleDict({"o": mine}), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("cls", [ColumnParallel, RowParallel])
def test_inputs_that_want_a_gradient_are_refused(as_rank, cls):
    as_rank(0, 2)
    layer = cls.slice_of(filled(NVFP4Linear(32, 32), 1))
    x = activations(3, layer.in_features).requires_grad_()
    with pytest.raises(NotImplementedError, match="x: wants a gradient"):
        layer(x)


@pytest.mark.parametrize(
    "change, option, says",
    [
        (lambda x: x.half(), {}, "dtype=torch.float16, here dtype=torch.bfloat16"),
        (lambda x: x[1:], {}, "tokens=2, here tokens=3"),
        (lambda x: x, {"reduce_dtype": torch.float32}, "reduce_dtype=torch.float32, here reduce"),
        (lambda x: x, {"transport": "collective"}, "transport=collective, here transport=auto"),
    ],
    ids=["dtype", "tokens", "reduce_dtype", "transport"],
)
def test_ranks_that_disagree_are_refused_on_all_of_them(team, change, option, says):
    layer, x = filled(NVFP4Linear(64, 32, False), 1), activations(3, 64)
    args = RowParallel.slice_of, layer, [(x,), (change(x),)], [{}, option]
    zero, one = team(2).run(disagreeing, *args)
    assert zero[0].startswith(f"rank 1 of the group has {says}") and zero[1] == 2.0
    assert one[0].startswith("rank 0 of the group has ") and one[1] == 2.0


# --- Making slices ---


@pytest.mark.parametrize("cls, options", [(ColumnParallel, {"head_dim": 4}), (RowParallel, {})])
def test_a_plain_layer_is_quantised_as_a_whole(as_rank, cls, options):
    """So its global scale is that of the whole weight, on all ranks."""
    as_rank(1, 2)
    plain = nn.Linear(64, 24, dtype=torch.bfloat16)
    got = cls.from_linear(plain, input_quant="dynamic", recipe="four_six", **options)
    whole = NVFP4Linear.from_linear(plain, input_quant="dynamic", recipe="four_six")
    half = (slice(12, 24),) if cls is ColumnParallel else (slice(None), slice(16, 32))
    assert torch.equal(got.weight, whole.weight[half])
    assert torch.equal(got.weight_scale_2, whole.weight_scale_2)
    assert got.input_quant == "dynamic" and "rank=1 of 2" in repr(got)


def test_slices_are_copies(as_rank):
    as_rank(0, 2)
    whole = filled(NVFP4Linear(64, 24, input_quant="static", dtype=torch.bfloat16), 1)
    for cls in (ColumnParallel, RowParallel):
        for name, value in cls.slice_of(whole).named_parameters():
            assert value.untyped_storage().nbytes() == value.nbytes
            assert value.data_ptr() != getattr(whole, name).data_ptr()


def test_all_layers_are_cut_or_none(as_rank):
    as_rank(1, 2)
    model = nn.ModuleDict({"q": filled(NVFP4Linear(32, 32), 1), "k": filled(NVFP4Linear(32, 3), 2)})
    model["again"] = model["q"]
    before = dict(model.named_children())
    rows, columns = ColumnParallel.slice_of, RowParallel.slice_of
    for plan, message in (
        ({"*": rows}, "model: itself a layer"),
        ({"[qk]": rows}, "^k: out_features: 3 rows, expected a multiple"),
        ({"q": columns, "v": columns}, "plan: 'v' matches no layer"),
    ):
        with pytest.raises(ValueError, match=message):
            slice_(model, plan)
        assert dict(model.named_children()) == before
    assert slice_(model, {"q": columns, "again": columns}) == ["q", "again"]
    assert model["q"] is model["again"] and type(model["q"]) is RowParallel
    assert model["k"] is before["k"]
