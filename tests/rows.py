"""The GPU rows of the backend table, as tests need them: said here once, read by everything."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """What the tests must know of a row."""

    name: str
    cc: str
    """The compute capability of its GPUs, which the simulator shows the row's tests."""
    target: str
    """What nvcc makes PTX of its kernels for."""
    newer: dict[str, str] = field(default_factory=dict)
    """The targets where its kernels are compiled once more for a newer capability."""
    sms: int = 8
    """The simulated GPU's SMs: few where CTAs shall share them, many where they shall not."""
    simulated: tuple[str, ...] = ()
    """The package's tests that run in the simulator: keys of SELECTED in test_package.py."""
    shapes: tuple[str, ...] = ("small", "deep")
    """Those of `python -m tests.ptxsim package`."""
    operators: tuple[str, ...] = ()
    """The calls of cuda_calls.py that have a kernel of this row at its first shape; (): all."""
    limits: tuple[dict[str, int], ...] = ({},)
    """The smaller GPUs that sanitize_gpu.sh pretends: NVFP4KERN_ variables."""
    c: int = 12
    """Scales the error bound of its matrix products."""

    def target_on(self, cc):
        return self.newer.get(cc, self.target)

    def runs_on(self, cc):
        """A target that ends in a letter is for GPUs of its own major number."""
        if self.target[-1].isdigit():
            return float(self.cc) <= float(cc)
        return self.cc.partition(".")[0] == cc.partition(".")[0]


ROWS = {
    row.name: row
    for row in (
        Row(
            "sm80",
            cc="8.0",
            target="compute_80",
            newer={"9.0": "compute_90", "10.0": "compute_90", "12.0": "compute_90"},
            sms=16,
            simulated=(
                "every operator, every size",
                "every tile",
                "tiles without room",
                "any workspace",
                "gemv",
                "gemm",
                "dual_gemm",
                "dual_gemm, the largest tile",
                "grouped_gemm",
                "grouped_dual_gemm",
                "changing offsets",
                "expected rows",
                "quantize",
                "route",
                "combine",
                "sort_by_expert",
                "shapes",
            ),
            # As it is; the shared memory of small GPUs; few SMs, which makes plans use large tiles;
            # these with the shared memory of an A100.
            limits=(
                {},
                {"SMEM_LIMIT": 101376},
                {"SM_LIMIT": 3},
                {"SM_LIMIT": 3, "SMEM_LIMIT": 166912},
            ),
        ),
        Row(
            "sm90",
            cc="9.0",
            target="compute_90a",
            sms=3,
            simulated=(
                "every tile",
                "plans by cost",
                "gemv",
                "gemv by tensor maps",
                "any workspace",
                "few tokens",
                "few tokens, clusters of any size",
                "route",
                "dual_gemm of few tokens",
                "grouped_dual_gemm",
                "changing offsets",
                "expected rows",
                "row_scale",
            ),
            shapes=("small", "deep", "few"),
            operators=(
                "gemv",
                "gemv_of_halves",
                "gemv_by_token",
                "gemm",
                "gemm_in_batches",
                "gemm_of_bfloats",
                "gemm_by_token",
                "group_list",
                "contiguous_of_halves",
                "route",
                "route_sigmoid",
                "route_dense",
                "route_sqrt_softplus",
            ),
            limits=({}, {"SM_LIMIT": 3}, {"SMEM_LIMIT": 101376}),
        ),
        Row(
            "sm100",
            cc="10.0",
            target="compute_100f",
            sms=3,
            simulated=(
                "every tile",
                "gemv of few matrices",
                "few tokens, few rows",
                "gemm of NVFP4",
                "dual_gemm of NVFP4",
                "experts",
                "gated experts of NVFP4",
                "changing offsets",
                "expected rows",
                "row_scale, few SMs",
                "rows alone",
                "route by warps",
                "route by threads",
                "route without tensor cores",
                "combine of any alignment",
                "sort_by_expert",
                "quantize",
                "quantize with up",
            ),
            shapes=("deep", "few"),
            operators=(
                "gemv",
                "gemv_of_halves",
                "gemv_by_token",
                "gemm",
                "gemm_in_batches",
                "gemm_of_bfloats",
                "gemm_by_token",
                "dual_gemm",
                "dual_gemm_of_halves",
                "dual_gemm_with_biases",
                "dual_gemm_by_token",
                "contiguous",
                "contiguous_of_bfloats",
                "contiguous_of_halves",
                "contiguous_by_rows",
                "contiguous_of_bfloats_by_rows",
                "contiguous_by_token",
                "contiguous_relu2",
                "contiguous_dual",
                "contiguous_dual_of_bfloats_by_rows",
                "contiguous_dual_interleaved",
                "route",
                "route_sigmoid",
                "route_dense",
                "route_of_floats",
                "route_of_logits",
                "route_sqrt_softplus",
                "route_by_logits",
                "sort_by_expert",
                "combine",
                "combine_with_residual",
                "quantize",
                "quantize_amax",
                "quantize_gated",
                "quantize_four_six",
                "quantize_by_expert",
                "dequantize",
                "to_blocked",
                "from_blocked",
            ),
        ),
        Row(
            "sm120",
            cc="12.0",
            target="compute_120f",
            sms=3,
            simulated=(
                "every tile",
                "every tile, NaN times zero is zero",
                "gemv of few matrices",
                "few tokens, few rows",
                "gemm of NVFP4",
                "dual_gemm of NVFP4",
                "experts",
                "gated experts of NVFP4",
                "changing offsets",
                "expected rows",
                "plans by cost",
                "K among CTAs",
                "row_scale, few SMs",
                "combine of any alignment",
                "sort_by_expert",
                "route without tensor cores",
                "quantize",
                "quantize with up",
            ),
            shapes=("deep", "few"),
            operators=(
                "gemv",
                "gemv_of_halves",
                "gemv_by_token",
                "gemm",
                "gemm_in_batches",
                "gemm_of_bfloats",
                "gemm_by_token",
                "dual_gemm",
                "dual_gemm_of_halves",
                "dual_gemm_with_biases",
                "dual_gemm_by_token",
                "group_list",
                "contiguous",
                "contiguous_of_bfloats",
                "contiguous_by_rows",
                "contiguous_of_bfloats_by_rows",
                "contiguous_by_token",
                "contiguous_dual",
                "contiguous_dual_of_bfloats_by_rows",
                "contiguous_dual_interleaved",
                "route_of_floats",
                "route_of_logits",
                "route_by_logits",
                "sort_by_expert",
                "combine",
                "combine_with_residual",
                "quantize",
                "quantize_amax",
                "quantize_gated",
                "quantize_four_six",
                "quantize_by_expert",
                "dequantize",
                "to_blocked",
                "from_blocked",
            ),
        ),
    )
}
TABLE = {name: row for name, row in ROWS.items() if row.simulated}
"""Those that the backend table has."""


def tiles_of(family, operator=None):
    """{tile: what is known of it} of a family such as sm90/gemm: all that this build has, or those
    with a kernel of an operator."""
    import nvfp4kern

    return {
        traits["tile"]: traits
        for name, traits in nvfp4kern._C._tiles().items()
        if name.startswith(f"{family}:") and (not operator or operator in traits["operators"])
    }


def need(*names):
    """Skips a test of rows, by default all of the table, where one is left out of the build."""
    import pytest

    import nvfp4kern

    for row in nvfp4kern.backends():
        why = row["why_not"] or ""
        if row["name"] in (names or TABLE) and why.startswith("left out of this build"):
            pytest.skip(f"{row['name']} is {why}")
