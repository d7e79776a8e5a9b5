"""benchmarks/vllm_engine.py: engines that run by other kernels, or disagree, are not timed."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import vllm_engine  # noqa: E402
import vllm_remote  # noqa: E402
import vllm_steps  # noqa: E402
from vllm_model import Shape  # noqa: E402

TINY = {"hidden": 64, "intermediate": 96, "kv_heads": 2, "heads": 4, "width": 32, "vocabulary": 300}
SHAPES = {"dense": Shape(2, **TINY), "mixture": Shape(2, experts=4, used=2, **TINY)}
SMALL = "--device cpu --eager --rounds 2 --steps 3 --prompt 20 --profile 3 --batches 1 3".split()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")
@pytest.mark.parametrize("model, missing", [("dense", ["marlin"]), ("mixture", [])])
def test_engines_are_checked_and_timed(tmp_path, monkeypatch, capsys, model, missing):
    """One that does not come up leaves the others: vLLM has no kernel for this on a CPU."""
    monkeypatch.setattr(vllm_engine, "SHAPES", SHAPES)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    result = tmp_path / "result.json"
    words = [model, *SMALL, "--engines", *missing, "nvfp4kern", "--json", str(result)]
    assert vllm_engine.main(words) == (2 if missing else 0)
    said, found = capsys.readouterr().out, json.loads(result.read_text())
    assert ("marlin: its process ended" in said) is bool(missing)
    assert [(row["batch"], row["engine"]) for row in found["rows"]] == [
        (1, "nvfp4kern"), (3, "nvfp4kern"),
    ]  # fmt: skip
    for row in found["rows"]:
        for what in ("prefill", "decode"):
            assert (
                len(row[what]["tokens_per_second"]) == 2 and min(row[what]["tokens_per_second"]) > 0
            )
            assert row[what]["times_the_first"] == [1, 1]
    assert len(found["checks"]) == 2
    assert all(0 <= apart < vllm_engine.AGREE[model] for *_, apart in found["checks"])
    modules = found["engines"][model]["nvfp4kern"]["modules"]
    ours = {name: n for name, n in modules.items() if name.startswith("NVFP4Kern")}
    expected = {"NVFP4KernCompressedTensorsScheme": 8}
    if model == "mixture":
        expected = {"NVFP4KernCompressedTensorsScheme": 4, "NVFP4KernCompressedTensorsMoEMethod": 2}
    assert ours == expected


class Core:
    """Gives each request a token a step: the second one from the third step on. `most` in all."""

    def __init__(self, most):
        self.steps, self.most = 0, most

    def has_unfinished_requests(self):
        return self.steps < self.most

    def step(self):
        self.steps += 1
        token = [SimpleNamespace(token_ids=[5])]
        made = ["a", "b"][: 1 + (self.steps > 2)]
        return [SimpleNamespace(request_id=name, outputs=token) for name in made]


def test_a_step_is_one_of_all_requests():
    """Also where one had its first token earlier."""
    engine = vllm_remote.Engine.__new__(vllm_remote.Engine)
    engine.core, engine.made = Core(100), {"a": 0, "b": 0}
    engine._advance(1)
    assert engine.made == {"a": 3, "b": 1}
    engine.decode(7)
    assert engine.core.steps == 3 + vllm_remote.WARM + 7
    engine.core.most = engine.core.steps
    with pytest.raises(RuntimeError, match="requests have ended: 12 of 13"):
        engine._advance(1)


class Fake:
    """An engine: log probabilities of what it chose itself, and of what it was given."""

    def __init__(self, chosen, given):
        self.found = {"chosen": [([7, 8], chosen)], "given": [given]}

    def call(self, name, *_):
        return self.found[name]


def test_disagreement_is_of_what_one_chose_and_the_other_was_given():
    a, b = Fake([-1.0, -2.0], [0.0, 0.0]), Fake([0.0, 0.0], [-1.0, -2.5])
    assert vllm_engine.disagreement(a, b, [[5, 6]]) == pytest.approx(0.125**0.5)


@pytest.mark.parametrize("modules, right", [({"A marlin": 8}, True), ({"A marlin": 7}, False)])
def test_all_modules_run_by_the_kernels_of_the_engine(modules, right):
    remote = SimpleNamespace(name="marlin", kernels="marlin")
    facts = {"modules": modules | {"UnquantizedLinearMethod": 3}}
    assert vllm_engine.runs_by_its_kernels(remote, SHAPES["dense"], facts) is right


def event(name, start, end, gpu=True, marks=False):
    kind = torch.autograd.DeviceType.CUDA if gpu else torch.autograd.DeviceType.CPU
    time = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
    return SimpleNamespace(name=name, device_type=kind, time_range=time, is_user_annotation=marks)


def test_a_step_has_the_kernels_that_began_in_it():
    """Two layers of two kernels; the second begins before the first has ended."""
    kernels = [
        ("void attention", 1, 4),
        ("product", 3, 6),
        ("void attention", 7, 9),
        ("product", 9, 10),
    ]
    events = [event(*each) for each in kernels] + [event("attention", 20, 21)]
    events.append(event("a region of torch's", 2, 3, marks=True))
    events += [
        event(vllm_steps.STEP, *at, gpu) for at in ((0, 12), (13, 30)) for gpu in (True, False)
    ]
    steps = vllm_steps.by_step(events)
    assert [len(step) for step in steps] == [4, 1]
    found = vllm_steps.summary([*steps, steps[1], []], 1)
    assert found["kernels"] == 1 and found["span_us"] == 1
    found = vllm_steps.summary(steps[:1], 2)
    assert (found["kernels"], found["span_us"], found["idle_us"]) == (4, 9, 1)
    assert found["by_name"] == [["attention", 2, 5], ["product", 2, 4]]
    assert found["layer"] == [[0, 3, 0, "attention"], [2, 3, -1, "product"]]
    assert vllm_steps.summary([[]], 2) is None
