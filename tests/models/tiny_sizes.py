"""Sizes of tiny models, and what the scripts in others/ do alike."""

from pathlib import Path

OTHERS = Path(__file__).parent / "others"


def sizes(vocabulary, hidden, intermediate, *, layers, heads, kv_heads, positions):
    """What config.json says of sizes. A head has 16 columns, a block."""
    return dict(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=16,
        max_position_embeddings=positions,
        bos_token_id=0,
        eos_token_id=1,
    )


EXPORTED = sizes(32, 32, 48, layers=1, heads=2, kv_heads=1, positions=32)
EXPORTED["initializer_range"] = 0.2
"""Of the models in others/: few columns, so that a folder has some KB."""


def exported(folder):
    """Leaves out what no test reads, and prints what is left."""
    (folder / "generation_config.json").unlink(missing_ok=True)
    files = sorted(folder.iterdir())
    print(folder.name, sum(f.stat().st_size for f in files), [f.name for f in files])
