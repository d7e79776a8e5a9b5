"""The drop-ins take the harness's tuple and return its c, filled."""

import numpy as np
import pytest
import torch
from calls import drop_in
from generators import assert_ok, unchanged, values
from old_torch import old, old_data, refuse

from nvfp4kern.verify import data, reference, shapes

QUICK = 2e9  # multiply-adds; above only with --all
CASES = [
    pytest.param(
        problem,
        shape,
        id=f"{problem}-{'x'.join(map(str, shape)) if problem != 'group_gemm' else number}",
        marks=[pytest.mark.slow] if shapes.multiply_adds(problem, shape) > QUICK else [],
    )
    for problem, sizes in shapes.TESTS.items()
    for number, shape in enumerate(sizes)
]
# Shapes that no harness hands over, and that the convention allows.
ODD_CASES = [
    ("gemv", (17, 48, 3)),
    ("gemm", (130, 33, 80, 2)),
    ("dual_gemm", (5, 129, 112, 2)),
    ("group_gemm", [(3, 5, 16, 1), (130, 7, 208, 1), (0, 4, 32, 1)]),
]


def expected(problem, operands, c):
    oracle = {
        "gemv": lambda a, b: reference.gemv(a, b),
        "gemm": lambda a, b: reference.gemm(a, b, c=c),
        "group_gemm": lambda a, b: reference.gemm(a, b, c=c),
        "dual_gemm": lambda a, b1, b2: reference.dual_gemm(a, b1, b2, c=c),
    }[problem]
    return oracle(*(o.values for o in operands))


def call(problem, case):
    """Runs it, checks what came back, returns [L, rows, columns] float32 values for each result."""
    inputs = (
        case.data[:-1]
        if problem != "group_gemm"
        else [[pair[:2] for pair in case.data[0]], case.data[1], case.data[2]]
    )
    with unchanged(*inputs):
        result = drop_in(problem)(case.data)
    if problem == "group_gemm":
        assert isinstance(result, list) and len(result) == len(case.results)
    for got, want in zip(
        result if problem == "group_gemm" else [result], case.results, strict=True
    ):
        assert got is want
    return [values(c.permute(2, 0, 1)) for c in case.results]


def check(problem, shape, backend, benign, seed=0):
    case = data.competition(problem, shape, seed=seed, benign=benign, device=backend.device)
    for got, operands in zip(call(problem, case), case.operands, strict=True):
        want = expected(problem, operands, backend.c)
        assert_ok(reference.check(got, want, "float16"))
        if not benign:
            continue
        np.testing.assert_allclose(got, want.rounded("float16"), rtol=1e-3, atol=1e-3)
        if problem == "dual_gemm":
            assert reference.ulps(got, want.rounded("float16"), "float16").max() <= 1
        else:
            assert_ok(reference.check_bits(got, want.rounded("float16")))


@pytest.mark.any_path
@pytest.mark.parametrize("benign", (True, False), ids=("benign", "full range"))
@pytest.mark.parametrize("problem, shape", CASES)
def test_competition_shapes(backend, problem, shape, benign):
    check(problem, shape, backend, benign)


@pytest.mark.parametrize("benign", (True, False), ids=("benign", "full range"))
@pytest.mark.parametrize("problem, shape", ODD_CASES)
def test_odd_shapes(backend, problem, shape, benign):
    check(problem, shape, backend, benign, seed=1)


@pytest.mark.parametrize("problem, shape", ODD_CASES)
def test_no_result_is_cached(device, problem, shape):
    """The same objects with other contents give other results; called twice, the same."""
    case = data.competition(problem, shape, benign=True, device=device)
    first = call(problem, case)
    again = call(problem, case)
    for x, y in zip(first, again, strict=True):
        np.testing.assert_array_equal(x, y)
    codes = case.data[0][0][0] if problem == "group_gemm" else case.data[0]
    codes.view(torch.uint8).zero_()
    zeroed = call(problem, case)[0]
    assert first[0].any() and not zeroed.any()


@pytest.mark.parametrize("problem, shape", ODD_CASES)
def test_torch_without_the_exchange_api(device, problem, shape, monkeypatch):
    """The same bits, by addresses: no capsule is asked for."""
    case = data.competition(problem, shape, benign=False, device=device)
    call(problem, case)
    expected = [c.cpu().view(torch.int16) for c in case.results]
    for c in case.results:
        c.fill_(torch.nan)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__dlpack__", refuse)
        given = old_data(case.data)
        result = drop_in(problem)(given)
    wanted = [abc[2] for abc in given[0]] if problem == "group_gemm" else [given[-1]]
    results = result if problem == "group_gemm" else [result]
    assert all(got is want for got, want in zip(results, wanted, strict=True))
    for c, want in zip(case.results, expected, strict=True):
        assert torch.equal(c.cpu().view(torch.int16), want)


@pytest.mark.parametrize("problem", ("gemv", "gemm", "dual_gemm"))
def test_torch_without_the_exchange_api_names_what_is_wrong(device, problem, monkeypatch):
    case = data.competition(problem, dict(ODD_CASES)[problem], device=device)
    monkeypatch.setattr(torch.Tensor, "__dlpack__", refuse)
    *inputs, c = old_data(case.data)
    with pytest.raises(ValueError, match=f"^data: {len(inputs)} items, expected {len(inputs) + 1}"):
        drop_in(problem)(tuple(inputs))
    for wrong, error in [(old(case.data[-1].double()), TypeError), (c[1:], ValueError)]:
        with pytest.raises(error, match="^c: "):
            drop_in(problem)((*inputs, wrong))
    with pytest.raises(ValueError, match="^a: 2 dimensions, expected 3"):
        drop_in(problem)((inputs[0][0], *inputs[1:], c))


@pytest.mark.parametrize("problem", shapes.TESTS)
def test_a_wrong_tuple_is_refused(device, problem):
    shape = dict(ODD_CASES)[problem]
    case = data.competition(problem, shape, device=device)
    before = [values(c) for c in case.results]
    with pytest.raises((ValueError, TypeError)):
        drop_in(problem)(case.data[:-1])
    with pytest.raises(TypeError):
        drop_in(problem)(None)
    for c, then in zip(case.results, before, strict=True):
        np.testing.assert_array_equal(values(c), then)


@pytest.mark.parametrize("problem", ("gemv", "gemm", "dual_gemm"))
@pytest.mark.parametrize("change", ("dtype", "shape"))
def test_a_wrong_result_tensor_is_refused(device, problem, change):
    case = data.competition(problem, dict(ODD_CASES)[problem], device=device)
    c = case.data[-1]
    wrong = c.to(torch.float64) if change == "dtype" else c[1:]
    before = values(wrong)
    with pytest.raises(TypeError if change == "dtype" else ValueError):
        drop_in(problem)((*case.data[:-1], wrong))
    np.testing.assert_array_equal(values(wrong), before)


@pytest.mark.parametrize("problem", ("gemv", "gemm", "dual_gemm"))
def test_scales_of_another_shape_are_refused(device, problem):
    """Scales too small for the operand they come with: nothing is read past their end."""
    case = data.competition(problem, dict(ODD_CASES)[problem], device=device)
    size = (1, 16, 1) if problem == "gemv" else (1, 1, 16, 1)
    small = data.competition(problem, size, device=device).data
    operands = 3 if problem == "dual_gemm" else 2
    wrong = (*case.data[:operands], *small[operands:-1], case.data[-1])
    with pytest.raises(ValueError):
        drop_in(problem)(wrong)
    assert torch.isnan(case.data[-1]).all()
