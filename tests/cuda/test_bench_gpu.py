"""The benchmark's GPU side: the reading kernel, and timing on a stand-in for torch.cuda."""

import contextlib
import functools
import io
import shutil
import subprocess

import pytest
import torch
from bench_columns import COLUMNS
from rich.console import Console

from nvfp4kern import results
from nvfp4kern.bench import (
    ceilings,
    command,
    gaussian,
    measure,
    products,
    read_kernel,
    report,
    timing,
)


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


@pytest.mark.skipif(not shutil.which("ptxas"), reason="no ptxas")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_reading_kernel_assembles_without_spills(arch, tmp_path):
    source = tmp_path / "read.ptx"
    source.write_text(read_kernel.ptx())
    command = ["ptxas", "-v", f"-arch={arch}", source, "-o", tmp_path / "read.cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr


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
    monkeypatch.setattr(ceilings, "measured", {"cuda": limits}.get)
    readers = {f"read {count}": [lambda: None] * count for count in (1, 2)}
    monkeypatch.setattr(ceilings, "readers", lambda _: readers)
    yield
    timing._side_stream.cache_clear()


def row_on_stand_in(make, set="competition", **sizes):
    case, row = make(gaussian, "cpu", **sizes), {"set": set}
    readers = measure._readers(case, row)
    measure._replayed(case, row, readers)
    for outs in case.outs.values():
        assert outs[0].isnan().all()  # whatever is replayed has to write it again
    row["right"] = measure._cold(case, row, readers)
    return row


def test_times_are_per_call(stand_in):
    calls = []
    replay = timing.captured([lambda: calls.append(0), lambda: calls.append(1)])
    assert replay.count == 2 and calls == [0, 1] * 3  # warmed up, estimated, captured
    assert timing.in_turns({"": replay})[""] == timing.Time(750, 750, 750)
    assert timing.queued(calls.clear) == timing.Time(1500, 1500, 1500)


def test_cold_calls_take_turns_each_after_the_l2_was_overwritten(stand_in, monkeypatch):
    made = []
    monkeypatch.setattr(timing, "overwrite_l2", lambda: made.append("overwritten"))
    calls = {name: functools.partial(made.append, name) for name in ("ours", "read")}
    times = timing.cold_in_turns(calls, samples=5)
    assert times == dict.fromkeys(calls, timing.Time(1500, 1500, 1500))
    assert made == ["overwritten", "ours", "overwritten", "read"] * 8


def test_a_row_of_a_gpu(stand_in):
    row = row_on_stand_in(products.gemv, m=64, k=256, batch=1)
    assert row["right"] and row["time"] == row["cold"] == vars(timing.Time(1500, 1500, 1500))
    assert row["read"]["median"] == 750  # of the faster of two
    assert row["read_cold"] == row["cold"]  # one call, however many sets there are
    assert row["floor"] == pytest.approx((65 * 256 * 9 / 16 + 2 * 64) / 4e6)
    assert set(row["others"]) == COLUMNS["gemv"]
    assert all("median" in entry for entry in row["others"].values())


def test_arithmetic_that_takes_longer_than_reading_needs_no_reader(stand_in, monkeypatch):
    monkeypatch.setattr(ceilings.measured("cuda"), "rate", 1.0)
    row = row_on_stand_in(products.gemm, m=8, n=8, k=64, batch=1, wide=False)
    assert not {"read", "read_cold"} & set(row) and row["floor"] == 2.0 * 8 * 8 * 64
    assert "cold" in row


def test_a_reader_that_does_not_load_is_unavailable(stand_in, monkeypatch):
    def readers(_):
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(ceilings, "readers", readers)
    row = row_on_stand_in(products.gemv, m=64, k=256, batch=1)
    assert row["read"] == {"unavailable": "libcuda.so.1: no such file"}
    assert "read_cold" not in row and "cold" in row


def written_and_read(row, path):
    environment = {"nvfp4kern": "0", "torch": "2", "device": "cuda", "gpu": "a GPU", "date": "now"}
    results.write(path, {"environment": environment, "rows": [row]})
    return command._read(path)


def shown(result, width):
    console = Console(width=width, record=True, file=io.StringIO())
    report.show(console, result)
    report.compare(console, result, result)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 190])
def test_what_reading_takes_cold_is_shown_where_a_file_has_it(stand_in, width, tmp_path):
    row = row_on_stand_in(products.gemv, m=64, k=256, batch=1)
    row |= {"op": "gemv", "shape": "64x256x1", "read_cold": vars(timing.Time(26.9, 26.8, 27.0))}
    result = written_and_read(row, tmp_path / "now.json")
    assert result["rows"] == [row]
    now = shown(result, width)
    del row["read_cold"]
    before = shown(written_and_read(row, tmp_path / "before.json"), width)
    for lines in now, before:
        assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
        assert any("750.00" in line for line in lines)
    assert any("750.00 (26.90)" in line for line in now) == (width == 190)
    assert any("26.90" in line for line in now)
    assert not any("26.90" in line for line in before)


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
