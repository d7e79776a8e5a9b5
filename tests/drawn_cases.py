"""Every kernel of the sm90 GEMM family and of the routers, with what draws calls for it."""

from typing import NamedTuple

from drawn_calls import drawn
from drawn_routes import draw_route

import nvfp4kern

KINDS = {"halves": ("NVFP4", "float16"), "bfloats": ("bfloat16",)}
OF_GEMM = ("gemm", "dual_gemm", "list")
OF_EXPERTS = ("contiguous", "rows")
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
    def setting(self):
        """NVFP4KERN_TILE"""
        if self.operator == "one launch":
            return ""
        return f"sm90/{'route' if self.operator == 'route' else 'gemm'}:{self.tile}"

    @property
    def may_decline(self):
        """No tile need take every list."""
        return self.operator in ("list", "one launch")

    def draw(self, seed, kind="", work=1 << 22, always_exact=False):
        kind = kind or KINDS[self.halves][seed % len(KINDS[self.halves])]
        if self.operator == "route":
            return draw_route(
                self.tile, "bfloat16" if kind == "bfloat16" else "float16", seed, work
            )
        return drawn(self.operator, kind, int(self.tile[1:]), seed, work, always_exact)

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
            of_list = plan["kernel"].startswith("sm90_list_")
            if plan.get("tile") == self.tile and of_list == (self.operator == "one launch"):
                assert plan["kernel"].endswith(f"_{self.tile}_{self.halves}"), plan
                return call, plan
            assert self.operator == "one launch", plan
        return None


def cases():
    found = []
    for name in nvfp4kern._C._tiles():
        family, _, tile = name.partition(":")
        of = {"sm90/gemm": OF_GEMM, "sm90/route": ("route",)}.get(family, ())
        if of is OF_GEMM and not divides(tile):
            of += OF_EXPERTS
        found += [Case(operator, tile, halves) for operator in of for halves in KINDS]
    return found + [Case("one launch", tile, halves) for tile in ONE_LAUNCH for halves in KINDS]


def divides(tile):
    """K among CTAs, which no tile of experts does."""
    return tile[0] in "ts"
