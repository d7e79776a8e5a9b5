"""Which names a pattern of a file matches, without backtracking.

Patterns come from files that nobody vouches for, and `re` can search for years with one. Here all
names are one text. A set of positions in it is one integer. A step of a pattern makes a new set of
positions with a few operations on integers, for all names at once. What patterns cost is counted
and limited.
"""

import re
import warnings
from collections.abc import Callable, Iterable
from functools import reduce

__all__ = ["Names", "PatternError"]

CHARACTERS = 1000
COST = 10**11
"""Bits that all patterns together may touch: seconds."""
STEP = 10**4
"""Bits that a step counts as, beside those of the text."""
REPEATS = 100
TOKEN = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.", re.S)
WILDCARD = re.compile(r"\[!?(?:\][^\]]*|[^\]]+)\]|.", re.S)
COUNT = re.compile(r"\{(\d{0,4})(,?)(\d{0,4})\}")

Step = Callable[[int], int]


class PatternError(ValueError):
    """A pattern that is not evaluated, with the reason."""


class Names:
    """Names to match patterns with. They hold no line feed."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self._text = "".join(f"{name}\n" for name in self.names)
        self._reversed = self._text[::-1]
        self._alphabet = sorted(set(self._text) - {"\n"})
        self._sets: dict[str, int] = {}
        self._left = COST
        self.ends = self._bits(lambda c: c == "\n")
        self.begins = (self.ends << 1 | 1) & ((1 << len(self._text)) - 1)

    def exact(self, pattern: str) -> set[str]:
        return {pattern}.intersection(self.names)

    def regular(self, pattern: str) -> set[str]:
        """What `re.match(pattern, name)` finds: from the name's beginning, not to its end.

        Raises PatternError for a pattern that is no regular expression, has more than 1000
        characters, has look-arounds, back references or flags, or costs too much.
        """
        self._check(pattern)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                re.compile(pattern)
                step = _Expression(self, pattern).parse()
        except (re.error, Warning, OverflowError, RecursionError) as error:
            raise PatternError(str(error) or type(error).__name__) from None
        return self._reached(self.star(self.characters("."), step(self.begins)))

    def wildcard(self, pattern: str) -> set[str]:
        """What `fnmatch.fnmatchcase(name, pattern)` finds, and the modules inside these."""
        self._check(pattern)
        here = self.begins
        for token in WILDCARD.findall(pattern):
            if token == "*":
                here = self.star(self.characters("."), here)
            else:
                here = self.one(self._wildcard_set(token), here)
        inside = self.one(self.characters(r"\."), here)
        return self._reached(here | self.star(self.characters("."), inside))

    # -------------------------------------------------------------------------------------------

    def one(self, characters: int, here: int) -> int:
        """After a character of the set."""
        self.count()
        return (here & characters) << 1

    def star(self, characters: int, here: int) -> int:
        """After any number of characters of the set: the carry runs through them."""
        self.count()
        return (((here & characters) + characters) ^ characters) | here

    def characters(self, source: str) -> int:
        """Where the text has a character that this regular expression of one character matches."""
        if source not in self._sets:
            matches = re.compile(source).fullmatch
            self._sets[source] = self._bits(lambda c: c != "\n" and matches(c) is not None)
        return self._sets[source]

    def count(self) -> None:
        self._left -= len(self._text) + STEP
        if self._left < 0:
            raise PatternError("costs too much")

    def _wildcard_set(self, token: str) -> int:
        if token == "?":
            return self.characters(".")
        if len(token) == 1:
            return self.characters(re.escape(token))
        inner = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        inner = "^" + inner[1:] if inner.startswith("!") else inner.replace("^", "\\^", 1)
        try:
            return self.characters(f"[{inner}]")
        except re.error as error:
            raise PatternError(str(error)) from None

    def _bits(self, wanted: Callable[[str], bool]) -> int:
        self.count()
        table = {ord(c): "1" if wanted(c) else "0" for c in [*self._alphabet, "\n"]}
        return int(self._reversed.translate(table) or "0", 2)

    def _reached(self, here: int) -> set[str]:
        """The names whose end is in the set."""
        if not here & self.ends:
            return set()
        bits = f"{here & self.ends:b}"[::-1]
        found, at = set(), 0
        for name in self.names:
            at += len(name)
            if bits[at : at + 1] == "1":
                found.add(name)
            at += 1
        return found

    def _check(self, pattern: str) -> None:
        if len(pattern) > CHARACTERS:
            raise PatternError(f"{len(pattern)} characters, expected at most {CHARACTERS}")


class _Expression:
    """A regular expression as a function from positions to the positions after a match."""

    def __init__(self, names: Names, pattern: str) -> None:
        self.names = names
        self.tokens = TOKEN.findall(pattern)
        self.at = 0

    def parse(self) -> Step:
        step = self._choice()
        if self.at < len(self.tokens):
            raise PatternError(f"{self.tokens[self.at]!r} is not understood")
        return step

    def _peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _take(self, wanted: str) -> bool:
        found = self._peek() == wanted
        self.at += found
        return found

    def _choice(self) -> Step:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        return lambda here: reduce(lambda found, step: found | step(here), branches, 0)

    def _sequence(self) -> Step:
        steps: list[Step] = []
        while self._peek() not in (None, "|", ")"):
            steps.append(self._repeated())
        return lambda here: reduce(lambda found, step: step(found), steps, here)

    def _repeated(self) -> Step:
        begin = self.at
        step = self._atom()
        single = self.tokens[begin] if self.at == begin + 1 else ""
        low, high = self._quantifier()
        if (low, high) == (1, 1):
            return step
        if self._peek() in ("*", "+", "?", "{"):
            raise PatternError("a quantifier after a quantifier is not evaluated")
        if high is None and low < 2 and single not in ("^", "$", r"\A", r"\Z", ""):
            characters = self.names.characters(single)
            return lambda here: self.names.star(characters, step(here) if low else here)
        return lambda here: self._repeat(step, low, high, here)

    def _repeat(self, step: Step, low: int, high: int | None, here: int) -> int:
        for _ in range(low):
            here = step(here)
        new, turns = here, 0
        while new and (high is None or turns < high - low):
            new = step(new) & ~here
            here |= new
            turns += 1
            self.names.count()
        return here

    def _quantifier(self) -> tuple[int, int | None]:
        token = self._peek()
        low, high = 1, 1
        if token in ("*", "+", "?"):
            self.at += 1
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[token]
        elif token == "{":
            count = COUNT.match("".join(self.tokens[self.at : self.at + 12]))
            if not count or not (count[1] or count[3]):
                raise PatternError("'{' is not evaluated but as a count")
            self.at += len(count[0])
            low = int(count[1] or 0)
            high = (int(count[3]) if count[3] else None) if count[2] else low
            if max(low, high or 0) > REPEATS:
                raise PatternError(f"a count of {max(low, high or 0)}, expected at most {REPEATS}")
        else:
            return 1, 1
        self._take("?")  # as few as possible: the same set of positions
        return low, high

    def _atom(self) -> Step:
        token = self._peek()
        assert token is not None
        self.at += 1
        names = self.names
        if token == "(":
            return self._group()
        if token in ("^", r"\A"):
            return lambda here: here & names.begins
        if token in ("$", r"\Z"):
            return lambda here: here & names.ends
        if token in ("*", "+", "?", "{", ")"):
            raise PatternError(f"{token!r} is not understood")
        if token[0] == "\\" and token[1].isalnum() and token[1] not in "dDwWsS":
            raise PatternError(f"{token} is not evaluated")
        characters = names.characters(token)
        return lambda here: names.one(characters, here)

    def _group(self) -> Step:
        if self._take("?"):
            if not self._take(":"):
                raise PatternError("a group that opens with '(?' is not evaluated, but for '(?:'")
        step = self._choice()
        if not self._take(")"):
            raise PatternError("a group without its end")
        return step
