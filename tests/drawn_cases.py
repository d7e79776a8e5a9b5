"""Every kernel of the families that a drawn call can force, with what draws calls for it."""

from typing import NamedTuple

from drawn_calls import OF_HALVES, drawn
from drawn_gated import draw_gated
from drawn_needs import Needs
from drawn_routes import MOST_OVER, draw_route
from rows import tiles_of

import nvfp4kern

KERNELS = {"dual_gemm": "dual_gemm", "one launch": "list_gemm"}
KERNELS |= {"route": "route", "route scored": "route_scored"}
KERNELS |= dict.fromkeys(("gemm", "list"), "gemm")
KERNELS |= dict.fromkeys(("contiguous", "rows"), "grouped_gemm")
KERNELS |= dict.fromkeys(("halves_along_k", "halves_by_rows"), "grouped_gemm_16bit")
KERNELS |= dict.fromkeys(("gated", "gated blocked"), "grouped_dual_gemm")
KERNELS["activated"] = "activated_grouped_gemm"
KINDS = {"halves": ("NVFP4", "float16"), "bfloats": ("bfloat16",), "codes": ("NVFP4",)}
KINDS["16 bits"] = ("float16", "bfloat16")
"""Tokens, by what a kernel multiplies."""
OF_EXPERTS = ("contiguous", "rows", "gated")
GATHERED = ("rows", "gated", "activated")
UPS_WITHIN_ATOMS = Needs(ups_within_atoms=True)
NATURAL_K = {"n256": Needs(k_multiple=64)}
"""Tiles of sm90/gemm that take 16-bit tokens as they lie, and what they want."""
DUAL_GEMV = {
    f"{count} dual {layout}": (range(1, 2) if count == "one" else range(2, 9), layout)
    for count in ("one", "few")
    for layout in ("linear", "blocked")
}
"""dual_gemm by a gemv: of how many tokens, and the layout of the weights' scale factors."""
LIST_GEMV = {"list linear": "linear", "list blocked": "blocked"}
"""A list of groups of the same N and K by a gemv: the layout of the weights' scale factors."""
OPERATORS_OF = {
    "sm90/gemv": (*OF_EXPERTS, "gated blocked", *DUAL_GEMV, *LIST_GEMV),
    "sm90/route": ("route", "route scored"),
    "sm90/kind_f16": OF_HALVES,
    "sm90/gemm": ("gemm", "dual_gemm", "list", *OF_EXPERTS, "activated", "one launch"),
    "sm100/gemm": ("gemm", "dual_gemm", "list", *OF_EXPERTS, "activated"),
    "sm120/gemm": ("gemm", "dual_gemm", "list", *OF_EXPERTS),
    "sm100/kind_f16": (
        "gemm",
        "dual_gemm",
        "list",
        *OF_EXPERTS,
        "activated",
        "halves_along_k",
        "halves_by_rows",
    ),
    "sm120/kind_f16": ("gemm", "dual_gemm", "list", *OF_EXPERTS),
}
FAMILIES = tuple(OPERATORS_OF)
TYPES_OF = {"sm100/gemm": ("codes",), "sm120/gemm": ("codes",)}
TYPES_OF |= dict.fromkeys(("sm100/kind_f16", "sm120/kind_f16"), ("16 bits",))
TYPES_OF["sm90/gemv"] = ("codes", "halves", "bfloats")
"""Keys of KINDS; of other families halves and bfloats."""
EXPERTS_GEMV = {"contiguous": "blocked", "rows": "linear"}
EXPERTS_GEMV |= {"gated": "dual_linear", "gated blocked": "dual_blocked"}
"""By operator, the kernel of sm90/gemv that a case is for: experts' weights have either layout."""
ALIGNED = Needs(pitch=16)
"""NVFP4 tokens, for a gemv of two matrices."""
FEW_ROWS = 8
"""Of a call, or of an expert, for a gemv."""
DRAWS = 400
"""Of a seed, until one is for the case's kernel."""
ROUTED_AT_ONCE = 256
"""Experts, by a tile that has all of a call's."""
KERNELS_OF = {"dual_gemm": "dual_gemm", "gated": "grouped_dual_gemm", "one launch": "list_gemm"}
KERNELS_OF["activated"] = KERNELS["activated"]
KERNELS_OF |= dict.fromkeys(("contiguous", "rows", "halves_by_rows", *OF_HALVES), "grouped_gemm")
"""By what is drawn, the operator that a tile needs a kernel of: else gemm."""


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
    def traits(self):
        return tiles_of(self.family)[self.tile]

    @property
    def name(self):
        of_type = f" {self.multiplies}" if self.row == "sm90" else ""
        return f"{self.operator} {self.tile}{of_type}"

    @property
    def is_route(self):
        return self.operator in ("route", "route scored")

    @property
    def setting(self):
        """NVFP4KERN_TILE"""
        return "" if self.operator == "one launch" else f"{self.family}:{self.tile}"

    @property
    def kernel(self):
        """Its name."""
        of_lists = {"sm100": "list_gemm", "sm120": "grouped_gemm"}
        of_lists = of_lists if self.operator == "list" else {}
        if self.multiplies == "16 bits":
            name = of_lists.get(self.row) or KERNELS[self.operator]
            return f"{self.row}_kind_f16_{name}_{self.tile}"
        dtype = {"halves": "fp16", "bfloats": "bf16"}.get(self.multiplies, self.multiplies)
        if self.operator in OF_HALVES:
            major = {"halves_along_k": "k_major", "halves_along_n": "n_major"}[self.operator]
            return f"sm90_kind_f16_{self.tile}_{dtype}_{major}"
        if self.operator in DUAL_GEMV:
            few = "few_" if self.operator.startswith("few") else ""
            return f"sm90_gemv_{few}{dtype}_dual_{DUAL_GEMV[self.operator][1]}"
        if self.operator in LIST_GEMV:
            return f"sm90_gemv_list_{dtype}_{LIST_GEMV[self.operator]}"
        if self.family == "sm90/gemv":
            return f"sm90_gemv_experts_{dtype}_{EXPERTS_GEMV[self.operator]}"
        if self.family == "sm100/route":
            return "sm100_route"  # of all tiles
        of_type = f"_{dtype}" if self.row == "sm90" else ""
        name = of_lists.get(self.row) or KERNELS[self.operator]
        return f"{self.row}_{name}_{self.tile}{of_type}"

    @property
    def may_decline(self):
        """No tile need take every list."""
        return self.operator in ("list", "one launch", *LIST_GEMV)

    @property
    def draws(self):
        """Of a seed, until one is for this kernel: what none can force, or a layout or a score
        chooses."""
        chosen = self.family in ("sm90/gemv", "sm90/route")
        return DRAWS if self.operator == "one launch" or chosen else 1

    def may_take(self, call):
        """A gemv is for one layout of scale factors. With two matrices it also is for one token or
        for several, and of some sizes."""
        if self.operator in DUAL_GEMV:
            tokens, layout = DUAL_GEMV[self.operator]
            fits = call.said["n"] % 8 == call.said["k"] % 64 == 0
            return fits and call.said["m"] in tokens and call.said["forms"][1] == layout
        if self.operator in LIST_GEMV:
            return call.said["forms"][1] == LIST_GEMV[self.operator]
        if self.family == "sm90/route":
            return call.is_plain == (self.operator == "route")
        if self.family != "sm90/gemv":
            return True
        return EXPERTS_GEMV[self.operator].endswith(call.said["forms"][1])

    @property
    def kinds(self):
        """Of tokens; those of 16-bit weights, of gemvs and of routers are what is multiplied."""
        as_they_are = self.family in ("sm90/kind_f16", "sm90/gemv") or self.is_route
        as_they_are |= self.tile in NATURAL_K
        return KINDS[self.multiplies][-1 if as_they_are else 0 :]

    @property
    def size(self):
        """(tokens of a tile, what else it wants)"""
        if self.family == "sm90/gemv":
            of_gemm = (*DUAL_GEMV, *LIST_GEMV)
            return FEW_ROWS, ALIGNED if self.operator in of_gemm else UPS_WITHIN_ATOMS
        if self.row != "sm100":
            return self.traits["tile_m"], NATURAL_K.get(self.tile, UPS_WITHIN_ATOMS)
        more_k = self.traits["tile_k"] * (self.traits["split_k"] - 1)
        codes = self.multiplies == "codes"
        gathered = codes and self.operator in GATHERED  # tokens of whole 16 bytes
        k_multiple = 32 if gathered else 1
        experts = Needs().experts if codes else 511
        needs = Needs(16, self.traits["tile_n"], more_k, k_multiple, experts)
        return self.traits["tile_m"], needs

    def draw(self, seed, kind="", work=1 << 22, always_exact=False):
        kind = kind or self.kinds[seed % len(self.kinds)]
        if self.is_route:
            experts = self.traits.get("tile_n", ROUTED_AT_ONCE - MOST_OVER)
            return draw_route(self.traits["tile_m"], experts, kind, seed, work)
        tokens, needs = self.size
        if self.operator.startswith("gated"):
            return draw_gated(tokens, kind, seed, work, always_exact, needs)
        operator = "dual_gemm" if self.operator in DUAL_GEMV else self.operator
        operator = "alike list" if operator in LIST_GEMV else operator
        return drawn(operator, kind, tokens, seed, work, always_exact, needs)

    def draw_taken(self, seed, device, **options):
        """(a call of the seed that runs this case's kernel, its plan), or None."""
        for again in range(self.draws):
            call = self.draw(seed + again * 10**6, **options)
            if not self.may_take(call):
                continue
            try:
                plan = call.explain(device)
            except nvfp4kern.BackendError:
                if not self.may_decline:
                    raise
                continue
            if plan["kernel"] == self.kernel:
                return call, plan
            # Where rows of a launch are limited, slices begin at other batches.
            elsewhere = self.draws > 1 and not self.is_route
            assert elsewhere or "batches are not aligned" in (plan["declined"] or ""), plan
        return None


def families_of(row):
    return tuple(name for name in FAMILIES if name.startswith(f"{row}/"))


def cases(families=FAMILIES):
    found = []
    for family in (of for of in OPERATORS_OF if of in families):
        for tile, traits in tiles_of(family).items():
            of = [operator for operator in OPERATORS_OF[family] if is_of(family, operator, traits)]
            types = TYPES_OF.get(family, ("halves", "bfloats"))
            found += [Case(family, operator, tile, of_type) for operator in of for of_type in types]
    return found


def is_of(family, operator, traits):
    """Whether the tile has a kernel for this operator."""
    if family == "sm90/gemv":
        return traits["tile"].startswith("tall")
    if operator.startswith("route"):
        return True
    one_launch = operator == "list" and family.startswith("sm100/")
    return ("list_gemm" if one_launch else KERNELS_OF.get(operator, "gemm")) in traits["operators"]
