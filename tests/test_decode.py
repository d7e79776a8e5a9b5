"""benchmarks/decode.py: both models compute one function, and the rates are of this machine."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import decode  # noqa: E402

SMALL = (
    "--device cpu --layers 2 --hidden 128 --intermediate 256 --heads 4 --kv-heads 2 "
    "--vocabulary 300 --context 32 --tokens 3"
).split()


# torch's own: where a CPU multiplies bf16, compiling imports a module with old decorators.
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize(
    "how", [("eager",), pytest.param(decode.HOW, marks=pytest.mark.slow)], ids=len
)
def test_a_small_model(tmp_path, capsys, how):
    assert decode.main([*SMALL, "--how", *how, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    rows = {(row["model"], row["how"]): row for row in found["rows"]}
    assert set(rows) == {(model, way) for model in ("bfloat16", "NVFP4") for way in how}
    for (model, _), row in rows.items():
        assert row["tokens_per_second"] > 0
        assert (0 < row["disagreement"] <= decode.AGREE) or (model == "bfloat16")
    assert rows["bfloat16", "eager"]["disagreement"] == 0
    said = capsys.readouterr().out
    ratio = (
        rows["NVFP4", how[-1]]["tokens_per_second"] / rows["bfloat16", how[-1]]["tokens_per_second"]
    )
    assert f"{how[-1]}: NVFP4 is {ratio:.2f} times as fast" in said
    assert found["shape"]["hidden"] == 128


def test_nothing_is_timed_where_the_models_disagree(monkeypatch):
    def wrong(layer):
        packed = decode.NVFP4Linear.from_linear(layer)
        layer.weight.copy_(-packed.dequantize(decode.DTYPE))
        return packed

    monkeypatch.setattr(decode, "quantized", wrong)
    monkeypatch.setattr(decode, "rates", lambda *_: pytest.fail("timed"))
    assert decode.main([*SMALL, "--how", "eager"]) == 2


def test_bytes_of_a_token_are_llamas():
    llama = decode.Shape()
    assert llama.weight_bytes(16) == 2 * (8_030_261_248 - 128256 * 4096 - 65 * 4096)
    assert llama.weight_bytes(16) / llama.weight_bytes(4.5) > 3
    assert torch.get_default_device().type == "cpu"
