"""Where an engine gets our layers: which of its versions, which devices, and who asked."""

import logging
import os
import re
from collections.abc import Callable

NATIVE = 10
"""Compute capabilities from this on: engines have native NVFP4 kernels; no such GPU ran ours."""


def switch(variable: str) -> str:
    """A variable: "0" no, "1" also on GPUs that an engine has native kernels for, "" neither."""
    value = os.environ.get(variable, "").lower()
    if value in ("0", "false", "no", "off"):
        return "0"
    return "1" if value in ("1", "true", "yes", "on") else ""


def untested(version: str, oldest: tuple[int, ...], newest: tuple[int, ...]) -> str | None:
    """Why a version is not taken, or None. Of it as many numbers count as those two have."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = tuple(map(int, found.group().split("."))) if found else ()
    if oldest <= numbers[: len(oldest)] <= newest:
        return None
    first, last = (".".join(map(str, each)) for each in (oldest, newest))
    tested = f"tested is {first}" if first == last else f"tested are {first} to {last}"
    return f"its version is {version}, {tested}"


def unserved(capability: tuple[int, int] | None, engine: str, variable: str) -> str | None:
    """Why a GPU's compute capability is not taken, or None."""
    if capability is None or capability[0] < 8:
        found = None if capability is None else "{}.{}".format(*capability)
        return f"compute capability {found}, expected 8.0 or newer"
    if capability[0] >= NATIVE and switch(variable) != "1":
        has = f"{engine} has native kernels from 10.0 on"
        return f"compute capability {capability[0]}.{capability[1]}: {has}; {variable}=1 takes ours"
    return None


def register_unless(
    why_not: Callable[[], tuple[str | None, bool]],
    register: Callable[[], None],
    engine: str,
    logger: logging.Logger,
) -> None:
    """Registers where `why_not` has no reason, else the engine stays as it is.

    why_not: the reason, and whether it should alarm.
    Raises nothing: one warning says why.
    """
    try:
        reason, wrong = why_not()
        if reason is None:
            register()
    except (ImportError, AttributeError) as e:  # what it subclasses is gone
        reason, wrong = f"{engine} lacks what it builds on: {e}", True
    except Exception as e:  # engines call this bare, for models without NVFP4, too
        reason, wrong = f"{type(e).__name__}: {e}", True
    if reason is not None:
        say = logger.warning if wrong else logger.info
        say("nvfp4kern leaves %s as it is: %s", engine, reason)
