"""What every tile of the routers computes, for test_tiles.py."""

import numpy as np
from drawn_routes import draw_route
from generators import floats, rng_of, values
from route_calls import VARIANTS, check_exact, integers

import nvfp4kern


def unaligned(x, device):
    """Rows that begin at multiples of 8 bytes, not of 16."""
    return floats(np.pad(x, ((0, 0), (0, 4))), "float16", device)[:, : x.shape[1]]


def check_sm80_route(tile, device, c):
    tokens = tile["tile_m"]
    for m, n, hidden in [(tokens + 3, 70, 80), (5, 290, 1024)]:
        x, w = integers(rng_of(m, n), m, n, hidden)
        check_exact(x, w, 4, device, score="topk_softmax")
    if tile["tile"] == "narrow":
        x, w = integers(rng_of(1), 40, 20, 80)
        want = check_exact(x, w, 4, device, dtype="float16")
        got = nvfp4kern.route(unaligned(x, device), unaligned(w, device), 4)
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(values(ours), theirs)


def check_sm90_route(tile, device, c):
    tokens = tile["tile_m"]
    sizes = [(tokens + 3, 70, 80), (5, 290, 1024), (2 * tokens + 1, 130, 2064), (1, 16, 16)]
    for m, n, hidden in sizes:
        x, w = integers(rng_of(m, n), m, n, hidden, most=1)
        check_exact(x, w, 4, device, score="topk_softmax")
    x, w = integers(rng_of(2), tokens, 256, 720, most=1)
    groups = {"n_group": 8, "topk_group": 3}
    check_exact(x, w, 8, device, dtype="float16", score="sigmoid", **groups)
    for score in ("sqrt_softplus", "logits"):  # by kernels of their own
        check_exact(x, w, 8, device, score=score)


def near_ties(rng, n):
    """x and w whose products are logits as near as bf16 has them: neighbours of one number, many of
    them twice; all equal; saturated sigmoids; NaN rows."""
    logits = (1 + rng.integers(0, 8, (130, n)) / 128).astype(np.float32)
    logits[0], logits[1], logits[2] = 3, np.nan, rng.choice([30, 40, -200, 35], n)
    logits[3] = rng.choice([-0.0, 0.0, -1e-30], n)
    return logits, np.eye(n, dtype=np.float32)


def check_near_ties(device, n, selections, groups):
    x, w = near_ties(rng_of(n), n)
    for k in selections:
        for options in VARIANTS.values():
            check_exact(x, w, k, device, **options)
        for kept in (1, groups // 2):
            if k <= kept * (n // groups):
                check_exact(x, w, k, device, n_group=groups, topk_group=kept)


def check_sm100_route(tile, device, c):
    """Tiles of tokens on columns have clusters, as deep as K is; those of tokens on lanes have all
    experts. What a call draws has guards and NaN around its operands."""
    tokens, on_lanes = tile["tile_m"], "tile_n" not in tile
    sizes = [(tokens + 3, 70, 80), (5, 250 if on_lanes else 290, 1024), (1, 1, 16), (3, 200, 2072)]
    for m, n, hidden in sizes:
        x, w = integers(rng_of(m, n), m, n, hidden, most=1)
        check_exact(x, w, min(n, 4), device, score="topk_softmax")
    check_near_ties(device, 40, (2, 8, 9), groups=4)
    check_near_ties(device, 48, (7,), groups=16)
    for seed in range(6):
        dtype = ("float16", "bfloat16")[seed % 2]
        drawn = draw_route(tokens, 126 if on_lanes else 128, dtype, seed, work=1 << 19)
        drawn.check(drawn.run(device), c)
