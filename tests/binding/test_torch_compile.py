"""nvfp4kern.torch under torch.compile: whole models become one graph and compute the same."""

import numpy as np
import pytest
import torch
from cuda_calls import assert_same
from generators import Guarded, raw

import nvfp4kern
import nvfp4kern.torch as nk

# What compilers, not nvfp4kern, warn about.
pytestmark = [pytest.mark.one_path, pytest.mark.filterwarnings("ignore")]

K, WIDE, EXPERTS, TOP_K = 64, 96, 4, 2


class Model:
    """Weights for `mlp` and `moe`, which take the library to use as an argument."""

    def __init__(self, device):
        made = torch.Generator().manual_seed(1)

        def weights(*shape):
            return nvfp4kern.quantize(torch.randn(shape, generator=made).to(device))

        self.gate, self.up, self.down = weights(WIDE, K), weights(WIDE, K), weights(K, WIDE)
        self.experts_in = weights(EXPERTS, 2 * WIDE, K)
        self.experts_out = weights(EXPERTS, K, WIDE)
        self.router = torch.randn((EXPERTS, K), generator=made).bfloat16().to(device)

    def mlp(self, lib, x):
        q = lib.quantize(x, global_scale="amax")
        operands = (q.data, self.gate.data, self.up.data)
        scales = (q.scales, self.gate.scales, self.up.scales)
        alphas = {"alpha1": q.global_scale, "alpha2": q.global_scale}
        h = lib.dual_gemm(*operands, *scales, **alphas, out_dtype="bfloat16")
        q = lib.quantize(h, global_scale=2.0)
        y = lib.gemm(q.data, self.down.data, q.scales, self.down.scales, alpha=2.0)
        return x + y

    def moe(self, lib, x):
        """(the weighted sum, what it sums)"""
        weights, _, _, offsets, rows = lib.route(x, self.router, TOP_K, permutation=True)
        mine = {"scale_layout": "blocked", "offsets": offsets}
        by_row = {"rows": rows, "rows_per_token": TOP_K, "expected_rows": len(x)}
        ours = {"scale_layout": ("blocked", "linear"), "offsets": offsets}
        w1, w2, token = self.experts_in, self.experts_out, rows // TOP_K
        q = lib.quantize(x, global_scale="amax", scale_layout="blocked")
        h = lib.grouped_gemm(
            q.data, w1.data, q.scales, w1.scales, alpha=q.global_scale, out_dtype="bfloat16",
            **ours, **by_row,
        )  # fmt: skip
        gate, up = h.chunk(2, -1)
        q = lib.quantize(gate, up=up, **mine)
        y = lib.grouped_gemm(q.data, w2.data, q.scales, w2.scales, out_dtype="float32", **ours)
        weighted = y * weights.reshape(-1)[rows][:, None]
        return torch.zeros_like(x, dtype=torch.float32).index_add(0, token, weighted), y


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **options)


WAYS = [("mlp", "aot_eager", False), ("mlp", "aot_eager", True), ("mlp", "inductor", False)]
WAYS += [("moe", "aot_eager", False), ("moe", "aot_eager", True), ("moe", "inductor", True)]
# inductor takes its time: each block one way, docs/api.md's model, which always runs, the other.
WAYS = [pytest.param(*w, marks=pytest.mark.slow if "inductor" in w else []) for w in WAYS]


@pytest.mark.parametrize("block, compiler, dynamic", WAYS)
def test_models_compile_into_one_graph(block, compiler, dynamic, device):
    block = getattr(Model(device), block)
    run = compiled(lambda x: block(nk, x), backend=compiler, dynamic=dynamic)
    for i, rows in enumerate((5, 2, 37, 130) if dynamic else (5,)):
        x = torch.randn((rows, K), generator=torch.Generator().manual_seed(rows))
        x = x.bfloat16().to(device)
        with torch._dynamo.config.patch(error_on_recompile=i > 0):
            got = run(x)
        want = block(nvfp4kern, x)
        if isinstance(got, tuple):
            assert_same(got[1], want[1])
            torch.testing.assert_close(got[0], want[0])  # a compiler may contract the sum
        else:
            assert_same(got, want)


def test_batches_compile_into_one_graph(device):
    """[.., K] with weights [N, K]: of any number of batches and rows."""
    model = Model(device)
    run = compiled(lambda x: model.mlp(nk, x), backend="aot_eager", dynamic=True)
    for i, shape in enumerate([(2, 3, 5), (3, 2, 2), (4, 5, 130)]):
        x = torch.randn((*shape, K), generator=torch.Generator().manual_seed(3)).bfloat16()
        with torch._dynamo.config.patch(error_on_recompile=i > 0):
            got = run(x.to(device))
        assert_same(got, model.mlp(nvfp4kern, x.to(device)))


def test_compiled_outputs_are_written_in_place(device):
    model, x = Model(device), torch.ones((5, K), dtype=torch.float16, device=device)

    def function(x, data, scales, out):
        q = nk.quantize(x, out=(data, scales))
        rows = torch.zeros((9, WIDE), dtype=torch.float16, device=x.device)
        for target in (out, rows[2:7]):
            nk.gemm(q.data, model.up.data, q.scales, model.up.scales, out=target)
        listed = [torch.empty_like(out)]
        operands = ([q.data], [model.up.data], [q.scales], [model.up.scales])
        nk.grouped_gemm(*operands, out=listed)
        return rows, listed[0] + 0, nk.grouped_gemm(*operands, alpha=[2.0])[0]

    q = nvfp4kern.quantize(x)
    want = nvfp4kern.gemm(q.data, model.up.data, q.scales, model.up.scales)
    for compiler in ("aot_eager", "inductor"):
        given = [torch.empty_like(q.data), torch.empty_like(q.scales)]
        out = Guarded((5, WIDE), "float16", device)
        result = compiled(function, backend=compiler)(x, *given, out.tensor)
        assert_same(given, list(q[:2]))
        np.testing.assert_array_equal(raw(out.tensor), raw(want))
        assert out.guards_intact()
        assert_same(result[0][2:7], want)
        assert not result[0][:2].any() and not result[0][7:].any()
        assert_same(result[1:], (want, want * 2))


STRIDED = {
    "column-major": lambda wide: wide[:WIDE, :5].T,
    "columns": lambda wide: wide[:5, 3 : 3 + WIDE],
    "rows": lambda wide: wide[1:11:2, :WIDE],
}


@pytest.mark.parametrize(
    "compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("strides", STRIDED)
def test_compiled_outputs_have_the_strides_that_calls_take(strides, compiler, device):
    model, x = Model(device), torch.ones((5, K), dtype=torch.bfloat16, device=device)
    operands = x, model.up.data, None, model.up.scales
    listed = [[x] * 2, [model.up.data] * 2, None, [model.up.scales] * 2]

    def function(out, first, second):
        nk.gemm(*operands, out=out)
        nk.grouped_gemm(*listed, out=[first, second])

    wide = [torch.zeros((WIDE, 2 * WIDE), dtype=torch.float16, device=device) for _ in range(3)]
    outs = [STRIDED[strides](each) for each in wide]
    compiled(function, backend=compiler)(*outs)
    want = nvfp4kern.gemm(*operands, out_dtype="float16")
    for each, out in zip(wide, outs, strict=True):
        np.testing.assert_array_equal(raw(out.contiguous()), raw(want))
        assert each.count_nonzero() == want.count_nonzero()  # nothing beside it


def test_a_size_that_only_the_data_say(device):
    model = Model(device)

    def function(x, chosen):
        q = nk.quantize(x[chosen.nonzero().squeeze(1)], scale_layout="blocked")
        operands = (q.data, model.up.data, q.scales, model.up.scales)
        return nk.gemm(*operands, scale_layout=("blocked", "linear"))

    x = torch.randn((150, K), generator=torch.Generator().manual_seed(2)).to(device)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = compiled(function, backend="aot_eager")
        for step in (1, 2, 149):
            chosen = torch.arange(150, device=device) % step == 0
            assert_same(run(x, chosen), function(x, chosen))


def test_models_export(device):
    model = Model(device)

    class Block(torch.nn.Module):
        def forward(self, x):
            return model.mlp(nk, x)

    x = torch.ones((5, K), dtype=torch.bfloat16, device=device)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Block(), (x,), dynamic_shapes={"x": {0: rows}})
    assert_same(program.module()(x.repeat(3, 1)), model.mlp(nvfp4kern, x.repeat(3, 1)))


def test_compiling_for_a_gradient_says_so_too(device):
    x = torch.ones((2, 32), device=device, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: nk.dequantize(nk.quantize(x)), backend="aot_eager")
    with pytest.raises(Exception, match="nvfp4kern::dequantize has no gradient"):
        compiled(x)
    with torch.no_grad():
        assert_same(compiled(x), nvfp4kern.dequantize(nvfp4kern.quantize(x.detach())))
