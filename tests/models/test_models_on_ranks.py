"""Tiny models of transformers on two and three ranks: load_checkpoint fills slices, and the logits
are those of one process but for sums in another order."""

import pytest
import torch
from rank_cases import logits as run_logits

TOKENS = torch.arange(24).reshape(2, 12)
CUT = {"llama": 2 * 7, "qwen3_moe": 2 * 5, "mixtral": 2 * 5, "deepseek_v3": 3 + 3 + 1}
"""Layers that ranks have slices of, on two ranks; DeepSeek's, on three."""

FORMS = {"modelopt-nvfp4": 0.25, "ct-w4a16": 0.02}
"""How far logits may be off: where inputs are quantised, a rounding may tip a code. Of a wrong head
or expert the norm would be that of the logits and more."""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("architecture", CUT)
@pytest.mark.parametrize("form", FORMS)
def test_logits_of_ranks(checkpoint, team, architecture, form):
    pytest.importorskip("transformers", reason="transformers is not installed")
    from quantised_model import load

    directory = checkpoint(architecture, form, spread=True)
    with torch.no_grad():
        want = load(directory)(TOKENS).logits.double()
    world = 3 if architecture == "deepseek_v3" else 2
    results = team(world).run(run_logits, directory, TOKENS)
    total = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    for got, cut, nbytes in results:
        assert torch.equal(got, results[0][0])  # a rank cannot go its own way
        assert (got.double() - want).norm() <= FORMS[form] * want.norm()
        assert cut == CUT[architecture] and nbytes < 0.85 * total
