"""Every kernel of the sm90 families of wgmma, with what draws calls for it."""

from typing import NamedTuple

from drawn_calls import OF_HALVES, drawn
from drawn_gated import draw_gated
from drawn_routes import draw_route

import nvfp4kern

KERNELS = {"dual_gemm": "dual_gemm", "one launch": "list_gemm", "route": "route"}
KERNELS |= dict.fromkeys(("gemm", "list"), "gemm")
KERNELS |= dict.fromkeys(("contiguous", "rows"), "grouped_gemm")
KERNELS["gated"] = "grouped_dual_gemm"
KINDS = {"halves": ("NVFP4", "float16"), "bfloats": ("bfloat16",)}
OF_EXPERTS = ("contiguous", "rows", "gated")
GATED = ("v8", "v16", "v32", "w8", "w64", "w128", "u96", "u128")
"""The tiles that grouped_dual_gemm has on Hopper."""
OPERATORS_OF = {
    "sm90/route": ("route",),
    "sm90/halves": OF_HALVES,
    "sm90/gemm": ("gemm", "dual_gemm", "list", *OF_EXPERTS, "one launch"),
}
FAMILIES = tuple(OPERATORS_OF)
ONE_LAUNCH = ("w32", "w128", "w256")
"""The rings of SM90_LIST_RINGS. None can be forced: draws are repeated until cost takes it."""
DRAWS = 200


class Case(NamedTuple):
    operator: str
    tile: str
    halves: str
    """That the kernel multiplies: halves or bfloats."""

    @property
    def name(self):
        return f"{self.operator} {self.tile} {self.halves}"

    @property
    def family(self):
        return next(name for name, of in OPERATORS_OF.items() if self.operator in of)

    @property
    def setting(self):
        """NVFP4KERN_TILE"""
        return "" if self.operator == "one launch" else f"{self.family}:{self.tile}"

    @property
    def kernel(self):
        """Its name."""
        if self.operator in OF_HALVES:
            dtype = {"halves": "fp16", "bfloats": "bf16"}[self.halves]
            return f"sm90_halves_{self.tile}_{dtype}_{self.operator.removeprefix('halves_')}"
        return f"sm90_{KERNELS[self.operator]}_{self.tile}_{self.halves}"

    @property
    def may_decline(self):
        """No tile need take every list."""
        return self.operator in ("list", "one launch")

    @property
    def kinds(self):
        """Of tokens; those of 16-bit weights and of routers are of 16 bits."""
        return KINDS[self.halves][0 if self.family == "sm90/gemm" else -1 :]

    def draw(self, seed, kind="", work=1 << 22, always_exact=False):
        kind = kind or self.kinds[seed % len(self.kinds)]
        if self.operator == "route":
            return draw_route(self.tile, kind, seed, work)
        tokens = int(self.tile[1:].partition("x")[0])
        if self.operator == "gated":
            return draw_gated(tokens, kind, seed, work, always_exact)
        return drawn(self.operator, kind, tokens, seed, work, always_exact)

    def draw_taken(self, seed, device, **options):
        """(a call of the seed that runs this case's kernel, its plan), or None."""
        for again in range(DRAWS if self.operator == "one launch" else 1):
            call = self.draw(seed + again * 10**6, **options)
            try:
                plan = call.explain(device)
            except nvfp4kern.BackendError:
                if not self.may_decline:
                    raise
                continue
            if plan["kernel"] == self.kernel:
                return call, plan
            assert self.operator == "one launch", plan
        return None


def cases(families=FAMILIES):
    found = []
    for name in nvfp4kern._C._tiles():
        family, _, tile = name.partition(":")
        of = OPERATORS_OF[family] if family in families else ()
        of = [operator for operator in of if is_of(operator, tile)]
        found += [Case(operator, tile, halves) for operator in of for halves in KINDS]
    return found


def is_of(operator, tile):
    """Whether the tile has a kernel for this operator; none of experts has K among CTAs."""
    if operator == "one launch":
        return tile in ONE_LAUNCH
    if operator == "gated":
        return tile in GATED
    return operator not in OF_EXPERTS or tile[0] not in "ts"
