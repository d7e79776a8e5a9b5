"""The drop-ins on CUDA tensors: every shape of the competition, on a side stream and captured.

The oracle's sums are taken in float64 on the GPU, by torch; what is made of them is reference's.
"""

import pytest
import torch
from calls import drop_in
from generators import assert_ok, values

from nvfp4kern.verify import data, reference, shapes

CASES = [
    pytest.param(problem, shape, id=f"{problem}-{kind}-{number}")
    for kind, table in (("test", shapes.TESTS), ("benchmark", shapes.BENCHMARKS))
    for problem, sizes in table.items()
    for number, shape in enumerate(sizes)
]
A_WHILE = 100_000_000  # cycles, some 50 ms


def matmul(a, b):
    """reference.matmul of float64 tensors without NaN or inf."""
    b = b.transpose(-1, -2)
    return (a @ b).cpu().numpy(), (a.abs() @ b.abs()).cpu().numpy()


def dequantized(codes, scales):
    """[rows, K/2, L] codes and [rows, K/16, L] scales -> [L, rows, K] float64."""
    packed = codes.view(torch.uint8).permute(2, 0, 1)
    table = torch.from_numpy(reference.E2M1).to(packed.device)
    values_ = table[torch.stack((packed & 7, packed >> 4 & 7), -1).int()].flatten(-2)
    negative = torch.stack((packed & 8, packed >> 4 & 8), -1).flatten(-2) != 0
    factors = scales.to(packed.device).permute(2, 0, 1).double().repeat_interleave(16, -1)
    return torch.where(negative, -values_, values_) * factors


def operands(problem, data_):
    """The float64 operands of every result, from the scales that the drop-ins do not read."""
    if problem == "group_gemm":
        for (a, b, _), (sfa, sfb) in zip(data_[0], data_[1], strict=True):
            yield dequantized(a, sfa), dequantized(b, sfb)
        return
    count = (len(data_) - 1) // 3
    made = [
        dequantized(*pair) for pair in zip(data_[:count], data_[count : 2 * count], strict=True)
    ]
    if problem == "gemv":
        made = [made[1][:, :1], made[0]]  # as the gemm of one token
    yield made


def expected(problem, operands_):
    if problem == "dual_gemm":
        return reference.dual_gemm(*operands_, c=12)
    return reference.gemm(*operands_, c=1 if problem == "gemv" else 12)


def check(problem, got, want, benign):
    assert_ok(reference.check(got, want, "float16"))
    if not benign:
        return
    exact = want.rounded("float16")
    if problem == "dual_gemm":
        assert reference.ulps(got, exact, "float16").max() <= 1
    else:
        assert_ok(reference.check_bits(got, exact))


def poison(case):
    for c in case.results:
        c.fill_(torch.nan)


@pytest.mark.parametrize("benign", (True, False), ids=("benign", "full range"))
@pytest.mark.parametrize("problem, shape", CASES)
def test_competition_shapes(gpu, problem, shape, benign, monkeypatch):
    monkeypatch.setattr(reference, "matmul", matmul)
    case = data.competition(problem, shape, benign=benign, device="cuda")
    run, stream, graph = drop_in(problem), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    run(case.data)  # loads what is to be loaded
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(A_WHILE)
        poison(case)
        run(case.data)
        assert not stream.query()
    stream.synchronize()
    first = [c.clone() for c in case.results]

    with torch.cuda.graph(graph):
        poison(case)
        run(case.data)
    graph.replay()
    for c, before, tensors in zip(case.results, first, operands(problem, case.data), strict=True):
        assert torch.equal(c.view(torch.int16), before.view(torch.int16))
        swap = (2, 1, 0) if problem == "gemv" else (2, 0, 1)
        got = values(c.permute(swap))
        check(problem, got, expected(problem, tensors), benign)
