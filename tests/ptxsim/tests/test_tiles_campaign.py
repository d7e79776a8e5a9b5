"""The campaign of forced tiles: what is kept of it, and a drawn sample."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn_calls import OPERATORS, TOKENS, drawn
from drawn_cases import FAMILIES, cases, families_of
from drawn_gated import draw_gated
from ptxsim import build
from ptxsim.campaigns import tiles
from rows import TABLE, need

TESTS = Path(__file__).parents[2]
missing = [
    name for name, path in [("cc", build.find_cc()), ("nvcc", build.find_nvcc())] if not path
]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_kept_found_nothing(family):
    """It says of which sources it is. Of today's it has every kernel; kernels that came later are
    missing until the campaign has run again."""
    row = tiles.row_of(family)
    need(row)
    kept = json.loads(tiles.RESULTS[row].read_text())[family]
    assert set(kept) == {"sources", "sms", "seeds", "cases", "found"}
    assert kept["found"] == [] and kept["sms"] == list(tiles.SMS[row])
    assert kept["seeds"] == sorted(set(kept["seeds"])) and kept["seeds"]
    known = {case.name: case for case in cases([family])}
    assert kept["cases"] and set(kept["cases"]) <= set(known)
    assert kept["sources"] != tiles.hash_of(family) or set(kept["cases"]) == set(known)
    for name, counts in kept["cases"].items():
        assert set(counts) == {*tiles.COUNTS, "kernel"}
        case = known[name]
        assert counts["calls"] + counts["declined"] == len(kept["seeds"]), name
        assert counts["calls"] and (case.may_decline or not counts["declined"]), name
        assert counts["kernel"] == case.kernel, name
        assert counts["wrong"] == counts["E"] == counts["W"] == 0, name


@pytest.mark.slow
@pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")
@pytest.mark.parametrize("row", tiles.RESULTS)
def test_every_kernel_has_a_case(row):
    """But for what runs before or after it in the same call, and the gemvs of one matrix."""
    need(row)
    kernels, compiled = set(), build.kernels(TABLE[row].cc)
    for source in (path for of in families_of(row) for path in (build.CSRC / of).glob("*.cu")):
        text = (compiled / f"{source.stem}.ptx").read_text()
        kernels |= set(re.findall(r"\.entry (\w+)\(", text))
    others = {name for name in kernels if re.match("sm90_gemm_tokens_|sm90_gemv_(?!experts)", name)}
    of_cases = {case.kernel for case in cases(families_of(row))}
    assert kernels - others - {"sm90_route_sort"} == of_cases


@pytest.mark.parametrize("row", tiles.RESULTS)
def test_no_other_family_is_kept(row):
    assert set(json.loads(tiles.RESULTS[row].read_text())) == set(families_of(row))


def test_results_are_of_what_a_family_includes(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "CSRC", tmp_path)
    files = {
        "sm90/one/a.cu": '#include "deep.h"\n#include <built.h>\n',
        "sm90/one/deep.h": '#include "common/x.h"\n',
        "common/x.h": '#include "y.h"\n',
        "common/y.h": '#include "x.h"\n',
        "common/z.h": "",
        "sm90/two/a.cu": '#include "common/z.h"\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    of = [str(path.relative_to(tmp_path)) for path in tiles.sources_of("sm90/one")]
    assert of == ["common/x.h", "common/y.h", "sm90/one/a.cu", "sm90/one/deep.h"]
    results = tmp_path / "results.json"
    for family in ("sm90/two", "sm90/one"):
        tiles.keep(results, family, tiles.kept(results, family) | {"seeds": [5]})
    assert list(json.loads(results.read_text())) == ["sm90/one", "sm90/two"]
    assert [tiles.kept(results, f"sm90/{name}")["seeds"] for name in ("one", "two")] == [[5], [5]]
    (tmp_path / "common" / "y.h").write_text("int changed;\n")
    assert [tiles.kept(results, f"sm90/{name}")["seeds"] for name in ("one", "two")] == [[], [5]]


@pytest.mark.parametrize(
    "operator, tokens",
    [(o, t) for o in OPERATORS for t in TOKENS if t != "NVFP4" or "halves" not in o],
)
def test_drawn_calls_are_the_oracles(operator, tokens, monkeypatch):
    """On the CPU: what is drawn is right, and a seed draws it again."""
    check_draws(monkeypatch, lambda *args: drawn(operator, tokens, *args))


@pytest.mark.parametrize("tokens", TOKENS)
def test_drawn_calls_of_gated_experts_are_the_oracles(tokens, monkeypatch):
    check_draws(monkeypatch, lambda tile, *args: draw_gated(tile, tokens, *args))


def check_draws(monkeypatch, draw):
    """draw(tokens of a tile, seed, work)"""
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    for seed in range(12):
        call = draw((8, 64, 256)[seed % 3], seed, 1 << 18)
        outs = call.run("cpu")
        call.check(outs, 1)
        again = draw((8, 64, 256)[seed % 3], seed, 1 << 18)
        assert again.said == call.said
        outs[0].buffer.view(dtype=outs[0].buffer.dtype)[0] = 1  # a guard
        with pytest.raises(AssertionError, match="guards"):
            call.check(outs, 1)


def test_a_wrong_element_is_noticed(monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    for always_exact in (True, False):
        call = drawn("gemm", "NVFP4", 64, 3, work=1 << 18, always_exact=always_exact)
        (out,) = call.run("cpu")
        element = tuple(np.array(out.tensor.shape) - 1)
        out.tensor[element] = 3e4
        with pytest.raises(AssertionError, match="output 0"):
            call.check([out], 1)


def run_command(*command):
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *command],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")
def test_a_drawn_sample_of_tiles(campaign, tmp_path):
    need("sm90", "sm100")
    file = tmp_path / "found.json"
    sample = ["--seed", str(campaign.seed), "--seeds", str(campaign.times(2)), "--sample", "8"]
    done = run_command("-m", "tests.ptxsim", "tiles", *sample, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert set(found) == set(FAMILIES)
    for family in found.values():
        assert family["found"] == [] and len(family["seeds"]) == campaign.times(2)
        assert sum(counts["calls"] for counts in family["cases"].values()) > 7


@pytest.mark.parametrize("which", ([], ["--routers"]))
def test_the_script_of_random_problems_compares(which):
    """The CPU with itself, as on a machine without a GPU."""
    need("sm90")
    script = ["tests/random_problems.py", "--backend", "cpu", "--count", "120", "--jobs", "1"]
    done = run_command(*script, *which)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 1: 120 problems right, 0 wrong" in done.stdout
