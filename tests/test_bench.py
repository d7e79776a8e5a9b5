"""`python -m nvfp4kern bench`: what it says, writes and returns, and what it takes for right."""

import functools
import inspect
import json
import subprocess
import sys

import pytest
import torch
from bench_columns import COLUMNS

import nvfp4kern
from nvfp4kern import __main__ as main
from nvfp4kern.bench import exact, gaussian, layers, measure, operands, others, products, timing
from nvfp4kern.bench.shapes import OPERATORS, SETS, chosen

CASES = products, layers, others
NO_COMPILER = "compiled code is timed on a GPU only"
LAYOUT = dict.fromkeys((*OPERATORS[:5], "experts"), "blocked")
LAYOUT |= dict.fromkeys((*OPERATORS[5:8], "layer")) | dict.fromkeys(OPERATORS[8:10], "linear")
DATA = pytest.mark.parametrize("data", [exact, gaussian], ids=["exact", "gaussian"])


def rows_of(path):
    return json.loads(path.read_text())["rows"]


@pytest.fixture
def bench(monkeypatch, capsys):
    """Runs the command; (exit status, what it printed, what it complained)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nvfp4kern", "bench", *map(str, arguments)])
        try:
            status = main.main()
        except SystemExit as stopped:
            status = stopped.code
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A result of the quick set, as --json writes it."""
    path = tmp_path_factory.mktemp("bench") / "earlier.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "HOST_BUDGET_S", 0)  # the fewest samples
        patch.setattr(
            sys, "argv", f"nvfp4kern bench --device cpu --shapes quick --json {path}".split()
        )
        assert main.main() == 0
    return path


# --- The command ---


def test_every_operator_is_checked_and_has_all_its_columns(earlier):
    rows = rows_of(earlier)
    assert {row["op"] for row in rows} == set(OPERATORS)
    for row in rows:
        assert row["right"] and row["backend"] == "cpu" and row["kernel"].startswith("cpu_")
        assert row["time"]["low"] <= row["time"]["median"] <= row["time"]["high"]
        assert set(row["others"]) == COLUMNS[row["op"]]
        assert row["torch_rates"] > 0 and not {"floor", "cold", "read", "read_cold"} & set(row)
        assert row.get("layout") == LAYOUT[row["op"]]
        assert ("other" in row) == (LAYOUT[row["op"]] is not None)


def test_what_is_not_there_is_unavailable_and_says_why(earlier, bench):
    rows = {(row["op"], row["shape"]): row for row in rows_of(earlier)}
    route = rows["route", "512x8x128, top 4"]
    assert route["others"]["torch.compile"] == {"unavailable": NO_COMPILER}
    status, out, _ = bench("--from", earlier)
    assert status == 0 and f"route: torch.compile is unavailable: {NO_COMPILER}" in out


def test_the_environment_is_written(earlier):
    found = json.loads(earlier.read_text())["environment"]
    assert found["torch"] == torch.__version__ and found["nvfp4kern"] == nvfp4kern.__version__
    assert found["device"] == "cpu" and found["date"] and found["seconds"] >= 0
    assert found["data"] == "gaussian" and found["sources"] == nvfp4kern._C._sources
    assert found["threads"] == torch.get_num_threads() and found["cpu"] and found["instructions"]
    assert min(found["ceilings"][name] for name in ("read", "copy", "rate")) > 0


@pytest.mark.parametrize("columns", (80, 120, 160))
def test_tables_fit(columns, earlier, bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = bench("--from", earlier)
    lines = out.splitlines()
    assert status == 0 and "…" not in out
    assert (
        max(len(line.rstrip()) for line in lines if "nvfp4kern" not in line and ": " not in line)
        <= columns
    )
    assert any("milliseconds" in line for line in lines)


def test_one_interruption_does_not_shorten_samples(monkeypatch):
    """A clock of its own: calls take 10 microseconds, but for the one that samples are sized by."""
    clock, made, per_sample = [0.0], [], []

    def call():
        made.append(1)
        clock[0] += 4e-3 if len(made) == 2 else 1e-5

    def pause(seconds):
        per_sample.append(len(made))
        clock[0] += seconds

    monkeypatch.setattr(timing, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(timing, "sleep", pause)
    (time,) = timing.host_in_turns({"": [call]}).values()
    assert per_sample[1] - per_sample[0] == 100
    assert [time.low, time.median, time.high] == pytest.approx([10, 10, 10])


def test_a_run_equals_itself(earlier, bench):
    status, out, _ = bench("--from", earlier, "--compare", earlier)
    count = len(rows_of(earlier))
    assert status == 0
    assert f"{count} of {count} times within 3%, the farthest 0.0% away" in out
    assert "*" not in out.split("beyond 3%")[1]
    assert "milliseconds" in out[out.index("later / earlier") :]


def test_changes_are_marked(earlier, bench, tmp_path):
    result = json.loads(earlier.read_text())
    result["rows"][0]["time"]["median"] *= 1.1
    result["rows"][1]["time"]["median"] *= 0.96
    result["rows"][2]["time"]["median"] *= 1.02
    gone = result["rows"].pop()
    later = tmp_path / "later.json"
    later.write_text(json.dumps(result))
    status, out, _ = bench("--from", later, "--compare", earlier)
    count = len(result["rows"])
    assert status == 0
    assert "* 1.100" in out and "* 0.960" in out and "  1.020" in out
    assert f"{count - 2} of {count} times within 3%, the farthest 10.0% away" in out
    assert f"not compared: quick: {gone['op']}: {gone['shape']}" in out


def test_a_new_run_is_compared(earlier, bench):
    arguments = "--device", "cpu", "--shapes", "quick", "--op", "dequantize", "--compare", earlier
    status, out, _ = bench(*arguments)
    assert status == 0 and "of 1 times within 3%" in out and "not compared: quick: gemv" in out


def test_pictures(earlier, bench, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "folder"
    status, out, _ = bench("--from", earlier, "--plot", folder)
    assert status == 0
    drawn = sorted(path.name for path in folder.iterdir())
    assert drawn == [f"quick_{name}.png" for name in ("alternatives", "floor", "tokens")]
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in drawn)
    assert all(name in out for name in drawn)


@pytest.mark.parametrize(
    "right_calls",
    [0, 1, 2, 3, 4],
    ids=["exact", "blocked", "gaussian", "gaussian, blocked", "while it is timed"],
)
def test_a_wrong_result_has_no_time_and_fails_the_run(right_calls, bench, monkeypatch, tmp_path):
    """Each kind of data is dequantised from both layouts before anything is timed."""
    calls = []

    @functools.wraps(nvfp4kern.dequantize)
    def dequantize(q, *, out, **options):
        wrong = len(calls) >= right_calls
        calls.append(nvfp4kern._C.dequantize(q, out=out, **options))
        out[3, 5] += wrong

    monkeypatch.setattr(nvfp4kern, "dequantize", dequantize)
    path = tmp_path / "wrong.json"
    status, out, err = bench(
        "--device", "cpu", "--shapes", "quick", "--op", "dequantize", "--json", path
    )
    (row,) = rows_of(path)
    assert status == 2 and "WRONG RESULT" in out and "WRONG RESULT" in err
    assert row["right"] is False and not {"time", "others"} & set(row)
    assert bench("--from", path)[0] == 2


def test_what_is_wrong_after_it_was_timed_has_no_time(monkeypatch):
    checked, right = [], measure._is_right

    def is_right(case):
        checked.append(right(case))
        return checked[:3] != [True] * 3

    monkeypatch.setattr(measure, "_is_right", is_right)
    (shape,) = chosen(["quick"], ["route"])
    row = measure.measured(shape, "cpu")
    assert row["right"] is False and not {"time", "others"} & set(row) and checked == [True] * 3


def test_data_that_is_exact_is_timed_as_it_is(bench, tmp_path):
    path = tmp_path / "exact.json"
    arguments = "--device cpu --shapes quick --op gemv dequantize --data exact --commit abc --json"
    status, out, _ = bench(*arguments.split(), path)
    assert status == 0 and "exact data" in out
    environment = json.loads(path.read_text())["environment"]
    assert environment["data"] == "exact" and environment["commit"] == "abc"
    assert all(row["right"] and "other" in row for row in rows_of(path))


def test_too_little_memory_for_one_shape(bench, monkeypatch, tmp_path):
    def dequantize(*_, **__):
        raise torch.OutOfMemoryError("out of memory: 1 GiB wanted\nand more")

    monkeypatch.setattr(others, "dequantize", dequantize)
    path = tmp_path / "result.json"
    status, out, _ = bench(
        "--device", "cpu", "--shapes", "quick", "--op", "dequantize", "--json", path
    )
    (row,) = rows_of(path)
    assert status == 0 and row["unavailable"] == "out of memory: 1 GiB wanted"
    assert "dequantize: 256x1024 is unavailable: out of memory: 1 GiB wanted" in out


@pytest.mark.parametrize(
    "module, arguments, expected",
    [
        ("torch", [], "bench needs PyTorch and rich"),
        ("matplotlib", ["--plot", "here"], "bench --plot needs matplotlib"),
    ],
)
def test_a_missing_module_is_named(module, arguments, expected):
    program = f"import sys; sys.modules[{module!r}] = None; from nvfp4kern.__main__ import main; "
    command = [sys.executable, "-c", program + "sys.exit(main())", "bench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr and "pip install" in done.stderr


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--shapes", "huge"], "'huge'"),
        (["--op", "conv"], "'conv'"),
        (["--shapes", "tokens", "--op", "route"], "no shape of these operators"),
        (["--from", "nowhere.json"], "nowhere.json: expected what --json wrote"),
        (["--compare", __file__], "test_bench.py: expected what --json wrote"),
    ],
)
def test_bad_arguments(arguments, expected, bench):
    status, _, err = bench("--device", "cpu", *arguments)
    assert status == 2 and expected in err


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_what_cannot_be_written_is_said_before_anything_is_measured(option, bench, monkeypatch):
    monkeypatch.setattr(measure, "environment", lambda *_: pytest.fail("it measured"))
    status, out, err = bench("--device", "cpu", option, f"{__file__}/there")
    assert (status, out) == (2, "")
    assert err.startswith(f"{option}: cannot be written: ") and __file__ in err


def test_rows_are_shown_without_torch_and_without_quartiles(earlier, tmp_path):
    """Medians of several runs, as in benchmarks/results, have no quartiles."""
    result = json.loads(earlier.read_text())
    for row in result["rows"]:
        row["time"] = {"median": 1234.0}
    path = tmp_path / "medians.json"
    path.write_text(json.dumps(result))
    program = "import sys; sys.modules['torch'] = None; from nvfp4kern.__main__ import main; "
    command = [sys.executable, "-c", program + "sys.exit(main())", "bench", "--from", path]
    for compared in ([], ["--compare", earlier]):
        done = subprocess.run([*command, *compared], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" 1.234 ") >= len(result["rows"])
        assert "torch's" in done.stdout and "floor" not in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_no_gpu(bench):
    status, _, err = bench("--device", "cuda")
    assert status == 2 and "--device: 'cuda', but torch sees no GPU" in err


# --- Shapes, operands ---


@pytest.mark.parametrize("name", SETS)
def test_shapes_are_what_their_cases_take(name):
    shapes = chosen([name, name], OPERATORS)
    assert shapes and {shape.op for shape in shapes} <= set(OPERATORS)
    assert all(bool(shape.series) == bool(shape.at) for shape in shapes)
    for shape in shapes:
        make = next(getattr(m, shape.make) for m in CASES if hasattr(m, shape.make))
        inspect.signature(make).bind(exact, "cpu", **shape.sizes)
    assert len(shapes) == len(list(SETS[name]()))


def test_the_sweep_and_the_grid_are_whole():
    assert [s.at for s in chosen(["tokens"], ["gemm"])] == 2 * [2**i for i in range(13)]
    assert len(chosen(["grid"], ["gemv"])) == len(chosen(["grid"], ["gemm"])) == 36


@pytest.mark.parametrize("make", ["operand", "wide"])
def test_one_wrong_bit_is_seen(make):
    torch.manual_seed(0)
    a, b = getattr(exact, make)("cpu", 3, 4096), exact.operand("cpu", 5, 4096)
    product = operands.alpha_of(a, b) * (a.values().double() @ b.values().double().mT)
    right = product.half()
    assert torch.equal(product, product.float().double())  # nothing is lost before the one rounding
    assert exact.is_product(right, a, b)
    for wrong in (right.view(torch.int16) + torch.eye(3, 5, dtype=torch.int16), right * torch.nan):
        assert not exact.is_product(wrong.view(torch.float16), a, b)


def gated(three, alpha):
    h, u = (alpha * (three[0].values().double() @ b.values().double().mT) for b in three[1:])
    return torch.nn.functional.silu(h) * u


def test_a_gated_product_may_not_be_off_by_two_units():
    torch.manual_seed(0)
    three = [exact.operand("cpu", rows, 256) for rows in (4, 6, 6)]
    right = gated(three, operands.alpha_of(*three[:2])).half()
    assert exact.is_gated_product(right, *three)
    wrong = (right.view(torch.int16) + 2).view(torch.float16)
    assert not exact.is_gated_product(wrong, *three)


def test_gaussian_operands_are_what_quantize_makes():
    torch.manual_seed(0)
    made = gaussian.operand("cpu", 2, 8, 512)
    torch.manual_seed(0)
    x = torch.randn(2, 8, 512, dtype=torch.bfloat16)
    q = nvfp4kern.quantize(x, global_scale="amax")
    codes, scales = (part.view(torch.uint8) for part in q[:2])
    assert torch.equal(made.codes, codes) and torch.equal(made.linear, scales)
    assert torch.equal(made.blocked, nvfp4kern.to_blocked(scales))
    error = (made.scale * made.values().double() * 512**0.25 - x.double()).norm() / x.norm()
    assert error < 0.12
    lowered = gaussian.without_alpha(made)
    assert torch.equal(lowered.values(), made.values() * 2.0**-10)
    assert torch.equal(lowered.blocked, nvfp4kern.to_blocked(lowered.linear))


@pytest.mark.parametrize("make", ["operand", "wide"])
def test_gaussian_results_are_right_within_the_bound(make):
    torch.manual_seed(0)
    a, b = getattr(gaussian, make)("cpu", 40, 4096), gaussian.operand("cpu", 50, 4096)
    product = operands.alpha_of(a, b) * (a.values().double() @ b.values().double().mT)
    assert 0.8 < product.std() < 1.2
    right = product.half()
    assert gaussian.is_product(right, a, b)
    off = (right.view(torch.int16) + (2 if make == "operand" else 64)).view(torch.float16)
    for column in 0, 49:
        wrong = right.clone()
        wrong[:, column] = off[:, column]
        assert not gaussian.is_product(wrong, a, b)
    unwritten = right.clone()
    unwritten[17, 3] = torch.nan  # seen in any row, whether it is in the sample or not
    assert not gaussian.is_product(unwritten, a, b)
    float32 = product.float()
    assert gaussian.is_product(float32, a, b)
    assert not gaussian.is_product(float32 * (1 + (2e-3 if make == "operand" else 5e-2)), a, b)


def test_gaussian_gated_results_are_right_within_the_bound():
    torch.manual_seed(0)
    three = [gaussian.operand("cpu", rows, 1024) for rows in (4, 60, 60)]
    h, u = (operands.alpha_of(three[0], b) for b in three[1:])
    products = [three[0].values().double() @ b.values().double().mT for b in three[1:]]
    right = (torch.nn.functional.silu(h * products[0]) * (u * products[1])).half()
    assert gaussian.is_gated_product(right, *three)
    wrong = (right.view(torch.int16) + 2).view(torch.float16)
    assert not gaussian.is_gated_product(wrong, *three)
    assert not gaussian.is_gated_product(right * torch.nan, *three)


@DATA
def test_wrong_experts_and_weights_are_seen(data):
    torch.manual_seed(0)
    x, w = data.wide("cpu", 6, 256), data.wide("cpu", 16, 256)
    alpha = operands.alpha_of(x, w)
    weights, ids = nvfp4kern.route(x.halves, w.halves, 4, alpha=alpha)
    assert data.is_routed(weights, ids, x, w)
    assert not data.is_routed(weights * 1.001, ids, x, w)
    assert not data.is_routed(weights, ids.flip(-1), x, w)
    assert not data.is_routed(weights, ids * 0, x, w)
    assert not data.is_routed(weights, ids - 16, x, w)
    worst = (alpha * (x.halves.float() @ w.halves.float().T)).argsort(-1)[:, :1].int()
    assert not data.is_routed(weights, torch.cat((ids[:, :3], worst), -1), x, w)


@DATA
@pytest.mark.parametrize("k, batch", [(256, 1), (48, 3)])
def test_drop_ins_take_what_they_are_given(k, batch, data):
    for make, sizes in [
        (products.gemv, {"m": 130, "k": k, "batch": batch}),
        (products.gemm, {"m": 3, "n": 7, "k": k, "batch": batch, "wide": False}),
        (products.dual_gemm, {"m": 3, "n": 130, "k": k}),
        (products.grouped_gemm, {"groups": [(3, 7, k), (5, 130, 2 * k)]}),
    ]:
        call, right = make(data, "cpu", **sizes).drop_in()
        assert not right()
        call()
        assert right()


def test_experts_get_the_same_tokens_whatever_the_data():
    sizes = {"experts": 4, "top": 2, "n": 8, "k": 64, "label": "", "tokens": 8, "wide": False}
    calls = [products.mixture(data, "cpu", **sizes).calls for data in (exact, gaussian)]
    offsets = [one["blocked"][0].keywords["offsets"] for one in calls]
    assert torch.equal(*offsets) and offsets[0][-1] == 16


def test_rows_of_a_gpu(gpu, bench, tmp_path):
    path = tmp_path / "gpu.json"
    status, out, _ = bench("--shapes", "quick", "--op", *OPERATORS[:4], "--json", path)
    assert status == 0, out
    for row in rows_of(path):
        assert row["right"] and row["backend"] in (gpu.name, "sm80")
        assert {"time", "cold", "floor", "others"} <= set(row)
        assert "unavailable" not in row.get("read", {}) and ("read" in row) == ("read_cold" in row)
    assert json.loads(path.read_text())["environment"]["ceilings"]["read"] > 0
