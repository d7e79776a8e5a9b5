"""row_scale of tests: factors for each token."""

import numpy as np
from generators import floats


def powers(rng, *shape):
    """Factors that round nothing."""
    return (2.0 ** rng.integers(-6, 7, shape)).astype(np.float32)


def factors(rng, *shape):
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(np.float32)


def strided(array, device):
    """The same numbers, every third of their memory's, among NaNs."""
    if array.size == 1:  # which has no stride
        return floats(array, "float32", device)
    wide = np.full((*array.shape, 3), np.nan, np.float32)
    wide[..., 1] = array
    return floats(wide, "float32", device)[..., 1]
