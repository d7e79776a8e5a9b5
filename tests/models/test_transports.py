"""How the ranks' sums travel: which transport a group gets, and why, without a GPU."""

import copy
import gc
import math
import os
import pickle

import host_peers
import pytest
import torch
import torch.distributed as dist
from exact_layers import exact_experts, exact_mixture, ones
from layers import activations, filled
from peer_cases import (
    compiled_over_hosts,
    compiled_row_over_hosts,
    mixed,
    mixture_replayed,
    over_hosts,
    over_hosts_too,
    row_over_hosts,
    trained,
)
from rank_cases import own_columns, rank, routed
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from nvfp4kern.distributed import ExpertParallel, RowParallel, peers, rendezvous
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear

OPEN_ROWS = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
GPUS = [("host", "a", "", "0"), ("host", "b", "", "1")]


def refused(transport):
    try:
        return repr(RowParallel(64, 32, transport=transport))
    except (RuntimeError, ValueError) as error:
        return str(error)


def test_gloo_has_no_peers(team):
    for said in team(2).run(refused, "auto"):
        assert said.endswith("transport='collective' (the group's backend is not NCCL))")
    for said in team(2).run(refused, "peer"):
        assert said == "transport: 'peer', but the group's backend is not NCCL"
    for said in team(2).run(refused, "collective"):
        assert said.endswith("transport='collective' (asked for))")
    for said in team(2).run(refused, "ring"):
        assert said == "transport: 'ring', expected one of 'auto', 'peer', 'collective'"


@pytest.mark.parametrize(
    "config, found",
    [
        ("cuda:nccl", "made"),
        ("cpu:gloo,cuda:nccl", "made"),
        ("cpu:gloo,cuda:gloo", "the group's backend is not NCCL"),
    ],
)
def test_groups_whose_backend_for_gpus_is_nccl(config, found, monkeypatch):
    """Also where init_process_group() has chosen it, of which get_backend() says "undefined"."""
    group = type("Group", (), {})()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda group: "undefined")
    monkeypatch.setattr(dist, "get_backend_config", {group: config}.get)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(peers, "_make", lambda *of: "made")
    assert peers.memory_of(group) == found
    monkeypatch.setenv(rendezvous.SHARED_GPUS, "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert peers.memory_of(group) == "made"


@pytest.fixture
def torchs(monkeypatch):
    """What torch says of multicast; and the variable is as nobody has set it."""
    monkeypatch.delenv(rendezvous.NO_MULTICAST, raising=False)
    asked = []

    class SymmetricMemory:
        on = False

        @classmethod
        def has_multicast_support(cls, device_type, index):
            asked.append(os.environ[rendezvous.NO_MULTICAST])
            return cls.on

    monkeypatch.setattr(torch._C._distributed_c10d, "_SymmetricMemory", SymmetricMemory)
    yield SymmetricMemory, asked
    os.environ.pop(rendezvous.NO_MULTICAST, None)


def test_multicast_is_off_before_torch_is_asked(torchs):
    assert not rendezvous.multicast_is_on(0) and torchs[1] == ["1"]
    assert os.environ[rendezvous.NO_MULTICAST] == "1"


def test_multicast_that_somebody_asked_for(torchs, monkeypatch):
    """Then torch is not even asked."""
    monkeypatch.setenv(rendezvous.NO_MULTICAST, "0")
    assert rendezvous.multicast_is_on(0) and torchs[1] == []


def test_a_process_that_has_multicast_on_gets_collectives(torchs):
    torchs[0].on = True
    said = rendezvous.why_not(torch.device("cuda", 0), 2)
    assert said == f"NVLink multicast is on in this process, see {rendezvous.NO_MULTICAST}"
    assert rendezvous.why_not(torch.device("cuda", 0), 65) == "there are 65 ranks, more than 64"
    torchs[0].has_multicast_support = lambda *of: 1 / 0
    said = rendezvous.why_not(torch.device("cuda", 0), 2)
    assert said == "this torch has no symmetric memory: division by zero"


def test_memory_that_torch_has_made_by_multicast_is_not_taken(torchs, monkeypatch):
    class Handle:
        multicast_ptr = 4096

    torchs[0].rendezvous = lambda arena, name: Handle
    group = type("Group", (), {"group_name": "g"})
    with pytest.raises(RuntimeError, match="^torch has used NVLink multicast$"):
        rendezvous._rendezvous(group, 0, torch.empty(64))


def answered(reasons):
    """What all ranks agree upon, where each has a reason against it."""
    return rendezvous.first(rendezvous.told(reasons[rank()], dist.get_world_size(), None))


def test_one_ranks_reason_is_everyones(team):
    assert team(3).run(answered, ["", "no", "neither"]) == ["rank 1: no"] * 3
    assert team(3).run(answered, ["", "", ""]) == [""] * 3


def without_an_arena(which):
    """What all ranks say where one has no memory for an arena."""

    def arena(device, nbytes):
        if rank() == which:
            raise MemoryError(f"{nbytes} bytes")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "_arena", arena)
        patch.setattr(rendezvous, "_rendezvous", lambda *of: "waited for the others")
        return rendezvous.shared_arenas(
            None, rank(), dist.get_world_size(), torch.device("cpu"), 64
        )


def test_a_rank_without_an_arena_is_not_waited_for(team):
    assert team(3).run(without_an_arena, 1) == ["rank 1: MemoryError: 64 bytes"] * 3
    assert team(3).run(without_an_arena, None) == ["waited for the others"] * 3


def test_arenas_grow_by_doubling_as_all_of_them_stay(monkeypatch):
    group, asked = type("Group", (), {})(), []

    def shared(of, rank, world, device, nbytes):
        assert type(of).__name__ == "Group" and (rank, world) == (1, 2)
        asked.append(nbytes)
        return [0, 0], torch.empty(nbytes, dtype=torch.uint8), None

    monkeypatch.setattr(peers, "shared_arenas", shared)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    arena = torch.empty(peers.ARENA_BYTES, dtype=torch.uint8)
    memory = peers.PeerMemory(1, [0, 0], arena, group=group)
    mib = 1 << 20
    for need in (1, 23 * mib, 24 * mib, 51 * mib, 52 * mib, 400 * mib):
        memory.reserve(need)
        assert memory.arena.numel() >= peers.FIXED_BYTES + 2 * need
    assert asked == [(17 + 2 * room) * mib for room in (51, 102, 408)]
    assert [kept[1].numel() for kept in memory._kept] == [64 * mib, *asked]
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="while a graph is captured: call once eagerly"):
            memory.reserve(500 * mib)
    del group
    gc.collect()
    with pytest.raises(RuntimeError, match=f"a call of {500 * mib} bytes, and its process group"):
        memory.reserve(500 * mib)


def test_gpus_that_are_apart(monkeypatch):
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a, b) == (0, 1))
    assert rendezvous.apart(GPUS, 0) == ""
    assert rendezvous.apart(GPUS, 1) == "the GPU of rank 1 has no access to that of rank 0"
    elsewhere = [GPUS[0], ("other", *GPUS[1][1:])]
    assert rendezvous.apart(elsewhere, 0) == "rank 1 is on another host"
    assert rendezvous.apart([GPUS[0], GPUS[0]], 0) == "ranks 0 and 1 have the same GPU"
    monkeypatch.setenv(rendezvous.SHARED_GPUS, "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rendezvous.apart([GPUS[0], GPUS[0]], 0) == ""


def test_a_rank_that_has_not_come():
    memory = peers.PeerMemory(0, [0, 0], torch.zeros(64, dtype=torch.uint8))
    memory.check()
    memory._failed[0] = 2
    with pytest.raises(RuntimeError, match="^rank 1 of the group has not come within 60 s: "):
        memory.check()
    with pytest.raises(RuntimeError, match="^rank 1 of the group has not come within 60 s: "):
        memory.all_reduce(torch.zeros(8), torch.float32)
    for seconds in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"^seconds: {seconds}, expected a positive number$"):
            memory.seconds = seconds
    memory.seconds = 2.5
    assert memory._numbers.tolist()[3] == 2_500_000_000
    assert copy.deepcopy(memory) is memory
    with pytest.raises(TypeError, match="^peer memory: is of this process and its group, and cann"):
        pickle.dumps(memory)


def results_of(layer, experts, given):
    x, ids, weights = given
    row = RowParallel.slice_of(layer)
    mixtures = [ExpertParallel.slice_of(experts, tokens=tokens) for tokens in ("own", "same")]
    return [row(own_columns(x, row)), *(mine(x, ids, weights) for mine in mixtures)]


def elsewhere_over_hosts(layer, experts, given):
    """Whether layers whose peer memory is on another device than x give what collectives give."""
    with pytest.MonkeyPatch.context() as patch:
        memory = host_peers.use(patch)
        memory.device = torch.device("cuda", 0)
        memory.all_reduce = memory.dispatch = None  # nobody calls them
        found = results_of(layer, experts, given)
    return list(map(torch.equal, found, results_of(layer, experts, given)))


def test_tensors_of_another_device_go_by_the_groups_collectives(team):
    """A group may have gloo for CPUs beside NCCL."""
    layer = filled(NVFP4Linear(256, 32), 1)
    experts = filled(NVFP4Experts(256, 96, 4), 5)
    ids, _ = routed(6, 4, 2, torch.Generator().manual_seed(2))
    given = activations(6, 256), ids, torch.rand(6, 2)
    assert team(2).run(elsewhere_over_hosts, layer, experts, given) == [[True] * 3] * 2


def where_collectives_send_less(experts, given, transport):
    """How often a call's tokens go by peers, and whether its result is what collectives give."""
    x, ids, weights = given
    want = ExpertParallel.slice_of(experts)(x, ids, weights)
    with pytest.MonkeyPatch.context() as patch:
        memory, sent = host_peers.use(patch), []
        patch.setattr(host_peers.experts, "MORE_BYTES", -math.inf)
        mine = ExpertParallel.slice_of(experts, transport=transport)
        dispatch = memory.dispatch
        memory.dispatch = lambda *given: sent.append(1) or dispatch(*given)
        same = torch.equal(mine(x, ids, weights), want)
    return len(sent), same


@pytest.mark.parametrize("transport, calls", [("auto", 0), ("peer", 1)])
def test_a_call_goes_where_less_is_sent(team, transport, calls):
    """One expert for each token, whose sum both round alike."""
    experts = filled(NVFP4Experts(256, 96, 4), 5)
    ids, _ = routed(6, 4, 1, torch.Generator().manual_seed(2))
    given = activations(6, 256), ids, torch.ones(6, 1)
    assert (
        team(2).run(where_collectives_send_less, experts, given, transport) == [(calls, True)] * 2
    )


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
@pytest.mark.parametrize("biased", [False, True])
def test_experts_over_peers_have_one_gpus_bits(team, world, input_quant, biased):
    """Any numbers, which no order of adding but the router's gives. One rank has no tokens."""
    whole = filled(NVFP4Experts(256, 96, 7, input_quant=input_quant, bias=biased), 5)
    draw, inputs = torch.Generator().manual_seed(1), []
    for n in (6, 0, 9)[:world]:
        ids, _ = routed(n, 7, 3, draw)
        inputs.append((activations(n, 256), ids, torch.rand(n, 3, generator=draw)))
    options = {"tokens_per_rank": 10}
    for got, want, said in team(world).run(over_hosts, whole, inputs, options):
        assert torch.equal(got, want) and said.endswith("transport='peer')")


def test_what_gpus_run_is_right_of_experts(team):
    """The function of test_peers_on_gpus.py."""
    whole = exact_experts("dynamic", 7, hidden=256)
    assert team(3).run(over_hosts_too, mixed, whole, 5, 3, 4) == [4] * 3
    assert team(3).run(over_hosts_too, mixture_replayed, exact_mixture(), 5, 4) == [4] * 3


def test_shared_experts_that_train(team):
    """They get their gradient over peers, too, and no bit changes."""
    moe = exact_mixture(5)
    moe.shared_experts = torch.nn.Linear(256, 256, dtype=torch.bfloat16)
    for (y, gradient), (want, its) in team(2).run(over_hosts_too, trained, moe, ones(6, 256, 1)):
        assert torch.equal(y, want) and torch.equal(gradient, its) and bool(its.any())


def test_an_odd_h_goes_by_collectives(team):
    """Rows of its scale factors are no multiple of 16 bytes."""
    whole = filled(NVFP4Experts(64, 96, 4, input_quant="dynamic"), 5)
    inputs = [(activations(2, 64), torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1))] * 2
    for got, want, said in team(2).run(over_hosts, whole, inputs, {}):
        assert torch.equal(got, want)
        assert said.endswith("transport='collective' (hidden_size is 64, no multiple of 256))")


@pytest.mark.parametrize("reduce_dtype", [None, torch.float32])
@pytest.mark.parametrize("out_features", [64, 33])
def test_a_row_parallel_layer_over_peers_adds_in_order(team, reduce_dtype, out_features):
    layer = filled(NVFP4Linear(96, out_features, dtype=torch.bfloat16), 2)
    options = {"reduce_dtype": reduce_dtype}
    for got, want in team(3).run(row_over_hosts, layer, activations(5, 96), options):
        assert torch.equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", ["own", "same"])
@pytest.mark.parametrize("input_quant", [None, "dynamic"])
def test_compiled_experts_over_peers(team, tokens, input_quant):
    whole = filled(NVFP4Experts(256, 96, 4, input_quant=input_quant), 5)
    ids, _ = routed(6, 4, 2, torch.Generator().manual_seed(2))
    given = activations(6, 256), ids, torch.rand(6, 2)
    assert team(2).run(compiled_over_hosts, whole, given, {"tokens": tokens}) == [True] * 2


@pytest.mark.slow
def test_a_compiled_row_parallel_layer_over_peers(team):
    layer = filled(NVFP4Linear(96, 64, dtype=torch.bfloat16), 2)
    assert team(2).run(compiled_row_over_hosts, layer, activations(5, 96)) == [True] * 2


def test_compiled_calls_leave_the_number_of_tokens_open():
    """So that other numbers of tokens compile nothing anew."""
    ops = torch.ops.nvfp4kern_distributed
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x, ids, weights = (
        mode.from_tensor(torch.empty(5, n, dtype=dtype), symbolic_context=OPEN_ROWS)
        for n, dtype in ((256, torch.bfloat16), (3, torch.int32), (3, torch.float32))
    )
    with mode:
        tokens = x.shape[0]
        sums = ops.all_reduce(x, 0, torch.float32, 0)
        got, sf, local = ops.dispatch(x, None, ids, 0, 7, 4 * tokens)
        products = torch.empty(9, 256, dtype=torch.bfloat16)
        y = ops.combine(products, local.flatten(), ids, weights, None, 0, 7, torch.float16)
    assert sums.shape == x.shape and sums.dtype == torch.float32
    for rows in (sums.shape[0], got.shape[0] // 4, local.shape[0] // 4, y.shape[0]):
        assert isinstance(rows, torch.SymInt) and rows == tokens
    assert (got.shape[1], local.shape[1], tuple(sf.shape)) == (256, 3, (0,))
    assert y.shape[1] == 256 and y.dtype == torch.float16


@pytest.mark.parametrize(
    "world, hidden, most", [(2, 2048, 293), (2, 7168, 83), (4, 2048, 326), (8, 2048, 1 << 20)]
)
def test_many_tokens_go_by_collectives_where_these_send_less(as_rank, world, hidden, most):
    """With "auto" alone. `most` tokens of 8 experts are what peers take."""
    as_rank(0, world)
    auto = ExpertParallel(hidden, 16, 64, device="meta")
    peer = ExpertParallel(hidden, 16, 64, device="meta")
    peer.transport = "peer"
    for tokens, faster in ((1, True), (most, True), (most + 1, most == 1 << 20)):
        x = torch.empty(tokens, hidden, dtype=torch.bfloat16, device="meta")
        ids = torch.empty(tokens, 8, dtype=torch.int32, device="meta")
        assert auto._peers_are_faster(x, ids) is faster
        assert peer._peers_are_faster(x, ids)
