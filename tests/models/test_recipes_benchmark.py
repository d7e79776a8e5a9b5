"""benchmarks/recipes.py: every recipe is compared with the model that it was made of."""

import json
import math

import pytest
from byte_model import byte_tokenizer

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")


@pytest.mark.filterwarnings("ignore")  # of transformers' loader, which calibrates
def test_a_small_model(tmp_path, capsys, monkeypatch):
    assert len(byte_tokenizer()) == 256
    import recipes

    learnt, kept = recipes.texts()
    assert len(kept) > 1e5 and len(learnt) > 8 * len(kept)
    monkeypatch.setattr(recipes, "texts", lambda: (learnt[:5000], kept[:700]))
    path = tmp_path / "found.json"
    words = "--steps 3 --hidden 64 --layers 1 --tokens 600 --json".split()
    assert recipes.main([*words, str(path)]) == 0
    found = json.loads(path.read_text())
    rows = {(row["recipe"], row["inputs"]): row for row in found["rows"]}
    assert rows.keys() == {(r, i) for r in recipes.RECIPES for i in (None, "dynamic", "static")}
    for (recipe, inputs), row in rows.items():
        ratio = row["perplexity"] / row["perplexity_of_reference"]
        assert row["more"] == pytest.approx(math.log(ratio), abs=1e-9)
        assert row["positions"] == 598 and row["kl"]["mean"] > 0 and row["error"] > 0
        assert 0.06 < row["weights"] < 0.2
        if inputs:
            assert row["results"] > rows[recipe, None]["results"]
    assert rows["four_six", None]["weights"] < rows["amax", None]["weights"]
    assert capsys.readouterr().out.count("perplexity") == len(rows)
    assert found["training"]["bytes_seen"] == 3 * recipes.BATCH * recipes.CONTEXT
