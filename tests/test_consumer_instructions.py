"""Which instructions sm120's kernels consist of, in machine code: block-scaled MMAs, conversions,
wide loads, and nothing that goes to local memory."""

import re

import disassembly
import pytest
from rows import tiles_of

import nvfp4kern

MISSING = [tool for tool in ("cuobjdump", "nvdisasm") if not disassembly.find_tool(tool)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"no {' and no '.join(MISSING)}"),
]
OMMA = "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"
COPIED, READ = "LDGSTS.E.BYPASS.128", "LDSM.16.M88.4"
"""16 bytes a lane into shared memory past L1, and four matrices of 8 x 16 bytes out of it."""
CODES, WIDE = "F2FP.F16.E2M1.UNPACK_B", "256"
WARP_ROWS = 32


def count(kernel, *words):
    """Of the instructions that begin with the first word and have the others in their names."""
    names = (re.sub(r"^@!?U?P\w+\s+", "", one.text).split()[0] for one in kernel)
    return sum(name.startswith(words[0]) and all(word in name for word in words) for name in names)


@pytest.fixture(scope="module")
def kernels():
    found = disassembly.kernels_of(nvfp4kern._C.__file__, archs=("sm_120f", "sm_120"))
    found = {name: kernel for name, kernel in found.items() if name.startswith("sm120_")}
    if not found:
        pytest.skip("a build without sm120")
    return found


def test_nothing_spills(kernels):
    assert len(kernels) > 90
    for name, kernel in kernels.items():
        assert count(kernel, "LDL") == count(kernel, "STL") == 0, name


@pytest.mark.parametrize("operator", ("gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm"))
def test_nvfp4_is_multiplied_as_it_is(kernels, operator):
    """A warp has two m16 tiles of 32 rows, and half of the tokens where a tile has 128."""
    for tile, traits in tiles_of("sm120/gemm").items():
        kernel = kernels[f"sm120_{operator}_{tile}"]
        columns = min(traits["tile_m"], 64) // 8
        mmas = traits["tile_k"] // 64
        assert count(kernel, OMMA) == mmas * WARP_ROWS // 16 * columns
        assert count(kernel, READ) == mmas * (WARP_ROWS // 16 + columns // 2)
        assert count(kernel, COPIED) > 0 and count(kernel, "HMMA") == 0


def test_16_bit_tokens_meet_weights_that_hardware_decodes(kernels):
    for tile in tiles_of("sm120/kind_f16"):
        kernel = kernels[f"sm120_kind_f16_gemm_{tile}"]
        for dtype in ("F32.BF16", "F32"):
            assert count(kernel, f"HMMA.16816.{dtype}") > 0
        assert count(kernel, CODES) == 64 and count(kernel, COPIED) > 0


def test_a_gemv_reads_32_bytes_a_lane(kernels):
    """Two rows of three stages before the loop, and of three in it."""
    for kind in ("codes", "few_codes", "fp16", "bf16"):
        for layout in ("linear", "blocked"):
            kernel = kernels[f"sm120_gemv_{kind}_{layout}"]
            assert count(kernel, "LDG.E", WIDE) == 12
            assert (count(kernel, CODES) > 0) == (kind != "bf16")


def test_quantize_converts_by_hardware(kernels):
    """A block of 16."""
    kernel = kernels["sm120_quantize_token_fp16"]
    assert count(kernel, "F2FP.SATFINITE.E2M1") == 8 and count(kernel, "F2FP.SATFINITE.E4M3") == 1
