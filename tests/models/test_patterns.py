"""Patterns find what `re` and `fnmatch` find, and cost no more than is counted."""

import fnmatch
import random
import re
import sys
from contextlib import contextmanager
from threading import Thread
from time import sleep
from types import SimpleNamespace

import pytest

from nvfp4kern.checkpoint import patterns
from nvfp4kern.checkpoint.patterns import Names, PatternError

PROJ = ("q_proj", "gate_proj", "experts.3.up_proj", "experts.17.down_proj", "gate")
MODEL = [f"model.layers.{i}.mlp.{proj}" for i in range(12) for proj in PROJ]
MODEL += ["lm_head", "model.embed_tokens", "vision[0].proj", "größe.gate"]
EXPRESSIONS = [
    "lm_head", ".*gate$", ".*mlp.gate", r"^model\.layers\.1\..*", r".*\.(q|gate)_proj$",
    r".*experts\.\d+\.(?:up|down)_proj", r".*layers\.[0-3]\.", r"[^m].*", r"model[.]layers[.](3|5)",
    r".*\d{2}.*", r".*\.\d{1,2}?\.up.*", ".+e", "(model|lm).?", "", ".*", r"\Alm_head\Z", r"\w+$",
    r"vision\[0\]\.proj", "gr..e", r"[\w.]*gate$", r"(.*\.)?gate", "[]x]", "(ab|a)*c|lm",
    r"\W", r"[\W_]", r"gr[\xf6]ß", r"gr[^\W\d_]+\.", r"gr[^a-z]", "größe", "()", "a{", "{",
    r"vision\[", r"[^\]]+\]", "[a-z._]+$", "lm_{1,1000}h", r".*[\d.]+gate", r"\D+\Z", "lm|$",
    r"x{,3}lm",
]  # fmt: skip


@pytest.mark.parametrize("pattern", EXPRESSIONS)
def test_regular_expressions_of_real_files(pattern):
    assert Names(MODEL).regular(pattern) == {n for n in MODEL if re.match(pattern, n)}


@pytest.mark.parametrize(
    "pattern",
    ["lm_head", "*gate", "model.layers.1*", "*.mlp.[qg]*", "*experts.?.*", "model.layers.[!1]?.*",
     "vision[[]0].*", "", "*", "[", "*[]", "**e*", "model.layers.3"],
)  # fmt: skip
def test_wildcards(pattern):
    assert Names(MODEL).wildcard(pattern) == {n for n in MODEL if globbed(n, pattern)}


def globbed(name, pattern):
    """The name, or a module that it is in."""
    holders = [name[:i] for i, c in enumerate(name) if c == "."]
    return any(fnmatch.fnmatchcase(n, pattern) for n in [name, *holders])


def test_patterns_drawn_at_random():
    """Quantifiers are not nested: `re` would need too long."""
    draw = random.Random(7)
    texts = ("".join(draw.choices("ab.1x", k=draw.randrange(6))) for _ in range(200))
    names = Names(dict.fromkeys(texts))
    atoms = ["a", "b", r"\.", ".", "[ab]", "[^a]", r"\d", r"\W", "(a|b1)", "(?:ab?|.)"]
    counts = ["", "", "*", "+", "?", "{1,2}", "{2}", "*?", "{2,}", "{,2}"]
    for _ in range(500):
        pieces = [draw.choice(atoms) + draw.choice(counts) for _ in range(draw.randrange(5))]
        pattern = draw.choice(["", "^"]) + "".join(pieces) + draw.choice(["", "$", "|a"])
        assert names.regular(pattern) == {n for n in names.names if re.match(pattern, n)}, pattern
        pattern = "".join(draw.choices(["a", "b", ".", "*", "?", "[ab]", "[!a]", "[^a]", "]"], k=4))
        assert names.wildcard(pattern) == {n for n in names.names if globbed(n, pattern)}, pattern


@pytest.mark.parametrize(
    "pattern",
    ["(", "a)", "a)|(?:b", "[", "[]", "[^]", "*a", "a**", "a{2}{3}", "(?=a)b", "(?!a)b", "(?<=a)b",
     r"(a)\1", "(?i)a", "(?P<n>a)", r"\bgate", "a++", "a" * 1001, "a{1001}", "(.{40}){40}",
     "[[a]&&b]", "[b-a]", "\\", r"[\d-x]", r"\é", "(" * 1000],
)  # fmt: skip
def test_what_is_not_evaluated(pattern):
    with pytest.raises(PatternError):
        Names(MODEL).regular(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a*)*c", "(a|aa)+$", "(.*.*.*)*x", "((a*)*)*$", "(a|a)*c", ".*.*.*.*.*.*.*.*.*c",
     "(" * 400 + "c" + ")" * 400, ".{99}" * 10 + "c"],
)  # fmt: skip
def test_what_backtracks_elsewhere(pattern):
    names = Names(["a" * 900 + "b"] * 50)
    assert names.regular(pattern) == set()
    assert patterns.SECONDS - names._left < 1


def test_classes_of_thousands_of_characters():
    """`re` compiles them slowly: hours, for as many as a configuration may have."""
    names = Names(MODEL)
    names._left = 0.2
    with pytest.raises(PatternError, match="costs too much"):
        for i in range(100):
            wide = "".join(f"{chr(200 + i + j)}-\uffff" for j in range(60))
            assert names.regular(f"[{wide}]") == set()
    assert names._left > -1


def test_the_cost_is_bounded(monkeypatch):
    names = Names(["a" * 900 + "b"] * 10)
    monkeypatch.setattr(patterns, "SECONDS", 1e-3)
    with pytest.raises(PatternError, match="costs too much"):  # before it is searched for
        names.regular(".*(a.{90}){10}")
    names._left = 1e-9
    assert names.regular("a") == set(names.names)
    with pytest.raises(PatternError, match="costs too much"):
        names.wildcard("a*")
    with pytest.raises(PatternError, match="costs too much"):
        Names([chr(0x4E00 + 2 * i) for i in range(3000)]).regular(r"\w" * 10)


def test_without_google_re2(monkeypatch):
    """Plain names do not need it; what needs it says what to install."""
    monkeypatch.setitem(sys.modules, "re2", None)
    names = Names(MODEL)
    assert names.exact("lm_head") == {"lm_head"} and names.exact("lm") == set()
    for find in (names.regular, names.wildcard):
        with pytest.raises(ModuleNotFoundError, match="google-re2.*pip install google-re2"):
            find("lm*")


def test_one_thread_at_a_time_changes_the_process_s_warnings(monkeypatch):
    inside, most = [], []

    @contextmanager
    def catch_warnings():
        inside.append(1)
        most.append(len(inside))
        sleep(0.01)
        yield
        inside.pop()

    stand_in = SimpleNamespace(catch_warnings=catch_warnings, simplefilter=lambda action: None)
    monkeypatch.setattr(patterns, "warnings", stand_in)
    threads = [Thread(target=Names(["gate"]).regular, args=("[g]ate",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4
