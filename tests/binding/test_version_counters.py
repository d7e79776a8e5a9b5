"""What a call writes counts as changed, so that autograd refuses a gradient of what was saved."""

import signal

import pytest
import torch
from calls import FUNCTIONS, drop_in, guards_in, invoke

import nvfp4kern as nk
from nvfp4kern import arrays
from nvfp4kern.verify import data

DROP_INS = {
    "gemv": (3, 32, 1),
    "gemm": (3, 6, 32, 1),
    "dual_gemm": (3, 6, 32, 1),
    "group_gemm": [(3, 6, 32, 1), (1, 2, 64, 1)],
}


def operator_call(make):
    """The call, and what it writes."""
    args = make("cpu")
    return lambda: invoke(make, args), [guard.tensor for guard in guards_in(args["out"])]


def drop_in_call(problem):
    items = data.competition(problem, DROP_INS[problem], device="cpu").data
    outputs = [abc[2] for abc in items[0]] if problem == "group_gemm" else [items[-1]]
    return lambda: drop_in(problem)(items), outputs


CASES = [pytest.param(operator_call, make, id=make.__name__) for make in FUNCTIONS]
CASES += [pytest.param(drop_in_call, problem, id=f"drop-in {problem}") for problem in DROP_INS]


@pytest.fixture(params=["this torch", "an older torch"])
def torch_s_function(request, monkeypatch):
    """An older one takes one tensor alone."""
    if request.param != "this torch":
        monkeypatch.delattr(torch._C, "_increment_version")
        monkeypatch.setattr(torch.autograd.graph, "increment_version", count_one)


DIRECT = torch._C._increment_version


def count_one(tensor):
    DIRECT((tensor,))


@pytest.mark.parametrize("make, of", CASES)
def test_outputs_are_counted(make, of):
    call, outputs = make(of)
    before = [t._version for t in outputs]
    call()
    assert outputs and [t._version for t in outputs] == [count + 1 for count in before]


def gemm_of(kind, **options):
    ones = torch.full((4, 2, 8), 0x38, dtype=torch.uint8)
    a, b = (t.as_subclass(kind) for t in ones[:2])
    sfa, sfb = (t.as_subclass(kind) for t in ones[2:, :, :1])
    return nk.gemm(a, b, sfa, sfb, **options)


@pytest.mark.usefixtures("torch_s_function")
def test_a_saved_output_has_no_gradient():
    kind = type("New", (torch.Tensor,), {})
    factor, out = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2).as_subclass(kind)
    product = (factor * out).sum()
    gemm_of(kind, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.usefixtures("torch_s_function")
def test_tensors_of_inference_mode_have_no_count():
    kind = type("New", (torch.Tensor,), {})
    with torch.inference_mode():
        out = torch.zeros(2, 2).as_subclass(kind)
    assert gemm_of(kind, out=out) is out and out.all()


def test_what_writes_nothing_counts_nothing():
    out = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="^bias: "):
        gemm_of(torch.Tensor, out=out, bias=torch.zeros(3))
    codes, scales = torch.ones(2, 8, dtype=torch.uint8), torch.ones(2, 1, dtype=torch.uint8)
    nk.explain("gemm", codes, codes, scales, scales, out=out)
    assert gemm_of(torch.Tensor)._version == out._version == 0


def test_an_interrupted_call_counts(monkeypatch):
    """It has written some of its output, and its exception stays."""
    monkeypatch.setenv("NVFP4KERN_CPU", "scalar")
    codes, scales = (torch.ones(4000, width, dtype=torch.uint8) for width in (1024, 128))
    out = torch.zeros(4000, 4000)

    def stop(*_):
        raise ZeroDivisionError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(ZeroDivisionError):
            nk.gemm(codes, codes, scales, scales, out=out)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert out._version == 1


def test_arrays_of_other_libraries_have_no_count():
    assert arrays.written_function(list) is None
