"""Every kernel of the families that a drawn call can force, with what draws calls for it."""

import re
from typing import NamedTuple

from drawn_calls import OF_HALVES, drawn
from drawn_gated import draw_gated
from drawn_needs import NOTHING, Needs
from drawn_routes import draw_route

import nvfp4kern

KERNELS = {"dual_gemm": "dual_gemm", "one launch": "list_gemm", "route": "route"}
KERNELS |= dict.fromkeys(("gemm", "list"), "gemm")
KERNELS |= dict.fromkeys(("contiguous", "rows"), "grouped_gemm")
KERNELS |= dict.fromkeys(("halves_along_k", "halves_by_rows"), "grouped_gemm_16bit")
KERNELS["gated"] = "grouped_dual_gemm"
KINDS = {"halves": ("NVFP4", "float16"), "bfloats": ("bfloat16",), "codes": ("NVFP4",)}
KINDS["16 bits"] = ("float16", "bfloat16")
"""Tokens, by what a kernel multiplies."""
OF_EXPERTS = ("contiguous", "rows", "gated")
GATED = ("v8", "v16", "v32", "w8", "w64", "w128", "u96", "u128")
"""The tiles that grouped_dual_gemm has on Hopper."""
OPERATORS_OF = {
    "sm90/gemv": OF_EXPERTS,
    "sm90/route": ("route",),
    "sm90/kind_f16": OF_HALVES,
    "sm90/gemm": ("gemm", "dual_gemm", "list", *OF_EXPERTS, "one launch"),
    "sm100/gemm": ("gemm", "dual_gemm", "list", *OF_EXPERTS),
    "sm100/kind_f16": (
        "gemm",
        "dual_gemm",
        "list",
        *OF_EXPERTS,
        "halves_along_k",
        "halves_by_rows",
    ),
}
FAMILIES = tuple(OPERATORS_OF)
TYPES_OF = {"sm100/gemm": ("codes",), "sm100/kind_f16": ("16 bits",)}
TYPES_OF["sm90/gemv"] = ("codes", "halves", "bfloats")
"""Keys of KINDS; of other families halves and bfloats."""
EXPERTS_GEMV = {"contiguous": "blocked", "rows": "linear", "gated": "dual"}
"""By operator, the kernel of sm90/gemv that a case is for: experts' weights have either layout."""
FEW_ROWS = 8
"""Of an expert, for a gemv of each row."""
ONE_LAUNCH = ("w32", "w128", "w256")
"""Those of SM90_LIST_PIPELINES. None can be forced: draws are repeated until cost takes it."""
DRAWS = 400
TCGEN05 = re.compile(r"([np])(\d+)(?:k(\d))?(?:m(\d))?")
"""A tile of Blackwell's GEMMs: CTAs, MMA N, split K, pairs with multicast."""
STEPS = {"sm100/gemm": 256, "sm100/kind_f16": 128}
"""Of K; each share of a split K has one at least."""


class Case(NamedTuple):
    family: str
    operator: str
    tile: str
    multiplies: str
    """A key of KINDS."""

    @property
    def row(self):
        return self.family.partition("/")[0]

    @property
    def name(self):
        of_type = f" {self.multiplies}" if self.row == "sm90" else ""
        return f"{self.operator} {self.tile}{of_type}"

    @property
    def setting(self):
        """NVFP4KERN_TILE"""
        return "" if self.operator == "one launch" else f"{self.family}:{self.tile}"

    @property
    def kernel(self):
        """Its name."""
        if self.family == "sm100/kind_f16":
            name = "list_gemm" if self.operator == "list" else KERNELS[self.operator]
            return f"sm100_kind_f16_{name}_{self.tile}"
        dtype = {"halves": "fp16", "bfloats": "bf16"}.get(self.multiplies, self.multiplies)
        if self.operator in OF_HALVES:
            major = {"halves_along_k": "k_major", "halves_along_n": "n_major"}[self.operator]
            return f"sm90_kind_f16_{self.tile}_{dtype}_{major}"
        if self.family == "sm90/gemv":
            return f"sm90_gemv_experts_{dtype}_{EXPERTS_GEMV[self.operator]}"
        if self.family == "sm100/route":
            return "sm100_route"  # of all tiles
        name = "list_gemm" if self.operator == "list" and self.row == "sm100" else None
        of_type = f"_{dtype}" if self.row == "sm90" else ""
        return f"{self.row}_{name or KERNELS[self.operator]}_{self.tile}{of_type}"

    @property
    def may_decline(self):
        """No tile need take every list."""
        return self.operator in ("list", "one launch")

    @property
    def draws(self):
        """Of a seed, until one is for this kernel: what none can force, or a layout chooses."""
        return DRAWS if self.operator == "one launch" or self.family == "sm90/gemv" else 1

    def has_layout_of(self, call):
        """A gemv of experts is for one layout of their scale factors."""
        if self.family != "sm90/gemv" or EXPERTS_GEMV[self.operator] == "dual":
            return True
        return call.said["forms"][1] == EXPERTS_GEMV[self.operator]

    @property
    def kinds(self):
        """Of tokens; those of 16-bit weights, of gemvs and of routers are what is multiplied."""
        as_they_are = self.family in ("sm90/kind_f16", "sm90/gemv") or self.operator == "route"
        return KINDS[self.multiplies][-1 if as_they_are else 0 :]

    @property
    def size(self):
        """(tokens of a tile, what else it wants)"""
        if self.family == "sm90/gemv":
            return FEW_ROWS, NOTHING
        if self.family not in STEPS:
            return int(self.tile[1:].partition("x")[0]), NOTHING
        ctas, mma_n, split_k, pairs = TCGEN05.fullmatch(self.tile).groups()
        mma_m = {"n": 128, "p": 256}[ctas] * int(pairs or 1)
        more_k = STEPS[self.family] * (int(split_k or 1) - 1)
        codes = self.multiplies == "codes"
        gathered = codes and self.operator in ("rows", "gated")  # tokens of whole 16 bytes
        k_multiple = 32 if gathered else 1
        experts = Needs().experts if codes else 511
        return int(mma_n), Needs(16, mma_m, more_k, k_multiple, experts)

    def draw(self, seed, kind="", work=1 << 22, always_exact=False):
        kind = kind or self.kinds[seed % len(self.kinds)]
        if self.operator == "route":
            columns = {"c": "x128", "l": "x126"}.get(self.tile[0], "")  # Blackwell's have experts
            return draw_route(self.tile + columns, kind, seed, work)
        tokens, needs = self.size
        if self.operator == "gated":
            return draw_gated(tokens, kind, seed, work, always_exact, needs)
        return drawn(self.operator, kind, tokens, seed, work, always_exact, needs)

    def draw_taken(self, seed, device, **options):
        """(a call of the seed that runs this case's kernel, its plan), or None."""
        for again in range(self.draws):
            call = self.draw(seed + again * 10**6, **options)
            if not self.has_layout_of(call):
                continue
            try:
                plan = call.explain(device)
            except nvfp4kern.BackendError:
                if not self.may_decline:
                    raise
                continue
            if plan["kernel"] == self.kernel:
                return call, plan
            assert self.draws > 1, plan
        return None


def families_of(row):
    return tuple(name for name in FAMILIES if name.startswith(f"{row}/"))


def cases(families=FAMILIES):
    found = []
    for name in nvfp4kern._C._tiles():
        family, _, tile = name.partition(":")
        of = OPERATORS_OF[family] if family in families else ()
        of = [operator for operator in of if is_of(family, operator, tile)]
        types = TYPES_OF.get(family, ("halves", "bfloats"))
        found += [Case(family, operator, tile, of_type) for operator in of for of_type in types]
    return found


def is_of(family, operator, tile):
    """Whether the tile has a kernel for this operator: experts have neither split K nor multicast,
    dual GEMMs no accumulator of all of tensor memory."""
    if family == "sm100/gemm":
        has_room = "256" not in tile or operator not in ("dual_gemm", "gated")
        return has_room and (operator in ("gemm", "dual_gemm") or not {*"km"} & {*tile})
    if family == "sm100/kind_f16":  # experts' offsets may change, and a pair could disagree
        has_room = tile != "p256" or operator != "dual_gemm"
        is_alone = tile[0] == "n" or operator == "list"
        return has_room and (operator in ("gemm", "dual_gemm") or "k" not in tile and is_alone)
    if family == "sm90/gemv":
        return tile.startswith("tall")
    if operator == "one launch":
        return tile in ONE_LAUNCH
    if operator == "gated":
        return tile in GATED
    return operator not in OF_EXPERTS or tile[0] not in "ts"
