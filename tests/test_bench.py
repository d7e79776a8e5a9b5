"""`python -m nvfp4kern bench`: what it says, writes and returns. How long anything takes it tests
nowhere; the GPU's side runs on a stand-in for torch.cuda."""

import contextlib
import functools
import inspect
import json
import subprocess
import sys

import pytest
import torch

import nvfp4kern
from nvfp4kern import __main__ as main
from nvfp4kern.bench import ceilings, measure, operands, others, products, read_kernel, timing
from nvfp4kern.bench.shapes import OPERATORS, SETS, chosen

NO_COMPILER = "compiled code is timed on a GPU only"
COLUMNS = {  # operator -> its baselines on a CPU
    "gemv": {"torch fp32", "dequantize + matmul"},
    "gemm": {"torch fp32", "dequantize + matmul"},
    "dual_gemm": {"torch fp32, two and silu", "dequantize + matmul"},
    "grouped_gemm": {
        "torch fp32, a loop",
        "dequantize + matmul, a loop",
        "torch grouped_mm bf16",
    },
    "route": {"torch eager", "torch.compile"},
    "quantize": {"torch eager", "torch.compile"},
    "dequantize": {"torch eager", "torch.compile"},
}


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
        patch.setattr(sys, "argv", f"nvfp4kern bench --device cpu --json {path}".split())
        assert main.main() == 0
    return path


def rows_of(path):
    return json.loads(path.read_text())["rows"]


# ---------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------


def test_every_operator_is_checked_and_has_all_its_columns(earlier):
    rows = rows_of(earlier)
    assert {row["op"] for row in rows} == set(OPERATORS)
    for row in rows:
        assert row["right"] and row["backend"] == "cpu" and row["kernel"].startswith("cpu_")
        assert row["time"]["low"] <= row["time"]["median"] <= row["time"]["high"]
        assert set(row["others"]) == COLUMNS[row["op"]]


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


def test_a_run_equals_itself(earlier, bench):
    status, out, _ = bench("--from", earlier, "--compare", earlier)
    count = len(rows_of(earlier))
    assert status == 0
    assert f"{count} of {count} times within 3%, the farthest 0.0% away" in out
    assert "*" not in out.split("beyond 3%")[1]


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
    arguments = "--device", "cpu", "--op", "dequantize", "--compare", earlier
    status, out, _ = bench(*arguments)
    assert status == 0 and "of 1 times within 3%" in out and "not compared: quick: gemv" in out


def test_pictures(earlier, bench, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "folder"
    status, out, _ = bench("--from", earlier, "--plot", folder)
    assert status == 0
    drawn = sorted(path.name for path in folder.iterdir())
    assert drawn == ["quick_ratios.png", "quick_sweep.png"]
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in drawn)
    assert all(name in out for name in drawn)


@pytest.mark.parametrize("right_calls", [0, 1], ids=["at once", "while it is timed"])
def test_a_wrong_result_has_no_time_and_fails_the_run(right_calls, bench, monkeypatch, tmp_path):
    calls = []

    @functools.wraps(nvfp4kern.dequantize)
    def dequantize(q, *, out, **options):
        wrong = len(calls) >= right_calls
        calls.append(nvfp4kern._C.dequantize(q, out=out, **options))
        out[3, 5] += wrong

    monkeypatch.setattr(nvfp4kern, "dequantize", dequantize)
    path = tmp_path / "wrong.json"
    status, out, err = bench("--device", "cpu", "--op", "dequantize", "--json", path)
    (row,) = rows_of(path)
    assert status == 2 and "WRONG RESULT" in out and "WRONG RESULT" in err
    assert row["right"] is False and not {"time", "others"} & set(row)
    assert bench("--from", path)[0] == 2


def test_too_little_memory_for_one_shape(bench, monkeypatch, tmp_path):
    def dequantize(*_, **__):
        raise torch.OutOfMemoryError("out of memory: 1 GiB wanted\nand more")

    monkeypatch.setattr(others, "dequantize", dequantize)
    path = tmp_path / "result.json"
    status, out, _ = bench("--device", "cpu", "--op", "dequantize", "--json", path)
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_no_gpu(bench):
    status, _, err = bench("--device", "cuda")
    assert status == 2 and "--device: 'cuda', but torch sees no GPU" in err


# ---------------------------------------------------------------------------------------------
# Shapes, operands
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_shapes_are_what_their_cases_take(name):
    shapes = chosen([name, name], OPERATORS)
    assert shapes and {shape.op for shape in shapes} <= set(OPERATORS)
    assert all(bool(shape.series) == bool(shape.at) for shape in shapes)
    for shape in shapes:
        make = getattr(products, shape.make, None) or getattr(others, shape.make)
        inspect.signature(make).bind("cpu", **shape.sizes)
    assert len(shapes) == len(list(SETS[name]()))


def test_the_sweep_and_the_grid_are_whole():
    assert [s.at for s in chosen(["tokens"], ["gemm"])] == 2 * [2**i for i in range(13)]
    assert len(chosen(["grid"], ["gemv"])) == len(chosen(["grid"], ["gemm"])) == 36


@pytest.mark.parametrize("make", ["operand", "wide"])
def test_one_wrong_bit_is_seen(make):
    torch.manual_seed(0)
    a = operands.operand("cpu", 3, 4096)
    if make == "wide":
        a = operands.Wide(operands.halves("cpu", 3, 4096))
    b = operands.operand("cpu", 5, 4096)
    exact = operands.ALPHA * (a.values().double() @ b.values().double().mT)
    right = exact.half()
    assert torch.equal(exact, exact.float().double())  # nothing is lost before the one rounding
    assert operands.is_product(right, a, b)
    for wrong in (right.view(torch.int16) + torch.eye(3, 5, dtype=torch.int16), right * torch.nan):
        assert not operands.is_product(wrong.view(torch.float16), a, b)


def test_a_gated_product_may_not_be_off_by_two_units():
    torch.manual_seed(0)
    three = [operands.operand("cpu", rows, 256) for rows in (4, 6, 6)]
    alpha = products.GATED_ALPHA
    h, u = (alpha * (three[0].values().double() @ b.values().double().mT) for b in three[1:])
    right = (torch.nn.functional.silu(h) * u).half()
    assert operands.is_gated_product(right, *three, alpha)
    wrong = (right.view(torch.int16) + 2).view(torch.float16)
    assert not operands.is_gated_product(wrong, *three, alpha)


# ---------------------------------------------------------------------------------------------
# The GPU's side
# ---------------------------------------------------------------------------------------------


class Buffer:
    """As much of a tensor as the reading kernel's parameters are made from."""

    def __init__(self, address, nbytes):
        self.address, self.nbytes = address, nbytes

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return True


def test_the_reading_kernel_finds_every_word_of_its_buffers():
    sizes = [16 * 256 * 3, 16 * 5, 16 * 257 + 7]
    buffers = [Buffer(2**40 + 2**20 * i, size) for i, size in enumerate(sizes)]
    given = read_kernel._parameters(buffers)
    assert list(given.next_chunks) == [3, 4, 6, 6, 6, 6]
    found, b = [], 0
    for chunk in range(6):
        b += chunk == given.next_chunks[b]
        words = range(256 * chunk, min(256 * (chunk + 1), given.ends[b]))
        found += [(given.bases[b] + 16 * word) % 2**64 for word in words]
    assert found == [x.address + 16 * i for x in buffers for i in range(x.nbytes // 16)]


def test_the_reading_kernel_refuses_what_it_cannot_read():
    with pytest.raises(ValueError, match="buffers: 7, expected 1 to 6"):
        read_kernel._parameters([Buffer(0, 16)] * 7)
    with pytest.raises(ValueError, match=r"buffers\[0\]: .*aligned to 16 bytes"):
        read_kernel._parameters([Buffer(8, 16)])


def test_the_reading_kernel_reads(gpu):
    sizes = [4096, 100_000, 16, 33_000_000, 5]
    buffers = [torch.randint(0, 256, (n,), dtype=torch.uint8, device="cuda") for n in sizes]
    for per_sm in read_kernel.GRIDS:
        read_kernel.read_kernel(buffers, per_sm)()
    torch.cuda.synchronize()


def test_xor():
    words = torch.randint(-(2**31), 2**31, (1003,), dtype=torch.int64).int()[: 4 * 250]
    want = functools.reduce(int.__xor__, words.tolist())
    assert read_kernel._xor(words).item() == want


def test_rows_of_a_gpu(gpu, bench, tmp_path):
    path = tmp_path / "gpu.json"
    status, out, _ = bench("--shapes", "quick", "--op", *OPERATORS[:4], "--json", path)
    assert status == 0, out
    for row in rows_of(path):
        assert row["right"] and row["backend"] == gpu.name
        assert {"time", "cold", "floor", "others"} <= set(row)
        assert "unavailable" not in row.get("read", {})
    assert json.loads(path.read_text())["environment"]["ceilings"]["read"] > 0


class Event:
    """Events 1.5 ms apart."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def elapsed_time(self, _):
        return 1.5


class Graph:
    """Its calls run when they are captured."""

    def replay(self):
        pass


class Stream:
    def wait_stream(self, _):
        pass


@pytest.fixture
def stand_in(monkeypatch):
    """torch.cuda as far as timing uses it, and ceilings."""
    fakes = {
        "Event": Event,
        "CUDAGraph": Graph,
        "Stream": Stream,
        "current_stream": Stream,
        "set_stream": lambda _: None,
        "synchronize": lambda: None,
        "stream": lambda _: contextlib.nullcontext(),
        "graph": lambda *_, **__: contextlib.nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(timing, "overwrite_l2", lambda: None)
    monkeypatch.setattr(timing, "WARM_UP_S", 0)
    timing._side_stream.cache_clear()
    limits = ceilings.Ceilings(read=4e6, copy=4e6, rate=7e8)
    monkeypatch.setattr(ceilings, "measured", lambda: limits)
    readers = {f"read {count}": [lambda: None] * count for count in (1, 2)}
    monkeypatch.setattr(ceilings, "readers", lambda _: readers)
    yield
    timing._side_stream.cache_clear()


def row_on_stand_in(make, set="competition", **sizes):
    case, row = make("cpu", **sizes), {"set": set}
    measure._on_gpu(case, row)
    assert case.outs[0].isnan().all()  # whatever is replayed has to write it again
    row["right"] = measure._cold(case, row)
    return row


def test_times_are_per_call(stand_in):
    calls = []
    replay = timing.captured([lambda: calls.append(0), lambda: calls.append(1)])
    assert replay.count == 2 and calls == [0, 1] * 3  # warmed up, estimated, captured
    assert timing.in_turns({"": replay})[""] == timing.Time(750, 750, 750)
    assert timing.queued(calls.clear) == timing.cold(calls.clear) == timing.Time(1500, 1500, 1500)


def test_a_row_of_a_gpu(stand_in):
    row = row_on_stand_in(products.gemv, m=64, k=256, batch=1)
    assert row["right"] and row["time"] == row["cold"] == vars(timing.Time(1500, 1500, 1500))
    assert row["read"]["median"] == 750  # of the faster of two
    assert row["floor"] == pytest.approx((65 * 256 * 9 / 16 + 2 * 64) / 4e6)
    assert set(row["others"]) == COLUMNS["gemv"]
    assert all("median" in entry for entry in row["others"].values())


def test_arithmetic_that_takes_longer_than_reading_needs_no_reader(stand_in, monkeypatch):
    monkeypatch.setattr(ceilings.measured(), "rate", 1.0)
    row = row_on_stand_in(products.gemm, m=8, n=8, k=64, batch=1, wide=False)
    assert "read" not in row and row["floor"] == 2.0 * 8 * 8 * 64


def test_a_reader_that_does_not_load_is_unavailable(stand_in, monkeypatch):
    def readers(_):
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(ceilings, "readers", readers)
    row = row_on_stand_in(products.gemv, m=64, k=256, batch=1)
    assert row["read"] == {"unavailable": "libcuda.so.1: no such file"}


def test_a_drop_in_that_is_wrong_makes_the_row_wrong(stand_in, monkeypatch):
    make = products.drop_ins.gemm

    def wrong(*given):
        _, right = make(*given)
        return (lambda: None), right  # its result stays NaN

    monkeypatch.setattr(products.drop_ins, "gemm", wrong)
    sizes = {"m": 8, "n": 8, "k": 64, "batch": 1, "wide": False}
    assert row_on_stand_in(products.gemm, **sizes)["right"] is False
    assert row_on_stand_in(products.gemm, set="smallm", **sizes)["right"] is True


def test_a_baseline_that_computes_something_else_is_no_baseline(stand_in, monkeypatch):
    monkeypatch.setattr(products.baselines, "gated", lambda a, b1, b2: a @ b1.mT)
    row = row_on_stand_in(products.dual_gemm, m=8, n=8, k=64)
    reason = {"unavailable": "it computes something else"}
    assert row["others"] == dict.fromkeys(COLUMNS["dual_gemm"], reason)


@pytest.mark.parametrize("k, batch", [(256, 1), (48, 3)])
def test_drop_ins_take_what_they_are_given(k, batch):
    for make, sizes in [
        (products.gemv, {"m": 130, "k": k, "batch": batch}),
        (products.gemm, {"m": 3, "n": 7, "k": k, "batch": batch, "wide": False}),
        (products.dual_gemm, {"m": 3, "n": 130, "k": k}),
        (products.grouped_gemm, {"groups": [(3, 7, k), (5, 130, 2 * k)]}),
    ]:
        call, right = make("cpu", **sizes).drop_in()
        assert not right()
        call()
        assert right()
