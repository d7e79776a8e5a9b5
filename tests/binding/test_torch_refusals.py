"""Wrong calls of nvfp4kern.torch are refused like those of nvfp4kern, under the same name.

Tracing refuses those alone of which it cannot say what they return.
"""

import pytest
import torch
from cuda_calls import mapped
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4kern
import nvfp4kern.torch as nk

pytestmark = [pytest.mark.any_path, pytest.mark.filterwarnings("ignore")]


def spoiled(device):
    """(function, arguments, options) of calls that are wrong for what shapes and dtypes say."""
    x = torch.ones((6, 64), dtype=torch.float16, device=device)
    q = nvfp4kern.quantize(x)
    w = nvfp4kern.quantize(torch.ones((10, 64), device=device))
    good = (q.data, w.data, q.scales, w.scales)
    ints = torch.zeros(3, dtype=torch.int32, device=device)
    experts = (w.data.expand(2, 10, 32), q.scales, w.scales.expand(2, 10, 4))
    yield nk.gemm, (q.data, w.data, q.scales, w.scales[:, :3]), {}
    yield nk.gemm, (q.data, w.data, q.scales, w.scales[:9]), {}
    yield nk.gemm, (q.data, w.data, None, w.scales), {}
    yield nk.gemm, (x, *good[1:]), {}
    yield nk.gemm, (x.float(), w.data, None, w.scales), {}
    yield nk.gemm, (q.data[:, :24], w.data, q.scales[:, :3], w.scales), {}
    yield nk.gemm, (q.data, w.data[None], q.scales, w.scales[None]), {}
    yield nk.gemm, (q.data[None, None], w.data[None], q.scales[None, None], w.scales[None]), {}
    yield nk.gemm, (q.data[None], experts[0], q.scales[None], experts[2]), {}
    yield nk.dual_gemm, (q.data[None], w.data, w.data[None], q.scales[None], *[w.scales] * 2), {}
    yield nk.gemv, (q.data[None], w.data[:1], q.scales[None], w.scales[:1]), {}
    yield nk.gemv, (q.data[None, None], *(t[None, None] for t in (w.data[:1], q.scales))), {}
    yield nk.quantize, (x[0, 0],), {}
    yield nk.quantize, (x,), {"scale_layout": "blocked", "offsets": ints[:0]}
    yield nk.quantize, (x,), {"data_dtype": "int8"}
    yield nk.quantize, (x,), {"data_dtype": torch.float16}
    yield nk.quantize, (x,), {"data_dtype": torch.uint8, "out": (q.data, q.scales)}
    yield nk.quantize, (x[None],), {"scale_layout": "blocked", "offsets": ints}
    yield nk.route, (x[0, 0], x, 2), {}
    yield nk.gemm, (q.data[0], *good[1:]), {}
    yield nk.gemm, good, {"scale_layout": "blocked"}
    yield nk.gemm, good, {"scale_layout": "diagonal"}
    yield nk.gemm, good, {"scale_layout": ("linear",)}
    yield nk.gemm, good, {"alpha": torch.ones(9, device=device)}
    yield nk.gemm, good, {"alpha": x[0, :1]}
    yield nk.gemm, good, {"alpha": "1"}
    yield nk.gemm, good, {"bias": torch.ones(9, device=device)}
    yield nk.gemm, good, {"out_dtype": "float64"}
    yield nk.gemm, good, {"out_dtype": torch.int32}
    yield nk.gemm, good, {"out": x.new_empty(6, 9)}
    yield nk.gemm, good, {"out": ints}
    yield nk.gemm, good, {"out": x.new_empty(6, 10), "out_dtype": "float32"}
    yield nk.gemv, good, {}
    yield nk.dual_gemm, (q.data, w.data, w.data[:9], q.scales, w.scales, w.scales[:9]), {}
    yield nk.dual_gemm, (q.data, w.data, w.data, *good[2:], w.scales), {"activation": "tanh"}
    yield nk.grouped_gemm, (q.data, *experts), {}
    yield nk.grouped_gemm, (q.data, *experts), {"offsets": ints[:2]}
    yield nk.grouped_gemm, (q.data, *experts), {"offsets": ints.float()}
    by_rows = {"offsets": ints, "rows": ints}
    grouped = (nk.grouped_gemm, (q.data, *experts))
    yield *grouped, by_rows | {"rows": ints.long()}
    yield *grouped, by_rows | {"rows": ints[None]}
    yield *grouped, by_rows | {"rows_per_token": 0}
    yield *grouped, by_rows | {"rows_per_token": 2**31}
    yield *grouped, {"offsets": ints, "rows_per_token": 2}
    yield *grouped, {"offsets": ints, "expected_rows": 7}
    yield *grouped, {"offsets": ints, "expected_rows": -1}
    yield *grouped, by_rows | {"out": x.new_empty(6, 10)}
    yield nk.grouped_gemm, ([q.data], [w.data], [q.scales], [w.scales]), {"rows": ints}
    yield nk.grouped_gemm, ([q.data], [w.data], [q.scales], [w.scales]), {"rows_per_token": 2}
    yield nk.grouped_gemm, ([q.data], [w.data], [q.scales], [w.scales]), {"expected_rows": 6}
    yield nk.grouped_gemm, ([q.data], [w.data, w.data], [q.scales], [w.scales]), {}
    yield nk.grouped_gemm, ([q.data], [w.data], [q.scales], [w.scales[:9]]), {}
    yield nk.grouped_gemm, ([q.data], [w.data], [q.scales], [w.scales]), {"offsets": ints}
    yield *grouped, by_rows | {"activation": "swiglu_oai"}
    lists = ([q.data], [w.data], [q.scales], [w.scales])
    yield nk.grouped_gemm, lists, {"activation": "tanh"}
    stack = (q.data, *experts, ints)
    for shape in ((3,), (2, 3), (3, 2), (3, 10), (2, 10, 1)):
        yield nk.grouped_dual_gemm, stack, {"alpha": torch.ones(shape, device=device)}
    yield nk.grouped_dual_gemm, stack, {"alpha": x[:2, :2]}
    yield nk.grouped_dual_gemm, stack, {"activation": "tanh"}
    yield nk.grouped_dual_gemm, stack, {"rows_per_token": 2}
    yield nk.grouped_dual_gemm, stack, {"expected_rows": 7}
    yield nk.grouped_dual_gemm, stack, {"rows": ints.long()}
    yield nk.grouped_dual_gemm, stack, {"out": x.new_empty(6, 10)}
    yield nk.grouped_dual_gemm, (*stack[:4], ints[:2]), {}
    yield nk.grouped_dual_gemm, (q.data, w.data, *stack[2:]), {}
    yield nk.grouped_dual_gemm, (*stack[:3], None, ints), {}
    odd = w.data[:9].expand(2, 9, 32), q.scales, w.scales[:9].expand(2, 9, 4)
    yield nk.grouped_dual_gemm, (q.data, *odd, ints), {}
    yield nk.grouped_dual_gemm, (x, x.expand(2, 6, 64), None, None, ints), {}
    yield nk.grouped_dual_gemm, stack, {"global_scale": 2.0}
    yield nk.grouped_dual_gemm, stack, {"data_dtype": "uint8"}
    yield nk.grouped_dual_gemm, stack, {"quantized": True}
    whole = w.data[:1].expand(2, 32, 32), q.scales, w.scales[:1].expand(2, 32, 4), ints
    encoding = (nk.grouped_dual_gemm, (q.data, *whole))
    yield *grouped, {"offsets": ints, "quantized": True}
    yield *grouped, {"offsets": ints, "global_scale": 2.0}
    yield *grouped, {"offsets": ints, "data_dtype": "uint8"}
    yield nk.grouped_gemm, lists, {"quantized": True}
    yield nk.grouped_gemm, lists, {"global_scale_inverse": 2.0}
    of_one = (nk.grouped_gemm, (q.data, *whole[:3]))
    for function, options in ((encoding, {}), (of_one, {"offsets": ints})):
        options = options | {"quantized": True}
        yield *function, options | {"out_dtype": "float16"}
        yield *function, options | {"global_scale": "amax"}
        yield *function, options | {"global_scale": torch.ones(2, device=device)}
        yield *function, options | {"global_scale": x[0, :1]}
        yield *function, options | {"data_dtype": "float16"}
    yield nk.route, (x, x[:, :48], 2), {}
    yield nk.route, (x, x.to(torch.uint8), 2), {}
    yield nk.route, (x, x), {}
    yield nk.route, (x, None, 2), {}
    yield nk.route, (x, x, 2), {"logits": x}
    yield nk.route, (None, None, 2), {"logits": x.to(torch.int32)}
    yield nk.route, (None, None, 2), {"logits": x[0, 0]}
    yield nk.route, (None, None, 2), {"logits": x.T}
    yield nk.route, (x, x, 2), {"num_local_experts": 2}
    experts = {"expert_map": torch.zeros(6, dtype=torch.int32, device=device)}
    yield nk.route, (x, x, 2), experts | {"num_local_experts": 2}
    yield nk.route, (x, x, 2), experts | {"permutation": True}
    experts |= {"permutation": True, "num_local_experts": 2}
    yield nk.route, (x, x, 2), experts | {"num_local_experts": 1025}
    yield nk.route, (x, x, 2), experts | {"num_local_experts": -1}
    yield nk.route, (x, x[:5], 2), experts
    yield nk.route, (x, x, 2), experts | {"expert_map": experts["expert_map"].long()}
    yield nk.route, (x, x, 7), {}
    yield nk.route, (x, x, 2), {"score": "best"}
    yield nk.route, (x, x, 2), {"n_group": 4}
    yield nk.route, (x, x, 2), {"renormalize": False}
    yield nk.route, (x, x, 2), {"score": "logits", "renormalize": True}
    yield nk.route, (x, x, 2), {"correction_bias": torch.ones(5, device=device)}
    yield nk.route, (x, x, 2), {"per_expert_scale": torch.ones(5, device=device)}
    yield nk.route, (x, x, 2), {"out": (x,)}
    yield nk.route, (x, x, 2), {"return_row_of": True}
    rows = torch.zeros(12, dtype=torch.int32, device=device)
    for args in ((rows.long(), 4), (rows[0], 4), (rows, 1025), (rows, -1)):
        yield nk.sort_by_expert, args, {}
    for options in (
        {"num_local_experts": 3}, {"expert_map": rows[:6]}, {"out": (rows,)},
        {"expert_map": rows, "num_local_experts": 3},
    ):  # fmt: skip
        yield nk.sort_by_expert, (rows, 6), options
    w2 = x[:, :2]
    for args in (
        (x[0], rows, w2), (x.t(), rows, w2), (q.data, rows, w2), (x, rows.long(), w2),
        (x, rows, x[:, :3]), (x, rows[None], w2), (x, rows, w2.int()), (x, rows, x[:, :4:2]),
        (x, rows, x[0, 0]),
    ):  # fmt: skip
        yield nk.combine, args, {}
    for options in (
        {"residual": x[:5]}, {"residual": x[None]}, {"residual": rows}, {"out": x[:, :63]},
        {"out_dtype": torch.int32},
    ):  # fmt: skip
        yield nk.combine, (x, rows, w2), options
    yield nk.quantize, (x[:, :40],), {}
    yield nk.quantize, (x.t(),), {}
    yield nk.quantize, (x.int(),), {}
    yield nk.quantize, (x,), {"global_scale": "max"}
    yield nk.quantize, (x,), {"up": x[:3]}
    yield nk.quantize, (x,), {"offsets": ints}
    yield nk.quantize, (x,), {"global_scale": torch.ones(2, device=device)}
    yield nk.dequantize, ((q.data, q.scales[:, :3], None),), {}
    yield nk.to_blocked, (x,), {}
    yield nk.from_blocked, (q.scales, 6, 4), {}


def refusal(function, args, options):
    """(the exception's type, the argument that it names), or None."""
    try:
        function(*args, **options)
    except (ValueError, TypeError) as error:
        return type(error), str(error).split(":")[0]


def test_wrong_calls_are_refused_by_name(device):
    refused = 0
    for i, (function, args, options) in enumerate(spoiled(device)):
        real = refusal(getattr(nvfp4kern, function.__name__), args, options)
        assert real and refusal(function, args, options) == real, (i, function.__name__, real)
        with FakeTensorMode() as mode:
            fake = refusal(function, *mapped(mode.from_tensor, (args, options)))
        assert fake in (real, None), (i, function.__name__, real, fake)
        refused += fake is not None
    assert (refused, i + 1) == (54, 144)


def test_tracing_takes_what_calls_take(device):
    """Strides of dimensions without elements mean nothing, and one element has any shape."""
    x = torch.ones((2, 16), dtype=torch.bfloat16, device=device)
    none = torch.ones((0, 16), dtype=torch.uint8, device=device)[:, ::2]
    weights, ends = x.expand(3, 2, 16), torch.tensor([0, 1, 2, 2], dtype=torch.int32, device=device)
    for function, args, options in (
        (nk.grouped_gemm, (x, weights), {"offsets": ends, "alpha": x.float()[:1, :1]}),
        (nk.to_blocked, (none[:, :1],), {}),
        (nk.gemm, (x, none, None, none[:, :1]), {}),
    ):
        real = function(*args, **options)
        with FakeTensorMode() as mode:
            args, options = mapped(mode.from_tensor, (args, options))
            assert function(*args, **options).shape == real.shape
