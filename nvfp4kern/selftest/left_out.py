"""Tiles that later sections do without: calls whose plan has one run by another."""

import contextlib
import functools
import os

import nvfp4kern

TILES: set[str] = set()
"""By their whole names."""

OPERATORS = ("gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm", "route")
ENTRY_POINTS = tuple(f"competition_{name}" for name in ("gemv", "gemm", "dual_gemm", "group_gemm"))


class LeftOut(Exception):
    """No tile is left that serves a call."""


@contextlib.contextmanager
def settings(**variables):
    """Environment variables NVFP4KERN_<NAME>, which every call reads. "" counts as not set."""
    names = {f"NVFP4KERN_{name}": value for name, value in variables.items()}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def family_of(tile):
    return tile.partition(":")[0]


def tile_of(plan):
    """The whole name of a plan's tile. Kernels of gemm's family are called after operators."""
    row, kernel = plan["backend"], plan["kernel"]
    families = (f for f in ("kind_f16", "gemv", "route") if kernel.startswith(f"{row}_{f}"))
    return f"{row}/{next(families, 'gemm')}:{plan.get('tile')}"


def _others(tile):
    """Settings that a call may have in place of a tile: others of its family, then the row that
    stands in for all."""
    for other in nvfp4kern._C._tiles():
        if family_of(other) == family_of(tile) and other not in TILES:
            yield {"BACKEND": tile.partition("/")[0], "TILE": other}
    yield {"BACKEND": "sm80", "TILE": ""}


@contextlib.contextmanager
def avoided(name, arguments, options):
    """Settings under which this call has no tile that was left out."""
    tile = tile_of(nvfp4kern.explain(name, *arguments, **options)) if TILES else ""
    if tile not in TILES:
        yield
        return
    for others in _others(tile):
        with settings(**others):
            try:
                found = tile_of(nvfp4kern.explain(name, *arguments, **options))
            except nvfp4kern.BackendError:
                continue
            if found not in TILES:
                yield
                return
    raise LeftOut(f"{tile} and all that could stand in were left out")


@contextlib.contextmanager
def _avoided_by_all(*_):
    """Likewise of calls that have no plan to ask for: of each family the tile of most operators."""
    found = {}
    for tile, traits in nvfp4kern._C._tiles().items():
        family, serves = family_of(tile), len(traits.get("operators", ()))
        if tile not in TILES and any(family_of(out) == family for out in TILES):
            found[family] = max(found.get(family, (-1, "")), (serves, tile), key=lambda f: f[0])
    with settings(TILE=",".join(tile for _, tile in found.values())):
        yield


def _guarded(function, around):
    @functools.wraps(function)
    def call(*arguments, **options):
        with around(function.__name__, arguments, options):
            return function(*arguments, **options)

    return call


def leave_out(tiles):
    """For the rest of this process."""
    TILES.update(tiles)
    for name in OPERATORS + ENTRY_POINTS if TILES else ():
        around = avoided if name in OPERATORS else _avoided_by_all
        function = _guarded(getattr(nvfp4kern._C, name), around)
        for module in (nvfp4kern, nvfp4kern._C):
            if hasattr(module, name):
                setattr(module, name, function)
