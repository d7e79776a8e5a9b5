"""Patterns find what `re` and `fnmatch` find, and cost no more than is counted."""

import fnmatch
import random
import re

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
    ["(", "a)", "[", "*a", "a**", "a{2}{3}", "(?=a)b", "(?!a)b", "(?<=a)b", r"(a)\1", "(?i)a", "{",
     r"\bgate", "a++", "a" * 1001, "a{1000}", "[[a]&&b]", "(" * 400 + ")" * 400, "(?P<n>a)", "\\"],
)  # fmt: skip
def test_what_is_not_evaluated(pattern):
    with pytest.raises(PatternError):
        Names(MODEL).regular(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a*)*c", "(a|aa)+$", "(.*.*.*)*x", "((a*)*)*$", "(a|a)*c", ".*.*.*.*.*.*.*.*.*c"]
)
def test_what_backtracks_elsewhere(pattern):
    names = Names(["a" * 900 + "b"] * 50)
    assert names.regular(pattern) == set()
    assert patterns.COST - names._left < 10**9


def test_the_cost_is_bounded():
    names = Names(["a" * 900 + "b"] * 10)
    names._left = 10**7
    with pytest.raises(PatternError, match="costs too much"):
        names.regular("((a{90}){90}){90}")
    with pytest.raises(PatternError, match="costs too much"):
        names.wildcard("a*")
