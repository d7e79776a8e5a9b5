"""What every tile of the routers computes, for test_tiles.py."""

import numpy as np
from generators import floats, rng_of, values
from test_route import check_exact, integers

import nvfp4kern


def unaligned(x, device):
    """Rows that begin at multiples of 8 bytes, not of 16."""
    return floats(np.pad(x, ((0, 0), (0, 4))), "float16", device)[:, : x.shape[1]]


def check_sm80_route(tile, device, c):
    tokens = {"t8": 8, "t32": 32, "narrow": 32}.get(tile, 128)
    for m, n, hidden in [(tokens + 3, 70, 80), (5, 290, 1024)]:
        x, w = integers(rng_of(m, n), m, n, hidden)
        check_exact(x, w, 4, device, score="topk_softmax")
    if tile == "narrow":
        x, w = integers(rng_of(1), 40, 20, 80)
        want = check_exact(x, w, 4, device, dtype="float16")
        got = nvfp4kern.route(unaligned(x, device), unaligned(w, device), 4)
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(values(ours), theirs)


def check_sm90_route(tile, device, c):
    tokens = int(tile[1:].partition("x")[0])
    sizes = [(tokens + 3, 70, 80), (5, 290, 1024), (2 * tokens + 1, 130, 2064), (1, 16, 16)]
    for m, n, hidden in sizes:
        x, w = integers(rng_of(m, n), m, n, hidden, most=1)
        check_exact(x, w, 4, device, score="topk_softmax")
    x, w = integers(rng_of(2), tokens, 256, 720, most=1)
    groups = {"n_group": 8, "topk_group": 3}
    check_exact(x, w, 8, device, dtype="float16", score="sigmoid", **groups)
