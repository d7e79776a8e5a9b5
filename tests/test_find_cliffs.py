"""benchmarks/find_cliffs.py: its calls are calls, and what it takes for a cliff."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import nvfp4kern

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import find_cliffs  # noqa: E402
from cliff_calls import KINDS, OPERATORS, Call, arguments, neighbours, step, zoo  # noqa: E402

SMALL = [
    Call("gemv", "", 1, 40, 96, batch=2),
    Call("gemm", "", 3, 40, 96),
    Call("gemm", "", 3, 40, 96, batch=2),
    Call("dual_gemm", "", 3, 40, 96),
    Call("grouped_gemm", "", 5, 40, 96, experts=4, top=2),
    Call("grouped_dual_gemm", "", 5, 40, 96, experts=4, top=2),
]
BASE = Call("gemm", "Llama", 64, 4096, 4096)


PLAN = {"kernel": "", "why": "", "tile_m": 128, "tile_n": 128, "grid": 32, "threads": 320}


def tokens_and_more(call):
    """A plan that declines odd tokens for a known reason, and 128 rows more for none."""
    falls = {"tokens": "sm90: the tokens are not aligned", "": "sm90: too wide"}
    plan = PLAN | {"backend": "sm90", "kernel": "sm90_gemv_fp16", "declined": None}
    if call.which == "tokens" or call.n == 4096 + 128:
        plan |= {"backend": "sm80", "declined": falls[call.which]}
    return plan


@pytest.mark.parametrize("call", SMALL, ids=lambda call: call.name)
def test_every_neighbour_is_a_call(call):
    torch = pytest.importorskip("torch")
    memory = find_cliffs.Pools("cpu", seed=0, scale=2**10)
    for kind in KINDS:
        for near in neighbours(replace(call, kind=kind)):
            given, options = arguments(near, memory)
            out = getattr(nvfp4kern, near.operator)(*given, **options)
            assert out is options["out"] and torch.isfinite(out.float()).all(), near
            if near.which:
                (role,) = [
                    t for t in [*given, *options.values()]
                    if isinstance(t, torch.Tensor) and t.data_ptr() % 16
                ][:1]  # fmt: skip
                assert role.data_ptr() % 16 == near.aligned
                assert role.stride(-2) * role.element_size() % 16 == near.aligned


def test_the_zoo_has_every_operator_and_neighbours_differ_by_what_is_said():
    calls = list(zoo())
    assert {call.operator for call in calls} == set(OPERATORS) and len(set(calls)) > 2000
    steps = {step(BASE, near): near for near in neighbours(BASE)}
    assert len(steps) == len(list(neighbours(BASE))) and BASE not in steps.values()
    assert steps["n-64"] == replace(BASE, n=4032) and steps["m+16"] == replace(BASE, m=80)
    assert steps["blocked"].layout == "blocked" and steps["weights at 4 bytes"].aligned == 4
    assert all(near.m > 0 for near in neighbours(replace(BASE, m=1)))


def test_more_work_may_take_longer_and_known_reasons_are_no_cliffs():
    plan, twice = PLAN | {"why": "few tokens"}, replace(BASE, m=128)
    row = find_cliffs.pair((BASE, plan, 10.0), (twice, plan, 24.0))
    assert row["slow"] == twice.name and row["us"] == [24.0, 10.0]
    assert row["excess"] == pytest.approx(1.2) and not find_cliffs.is_cliff(row)
    row = find_cliffs.pair((BASE, plan, 14.0), (twice, plan, 10.0))
    assert row["excess"] == pytest.approx(1.4) and find_cliffs.is_cliff(row)
    known = plan | {"declined": "sm90: the tokens are not aligned"}
    assert not find_cliffs.is_cliff(find_cliffs.pair((BASE, known, 14.0), (twice, plan, 10.0)))
    assert find_cliffs.is_cliff(find_cliffs.pair((BASE, plan, 14.0), (twice, known, 10.0)))


def known_of(slow, slow_plan, fast, fast_plan):
    """The reason why one takes 1.4 times as long."""
    row = find_cliffs.pair((slow, PLAN | slow_plan, 14.0), (fast, PLAN | fast_plan, 10.0))
    assert row["excess"] > find_cliffs.LIMIT
    return row["known"]


def test_another_wave_is_a_reason_where_it_is_enough():
    full = replace(BASE, m=128, n=132 * 128)
    wide, wider = replace(full, n=full.n + 8), replace(full, n=19 * full.n + 8)
    assert known_of(wide, {"grid": 132}, full, {"grid": 132}) == find_cliffs.ANOTHER_WAVE
    assert not known_of(replace(wide, n=full.n - 8), {"grid": 132}, full, {"grid": 132})
    assert not known_of(wider, {}, replace(full, n=19 * full.n), {})  # 20 for 19
    halves = {"grid": 2 * 66}  # clusters of two CTAs, by parts of K
    some = replace(full, n=66 * 128)
    assert known_of(replace(some, n=some.n + 8), PLAN, some, halves) == find_cliffs.ANOTHER_WAVE


def test_what_else_is_a_reason():
    gemv, more = {"kernel": "sm90_gemv_fp16"}, replace(BASE, k=BASE.k + 32)
    assert known_of(more, PLAN, BASE, gemv) == find_cliffs.PIECES
    assert not known_of(replace(BASE, k=BASE.k + 64), PLAN, BASE, gemv)
    ctas = [gemv | {"grid": grid, "threads": 256} for grid in (265, 264)]
    assert known_of(BASE, ctas[0], BASE, ctas[1]) == find_cliffs.ANOTHER_WAVE
    assert not known_of(BASE, ctas[1], BASE, ctas[1])
    result = replace(BASE, m=4096, n=512, k=128)
    assert known_of(replace(result, n=520), PLAN, result, PLAN) == find_cliffs.SECTORS
    assert not known_of(replace(result, n=496), PLAN, result, PLAN)
    assert not known_of(replace(BASE, n=BASE.n - 8), PLAN, BASE, PLAN)  # weights are more
    codes = replace(BASE, kind="nvfp4")
    assert known_of(codes, PLAN, BASE, {"kernel": "sm90_gemm_n256_fp16"}) == find_cliffs.CONVERTED
    assert not known_of(BASE, PLAN, codes, {"kernel": "sm90_gemm_n256_fp16"})


def test_plans_that_fall_to_another_row_are_found(monkeypatch, capsys):
    monkeypatch.setattr(find_cliffs, "Addresses", lambda: None)
    monkeypatch.setattr(find_cliffs, "plan_of", lambda call, _: tokens_and_more(call))
    found = find_cliffs.found_in_plans([BASE])
    assert {text: len(pairs) for text, pairs in found.items()} == {
        "sm90: the tokens are not aligned": 2,
        "sm90: too wide": 1,
    }
    assert find_cliffs.show_plans(found)
    out = capsys.readouterr().out
    assert "1 x sm90: too wide\n    CLIFF\n" in out and "neighbours: n+128 (1)" in out
    del found["sm90: too wide"]
    assert not find_cliffs.show_plans(found)
    fallen = find_cliffs.found_in_plans([replace(BASE, which="tokens", aligned=4)])
    assert find_cliffs.show_plans(fallen)  # a product's own fall is a cliff, whatever the reason
    assert "Llama: gemm 4096x4096; float16; linear; 64" in capsys.readouterr().out


def test_what_is_beyond_the_limit_is_timed_again(monkeypatch, capsys):
    plan, asked = PLAN, []

    def timed(calls, _):
        asked.append(calls)
        slow = 1 + len([one for one in asked if one == calls])  # only at first
        return [(call, plan, 10.0 if call == calls[0] else 10.0 * slow) for call in calls]

    calls = [BASE, replace(BASE, layout="blocked")]
    monkeypatch.setattr(find_cliffs, "timed", timed)
    monkeypatch.setattr(find_cliffs, "drawn", lambda *_: calls)
    clock = iter([0.0, 1.0, 9.0])
    monkeypatch.setattr(find_cliffs, "perf_counter", lambda: next(clock))
    (row,) = find_cliffs.search(5, 1, None, ["gemm"])
    assert len(asked) == 2 and row["excess"] == 2 and row["calls"][0]["m"] == 64
    assert find_cliffs.show_times([row])
    assert "1 pairs, 1 cliffs" in capsys.readouterr().out


def test_draws_follow_from_the_seed():
    products = list(zoo())
    draws = [find_cliffs.drawn(random.Random(seed), products) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2] and len(draws[0]) == 1 + find_cliffs.NEIGHBOURS
