"""benchmarks/dit_block.py: all blocks compute one function, and nothing else is timed."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import dit_block  # noqa: E402

SMALL = "--device cpu --width 128 --heads 4 --tokens 5 48 --calls 1".split()


def test_a_small_block(tmp_path, capsys):
    assert dit_block.main([*SMALL, "--json", str(tmp_path / "found.json")]) == 0
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    names = {"bfloat16", "W4A16", "W4A4"} | (
        {"comfy_kitchen"} if find_spec("comfy_kitchen") else set()
    )
    assert {(row["tokens"], row["block"]) for row in rows} == {
        (t, n) for t in (5, 48) for n in names
    }
    for row in rows:
        assert row["us"] > 0
        assert (0 < row["apart"] <= dit_block.AGREE) or row["block"] == "bfloat16"
    assert "48 tokens W4A4" in capsys.readouterr().out


@pytest.mark.parametrize("way", ("W4A16", "W4A4"))
def test_nothing_is_timed_where_blocks_disagree(monkeypatch, way):
    real = dit_block.blocks_of

    def wrong(width, heads):
        blocks, twins = real(width, heads)
        blocks[way].proj.weight_scale.view(dit_block.torch.uint8)[:4] += 16
        return blocks, twins

    monkeypatch.setattr(dit_block, "blocks_of", wrong)
    monkeypatch.setattr(dit_block, "times", lambda *_: pytest.fail("timed"))
    assert dit_block.main(SMALL) == 2
