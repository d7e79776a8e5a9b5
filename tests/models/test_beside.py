"""What runs beside calls between ranks: in which order streams are told to wait."""

import contextlib
from functools import partial

import pytest
import torch
from layers import activations, filled
from rank_cases import OwnRouter
from torch import nn

from nvfp4kern.distributed import RowParallel, beside
from nvfp4kern.nn import NVFP4MoE, NVFP4SwiGLU


class Streams:
    """The two of a GPU that is not here, and what they were told."""

    def __init__(self, monkeypatch):
        self.said, self.within = [], "main"
        self.main, self.side = self._named("main"), self._named("side")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.main)
        monkeypatch.setattr(torch.cuda, "stream", self._in)
        monkeypatch.setattr(beside, "_stream_of", lambda device: self.side)

    def _named(self, name):
        streams = self

        class Stream:
            def wait_stream(self, other):
                streams.said.append(f"{name} waits for {other.name}")

        made = Stream()
        made.name = name
        return made

    @contextlib.contextmanager
    def _in(self, stream):
        self.within = stream.name
        yield
        self.within = "main"

    def compute(self):
        """What a module computes."""
        streams = self

        class Computes(nn.Module):
            def forward(self):
                streams.said.append(f"computed in {streams.within}")
                return OnGpu(2, 4)

        return partial(Computes())


class OnGpu:
    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, *shape):
        self.shape = torch.Size(shape)

    def reshape(self, shape):
        return OnGpu(*shape)

    def record_stream(self, stream):
        self.recorded = stream.name


def test_the_order_of_streams(monkeypatch):
    streams = Streams(monkeypatch)
    made = beside.Beside(streams.compute(), OnGpu(8, 1))
    streams.said.append("a launch")
    made.start()
    streams.said.append("another")
    found = made.result()
    assert streams.said == [
        "side waits for main", "a launch", "computed in side", "another", "main waits for side",
    ]  # fmt: skip
    assert found.shape == (8, 1) and found.recorded == "main"
    assert made.result() is found and len(streams.said) == 5


def test_a_result_that_nobody_has_started(monkeypatch):
    streams = Streams(monkeypatch)
    beside.Beside(streams.compute(), OnGpu(8, 1)).result()
    assert streams.said == ["side waits for main", "computed in side", "main waits for side"]


def test_what_may_call_other_ranks_is_computed_at_once(monkeypatch, as_rank):
    """And so is everything on a CPU."""
    as_rank(0, 2)
    sends = nn.Sequential(nn.Identity(), RowParallel(64, 32, transport="collective"))
    assert beside._calls_nobody(partial(nn.Linear(2, 2), 1))
    for each in (partial(sends, 1), lambda: sends(1), partial(print, 1), sends.forward):
        assert not beside._calls_nobody(each)
    streams = Streams(monkeypatch)
    made = beside.Beside(lambda: streams.compute()(), OnGpu(8, 1))
    assert streams.said == ["computed in main"]
    made.start()
    assert made.result().shape == (8, 1) and len(streams.said) == 1
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(beside.Beside(lambda: x.view(1, 6), x).result(), x)
    assert beside.Beside(x, x).result() is x and beside.Beside(None, x).result() is None


@pytest.mark.parametrize("shape", [(6, 64), (2, 3, 64)])
def test_shared_experts_get_x_as_it_came(shape):
    """And are called once."""
    moe = filled(NVFP4MoE(64, 48, 4, 2, router=OwnRouter(4, 2)), 7)
    want, given = moe(x := activations(*shape)), []
    moe.shared_experts = filled(NVFP4SwiGLU(64, 32), 9)
    moe.shared_experts.register_forward_pre_hook(lambda module, args: given.append(args[0].shape))
    y = moe(x)
    assert given == [x.shape] and y.shape == x.shape
    shared = moe.shared_experts(x).double()
    bound = 2.0**-7 * (shared.abs() + want.double().abs()) + 1e-6
    assert bool(((y.double() - want.double() - shared).abs() <= bound).all())
