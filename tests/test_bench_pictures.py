"""What the benchmark's tables and pictures make of rows: marks, points, titles."""

import json
import sys
from pathlib import Path

import pytest

from nvfp4kern import __main__ as main

ROOT = Path(__file__).parents[1]
TIME = {"median": 1e3, "low": 950.0, "high": 1149.0}
ENVIRONMENT = {
    "device": "cpu",
    "cpu": "a CPU",
    "threads": 2,
    "torch": "2.13.0",
    "nvfp4kern": "0.2.0",
}
ENVIRONMENT |= {"date": "2026-11-26T17:54:35+00:00"}


def row(op, shape, others, series="", at=0):
    """All contenders take the same time, each in a dictionary of its own."""
    found = {"set": "quick", "op": op, "sizes": {}, "series": series, "at": at, "shape": shape}
    found |= {"right": True, "time": TIME, "torch_rates": 500.0}
    if op != "route":
        found |= {"layout": "blocked", "other": TIME}
    return json.loads(json.dumps(found | {"others": dict.fromkeys(others, TIME)}))


@pytest.fixture
def result():
    names = "cuBLAS fp16, a loop", "dequantize + matmul"
    rows = [row("gemm", f"{m}x64x64", names, "gemm 64x64", m) for m in (1, 8)]
    rows += [row("gemm", "3x64x64", names), row("route", "3x8x64", ["torch eager"])]
    rows += [row(op, "8 tokens", names, "small", 8) for op in ("experts", "layer")]
    return {"environment": ENVIRONMENT, "rows": rows}


@pytest.fixture
def shown(result, tmp_path, monkeypatch, capsys):
    """What the command prints of the result."""
    path = tmp_path / "rows.json"

    def show():
        path.write_text(json.dumps(result))
        monkeypatch.setattr(sys, "argv", ["nvfp4kern", "bench", "--from", str(path)])
        assert main.main() == 0
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize("columns", (80, 190))
def test_what_was_disturbed_is_marked(columns, result, shown, monkeypatch):
    """By half of what lies between quartiles, beyond a tenth of the median."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert "~" not in shown()
    result["rows"][3]["others"]["torch eager"]["high"] = 1151.0
    result["rows"][0]["time"]["low"] = 840.0
    out = shown()
    assert out.count("(~1.00x)") == 1 and "~ disturbed, 2 of 6 rows" in out
    assert "  route 3x8x64: torch eager ±10%\n" in out and "  gemm 1x64x64: ours ±15%\n" in out


def test_points_do_not_hide_each_other(result):
    plots = pytest.importorskip("nvfp4kern.bench.plots")
    for picture in (plots.alternatives, plots.floor, plots.tokens):
        question, _, panels = picture(result["rows"], False)
        assert question.endswith("?") and len(panels) == 1
        for axes in panels:
            assert "log" in (axes.get_xscale(), axes.get_yscale())
            lines = [bar.lines[0] for bar in axes.containers]
            points = [
                tuple(point)
                for line in lines
                if line.get_marker() != "None"
                for point in line.get_xydata()
            ]
            assert len(points) == len(set(points)) > 5
            (left, right), (bottom, top) = axes.get_xlim(), sorted(axes.get_ylim())
            assert all(left < x < right and bottom < y < top for x, y in points)


def test_a_ratio_has_the_quartiles_of_both_times():
    plots = pytest.importorskip("nvfp4kern.bench.plots")
    assert plots._ratio({"median": 2}, {"median": 1, "low": 0.5, "high": 4}) == (0.5, 2, 4)


def test_titles_say_what_was_measured():
    plots = pytest.importorskip("nvfp4kern.bench.plots")
    found = {"gpu": "NVIDIA H200", "date": "2026-11-26T17:54:35+00:00", "nvfp4kern": "0.2.0"}
    assert plots._about(found) == "NVIDIA H200, 2026-11-26, nvfp4kern 0.2.0"
    assert plots._about(found | {"commit": "1a2b"}) == "NVIDIA H200, 2026-11-26, commit 1a2b"


def test_a_large_set_has_pictures_of_its_operators():
    plots = pytest.importorskip("nvfp4kern.bench.plots")
    rows = [{"op": op} for op in ("gemm", "route") for _ in range(plots.MOST_ROWS // 2)]
    assert list(plots._parts(rows)) == [""]
    assert list(plots._parts([*rows, rows[0]])) == ["_gemm", "_route"]


def test_pictures_of_the_documents_follow_from_rows_and_code(tmp_path, monkeypatch):
    """An SVG has a digest of these; without a change nothing is drawn."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import figures_pictures as pictures

    gpu = json.loads((ROOT / "benchmarks" / "results" / "gpu.json").read_text())
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    monkeypatch.setattr(pictures, "FOLDER", tmp_path / "pictures")
    kept = {"faster": pictures.PICTURES["faster"]}
    monkeypatch.setattr(pictures, "PICTURES", kept)
    path = tmp_path / "pictures" / "faster.svg"
    assert pictures.draw(gpu, only_check=True) == [path] and not path.exists()
    assert pictures.draw(gpu) == [path] and pictures.draw(gpu) == []
    text = path.read_text()
    assert "Am I faster than what I use?" in text and pictures.facts_of(gpu)["commit"] in text
    pictures.six_of(gpu["rows"])[0]["time"]["low"] -= 1
    assert pictures.draw(gpu, only_check=True) == [path] and path.read_text() == text
    assert pictures.draw(gpu) == [path] and path.read_text() != text


def test_a_picture_of_several_numbers_of_ranks(tmp_path, monkeypatch):
    """None of one: that has no curve."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import figures_parallel as parallel
    import figures_pictures as pictures

    found = json.loads((ROOT / "benchmarks" / "results" / "parallel.json").read_text())
    found["rows"] = [row for row in found["rows"] if row["ranks"] == 2]
    assert parallel.picture(found, "") is None and pictures.draw_parallel(found) == []
    more = [row | {"ranks": 4, "us": {n: t / 2 for n, t in row["us"].items()}}
            for row in found["rows"]]  # fmt: skip
    found["rows"] += more
    figure = parallel.picture(found, "one GPU, one day")
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.lines}
    assert list(panels) == list(parallel.layers_of(found)) and len(panels) >= 3
    lines = panels["experts of Qwen3-30B"].lines
    assert len(lines) == 9 and list(lines[0].get_xdata()) == [2, 4]
    assert lines[0].get_ydata()[1] == lines[0].get_ydata()[0] / 2
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    monkeypatch.setattr(pictures, "FOLDER", tmp_path / "pictures")
    path = tmp_path / "pictures" / "parallel.svg"
    assert pictures.draw_parallel(found, only_check=True) == [path]
    assert pictures.draw_parallel(found) == [path] and pictures.draw_parallel(found) == []
    more[0]["us"]["peer"] += 1
    assert pictures.draw_parallel(found, only_check=True) == [path]


def test_columns_of_some_layers_alone(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import figures
    import figures_parallel as parallel

    us = {"peer": 1.0, "collective": 2.0, "one GPU": 3.0, "peer, in line": 4.0}
    row = {"what": "mixture of A", "ranks": 2, "tokens": 8, "bits of one GPU": ["peer"], "us": us}
    lines = parallel.layers({"rows": [row]}, figures.table, figures.number).splitlines()
    assert lines[0].split(" | ")[3:] == [
        "peers", "NCCL", "one GPU, all of it", "peers, shared experts first |",
    ]  # fmt: skip
    assert lines[2] == "| mixture of A | 2 | 8 | 1 = | 2 | 3 | 4 |"


def test_what_is_faster_than_ours_is_counted_by_operator(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import figures

    rows = [
        row("gemm", f"{m}x64x64", ["Humming indexed", "cuBLAS fp16, a loop"]) for m in (1, 2, 3)
    ]
    rows += [row("route", "3x8x64", ["torch eager"])]
    assert (
        figures.faster_than_ours(rows, "A")
        == "- A: [others](docs/benchmarks.md) are faster in 0 of 4 rows."
    )
    rows[0]["others"]["Humming indexed"]["median"] = 500.0
    rows[1]["others"]["cuBLAS fp16, a loop"]["median"] = 800.0
    rows[2]["others"]["Humming indexed"]["median"] = 980.0
    found = " ".join(figures.faster_than_ours(rows, "A").split())
    assert found == (
        "- A: [others](docs/benchmarks.md) are faster in 2 of 4 rows: Humming up to 2.00 times in "
        "`gemm` (1 of 3), cuBLAS fp16 up to 1.25 times in `gemm` (1 of 3)."
    )
