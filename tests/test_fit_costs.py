"""benchmarks/fit_costs.py: known costs come back, and its models are the plans themselves."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rows
from ptxsim import build

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import fit_costs  # noqa: E402

FAMILIES = pytest.mark.parametrize("family", fit_costs.PROBLEMS)
no_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def h200(sms=132):
    """Its SMs come in parts that have room for no whole number of large clusters."""
    gpu = fit_costs.Gpu(sms, 232448, 233472)
    for i in (0, 1):
        sizes = (0, 132, 66, 0, 32, 0, 20, 0, 15)
        gpu.clusters[i][:] = [(i + 1) * n * sms // 132 for n in sizes]
    return gpu


def tile_names(family):
    """Of its tables, which the build reads, too. No cost chooses tiles of multiply-adds."""
    text = "".join(path.read_text() for path in (ROOT / "csrc" / family).glob("*.h"))
    tables = re.findall(r"#define (?!\w+_FMA)\w+_TILES?\(X\)((?:.*\\\n)*.*)", text)
    return re.findall(r"\bX\((\w+),", "".join(tables))


def tiles_of(family):
    """Indices: its tiles, and its rivals'."""
    return range(sum(len(tile_names(one)) for one in (family, *fit_costs.RIVALS.get(family, ()))))


def picks_of(model, family, problem):
    """Of every tile, as a sweep forces them."""
    found = (
        model.pick(problem, tile, invariant)
        for tile in tiles_of(family)
        for invariant in (False, True)
    )
    return {choice for choice in found if choice}


def measured_by(model, family):
    """{problem: {choice: microseconds}} as if the model's costs were what a GPU takes."""
    return {
        problem: {choice: model.us(problem, choice) for choice in picks_of(model, family, problem)}
        for problem in list(fit_costs.PROBLEMS[family]())[::2]
    }


@FAMILIES
def test_a_header_is_costs_and_where_they_are_from(family):
    text = fit_costs.header_of(family).read_text()
    costs = fit_costs.costs_in(text)
    assert len(costs) > 5 and text.count("#define") == len(costs) + 1  # and the guard
    assert len(fit_costs.FROM.findall(text)) == 1
    origin = "a sweep of 2 launches of 1 problem on a GPU: " + 9 * "the choice is the best. "
    doubled = {name: 2 * value for name, value in costs.items()}
    written = fit_costs.rewritten(text, doubled, origin)
    assert fit_costs.costs_in(written) == pytest.approx(doubled, rel=1e-3)
    assert written.count("*/") == text.count("*/") and max(map(len, written.splitlines())) <= 120
    said = " ".join(line.strip(" *") for line in written.partition("#ifndef")[0].splitlines())
    assert origin.strip() in said and "H200" not in written
    assert fit_costs.rewritten(written, doubled, origin) == written


TERMS = {  # costs that stand alone in what some choice takes
    "sm80/gemm": ("LONE_STEP", "REDUCE", "SUM_BYTES_PER", "CTA"),
    "sm80/route": ("BYTES_PER", "FLOP_PER", "BARRIER", "TURN"),
    "sm90/gemm": ("ISSUE", "LANES", "GEMV"),
    "sm90/gemv": ("BYTES_PER", "CODES_TALL_STEP", "CODES_SHORT_STEP", "MAP_STEP", "FEW_CLUSTER"),
}


@no_compiler
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=pytest.mark.slow if "sm90" in f else []) for f in fit_costs.PROBLEMS],
)
def test_known_costs_come_back(family):
    model = fit_costs.Model(family, h200())
    start = model.costs
    true = start * np.exp(np.random.default_rng(1).uniform(-0.2, 0.2, len(start)))
    model.costs = true
    measured = measured_by(model, family)
    model.costs = start
    off = [model.us(p, c) / us for p, times in measured.items() for c, us in times.items()]
    assert max(off) > 1.1 * min(off)
    found = dict(zip(model.names, fit_costs.fitted(model, measured), strict=True))
    near = [model.us(p, c) / us for p, times in measured.items() for c, us in times.items()]
    assert near == pytest.approx([1.0] * len(near), rel=2e-3)
    prefix = family.replace("/", "_").upper()
    for name, value in zip(model.names, true, strict=True):
        if name.removeprefix(f"{prefix}_").removesuffix("_US") in TERMS[family]:
            assert found[name] == pytest.approx(value, rel=0.01), name


@no_compiler
def test_a_cost_that_nothing_depends_on_stays():
    model = fit_costs.Model("sm90/gemv", h200())
    start = dict(zip(model.names, model.costs, strict=True))
    measured = {p: t for p, t in measured_by(model, "sm90/gemv").items() if not p.wide}
    found = dict(zip(model.names, fit_costs.fitted(model, measured), strict=True))
    name = "SM90_GEMV_FEW_F16_US"
    assert found[name] == pytest.approx(start[name], rel=1e-12)


def fastest_us(model, problem):
    return model.us(problem, model.pick(problem))


@no_compiler
@pytest.mark.parametrize(
    "n, k", [(8192, 8192), (4096, 7168), (7168, 2048), (1536, 2048), (256, 512)]
)
def test_more_tokens_are_not_faster(n, k):
    """From few tokens to many, from the gemv to the wgmma tiles, on large GPUs and small ones."""
    for sms in (132, 114, 78):
        model = fit_costs.Model("sm90/gemm", h200(sms))
        for blocked in (False, True):
            us = [
                fastest_us(model, fit_costs.Problem(m, n, k, blocked=blocked)) for m in range(1, 73)
            ]
            assert max(us[i] / us[i + 8] for i in range(64)) <= 1.03
            assert us[63] < 6 * us[0]


@no_compiler
def test_which_tile_a_hopper_takes():
    """As a sweep on an H200 saw it, and with fewer SMs, where tiles take more waves."""

    def tile(model, *problem, invariant=False):
        return model.pick(fit_costs.Problem(*problem, blocked=True), invariant=invariant)[0]

    names, built = tile_names("sm90/gemm"), rows.tiles_of("sm90/gemm")
    models = {sms: fit_costs.Model("sm90/gemm", h200(sms)) for sms in (132, 114, 78)}
    large = models[132]
    assert tile(large, 1, 8192, 8192) >= len(names)  # a gemv
    for m, name in [
        (16, "t16"),
        (32, "t32"),
        (64, "t64"),
        (96, "t96"),
        (128, "t128"),
        (256, "w128"),
        (1024, "w256"),
    ]:
        assert names[tile(large, m, 8192, 8192)] == name, m
    for model in models.values():
        for m in (1, 16, 300):
            name = names[tile(model, m, 8192, 8192, invariant=True)]
            assert not built or built[name]["split_k"] == 1
        us = [
            fastest_us(model, fit_costs.Problem(m, 8192, 8192, blocked=True))
            for m in (16, 256, 4096)
        ]
        assert us == sorted(us)
    assert fastest_us(models[78], fit_costs.Problem(4096, 8192, 8192)) > 1.5 * fastest_us(
        large, fit_costs.Problem(4096, 8192, 8192)
    )


@no_compiler
def test_what_a_choice_costs_beyond_the_best():
    model = fit_costs.Model("sm80/gemm", h200())
    problem = fit_costs.Problem(64, 4096, 7168, blocked=True)
    picked = model.pick(problem)
    others = [model.pick(problem, tile) for tile in range(5)]
    times = {choice: 100.0 if choice == picked else 80.0 for choice in others}
    assert fit_costs.excess(model, {problem: times}) == ({problem: pytest.approx(0.25)}, 0)
    del times[picked]
    assert fit_costs.excess(model, {problem: times}) == ({problem: 0.0}, 1)
    with pytest.raises(ValueError, match="no choice"):
        model.us(problem, (0, 12345, 7))


@no_compiler
def test_the_command(tmp_path, monkeypatch, capsys):
    """From a sweep to a header, a copy of the real one."""
    family = "sm80/route"
    header = tmp_path / "sm80_route_costs.h"
    header.write_text(fit_costs.header_of(family).read_text())
    model = fit_costs.Model(family, h200())
    model.costs = model.costs * 1.25
    rows = [
        {"problem": vars(problem), "choice": list(choice), "us": us}
        for problem, times in measured_by(model, family).items()
        for choice, us in times.items()
    ]
    gpu = {name: getattr(h200(), name) for name in ("sms", "smem_per_cta", "smem_per_sm")}
    gpu["clusters"] = [list(sizes) for sizes in h200().clusters]
    environment = {"gpu": "NVIDIA H200", "date": "2026-11-23T00:00:00"}
    sweep = {"family": family, "gpu": gpu, "environment": environment, "rows": rows}
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(sweep))
    monkeypatch.setattr(fit_costs, "header_of", lambda _: header)
    monkeypatch.setattr(fit_costs, "STARTS", 1)
    monkeypatch.setattr(sys, "argv", ["fit_costs.py", "fit", str(path), "--write"])
    assert fit_costs.main() == 0
    assert "picks were not measured" in capsys.readouterr().out
    text = header.read_text()
    said = f"a sweep of {len(rows)} launches of 18 problems on an NVIDIA H200, 2026-11"
    assert said in text.replace("\n * ", " ")
    assert fit_costs.costs_in(text)["SM80_ROUTE_BARRIER_US"] == pytest.approx(3.125, rel=0.01)


# --- On the simulated GPU ---

SWEEP = """
import json, sys
from pathlib import Path
import ptxsim.fake_cuda
from nvfp4kern.bench import measure, others, products, timing
for module in (others, products, timing):
    module.rotation = lambda *_: 1
measure.environment = lambda *_: {}
import fit_costs
family, path = sys.argv[1:]
problems = [fit_costs.Problem(**one) for one in json.loads(sys.stdin.read())]
untimed = lambda case, layout, forced: dict.fromkeys(forced, 1.0)
fit_costs.sweep(family, Path(path), problems, untimed)
"""
missing = [name for name in ("cc", "nvcc") if not getattr(build, f"find_{name}")()]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")
@FAMILIES
def test_the_model_is_the_plan(family, tmp_path):
    """What explain shows of every tile is what the model picks of it, with the same GPU's facts."""
    rows.need(family.partition("/")[0])
    few = [fit_costs.Problem(1, 320, 512), fit_costs.Problem(1, 150, 1024, blocked=True)]
    few += [fit_costs.Problem(3, 320, 512), fit_costs.Problem(1, 320, 512, wide=True)]
    if not family.startswith("sm90"):
        few = [replace(p, m=m, wide=False) for p in few[:2] for m in (2, 70)]
    if family == "sm90/gemm":
        few = [few[2], *(replace(p, m=40) for p in few[:2])]
    path = tmp_path / "sweep.json"
    row = family.partition("/")[0]
    settings = {"PTXSIM_CC": "9.0", "PTXSIM_SMS": "24", "NVFP4KERN_BACKEND": row}
    places = [ROOT / "tests", ROOT / "benchmarks", ROOT, *os.environ.get("PYTHONPATH", "").split()]
    settings["PYTHONPATH"] = os.pathsep.join(map(str, places))
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, family, path],
        input=json.dumps([vars(problem) for problem in few]),
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    model = fit_costs.Model(family, fit_costs.gpu_of(result["gpu"]))
    for problem, times in fit_costs.by_problem(result).items():
        assert set(times) == picks_of(model, family, problem), problem
        assert all(model.us(problem, choice) > 0 for choice in times)
