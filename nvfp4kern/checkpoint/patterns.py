"""Which names a pattern of a file matches, in time that grows with the names and no faster.

Patterns come from files that nobody vouches for, and `re` can search for years with one. RE2 never
goes back. All names are one text, a line each, which it searches at once. What patterns cost is
counted and limited. A class of characters means what it means to `re`: RE2 is given those of the
names' characters that are in it.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from threading import Lock
from time import thread_time
from types import ModuleType

__all__ = ["Names", "PatternError"]

CHARACTERS = 1000
TRANSLATED = 10**5
"""Characters of a pattern as RE2 gets it."""
SECONDS = 30.0
"""Of the processor, for all patterns together; one more may take as long once more at most."""
AT_WORST = 5e-9
"""Seconds for a byte of text and an instruction; usually RE2 takes a tenth, or a hundredth."""
MEMORY = 1 << 20
TOKEN = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|\(\?:?|\{,(?=\d*\})|.", re.S)
WILDCARD = re.compile(r"\[!?(?:\][^\]]*|[^\]]+)\]|.", re.S)
FILTERS = Lock()
"""Of warnings are the process's. Two threads that leave in the order they came would leave ours."""
SAME = {r"\A": "^", r"\Z": "$", "{,": "{0,"}  # each name is a line


class PatternError(ValueError):
    """A pattern that is not evaluated, with the reason."""


class Names:
    """Names to match patterns with. They hold no line feed."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self._known = set(self.names)
        self._text = "\n".join(self.names).encode()
        self._alphabet = sorted(set().union(*self.names))
        self._classes: dict[str, str] = {}
        self._left = SECONDS

    def exact(self, pattern: str) -> set[str]:
        return {pattern} & self._known

    def regular(self, pattern: str) -> set[str]:
        """What `re.match(pattern, name)` finds: from the name's beginning, not to its end.

        Raises PatternError for a pattern that is no regular expression, has more than 1000
        characters, has look-arounds, back references or flags, or costs too much.
        """
        with self._counted(pattern):
            source, depth = "", 0
            for token in TOKEN.findall(pattern):
                depth += (token[0] == "(") - (token == ")")
                if depth < 0:
                    raise PatternError("a ')' without its '('")
                source = _limited(source + self._translated(token))
            return self._lines(f"(?:{source}).*")

    def wildcard(self, pattern: str) -> set[str]:
        """What `fnmatch.fnmatchcase(name, pattern)` finds, and the modules inside these."""
        with self._counted(pattern):
            source = ""
            for token in WILDCARD.findall(pattern):
                found = {"*": ".*", "?": "."}.get(token) or self._wildcard_class(token)
                source = _limited(source + found)
            return self._lines(source + r"(?:\..*)?")

    # -------------------------------------------------------------------------------------------

    def _translated(self, token: str) -> str:
        """A piece of a regular expression, for RE2."""
        if token in SAME:
            return SAME[token]
        if token == "(?":
            raise PatternError("a group that opens with '(?' is not evaluated, but for '(?:'")
        if token in ("[", "\\"):
            raise PatternError(f"{token!r} is not understood")
        if token[0] == "\\" and token[1].isalnum() and token[1] not in "dDwWsS":
            raise PatternError(f"{token} is not evaluated")
        if token[0] in "[\\" or not token.isascii():
            return self._class(token)
        return token

    def _wildcard_class(self, token: str) -> str:
        if len(token) == 1:
            return re.escape(token) if token.isascii() else self._class(token)
        inner = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        inner = "^" + inner[1:] if inner.startswith("!") else inner.replace("^", "\\^", 1)
        return self._class(f"[{inner}]")

    def _class(self, source: str) -> str:
        """A class of the names' characters that this expression of one character matches."""
        if source not in self._classes:
            try:
                with FILTERS, warnings.catch_warnings():
                    warnings.simplefilter("error")
                    matches = re.compile(source).fullmatch
            except (re.error, Warning, OverflowError) as error:
                raise PatternError(str(error)) from None
            codes = [ord(c) for c in self._alphabet if matches(c)]
            runs = [list(run) for _, run in groupby(enumerate(codes), lambda at: at[1] - at[0])]
            inside = "".join(rf"\x{{{run[0][1]:x}}}-\x{{{run[-1][1]:x}}}" for run in runs)
            self._classes[source] = f"[{inside}]" if inside else r"[\n]"  # no name has one
        return self._classes[source]

    def _lines(self, source: str) -> set[str]:
        """The names that this expression matches from beginning to end."""
        re2 = _re2()
        options = re2.Options()
        options.max_mem, options.log_errors = MEMORY, False
        options.never_nl = options.never_capture = True
        try:
            expression = re2.compile(f"(?m)^{source}$", options)
        except re2.error as error:
            raise PatternError(str(error.args[0], errors="replace").partition(":")[0]) from None
        if len(self._text) * expression.programsize * AT_WORST > SECONDS:
            raise PatternError("costs too much")
        return {line.decode() for line in expression.findall(self._text)} & self._known

    @contextmanager
    def _counted(self, pattern: str) -> Iterator[None]:
        if len(pattern) > CHARACTERS:
            raise PatternError(f"{len(pattern)} characters, expected at most {CHARACTERS}")
        if self._left <= 0:
            raise PatternError("costs too much")
        begin = thread_time()
        try:
            yield
        finally:
            self._left -= thread_time() - begin


def _limited(source: str) -> str:
    if len(source) > TRANSLATED:
        raise PatternError("costs too much")
    return source


def _re2() -> ModuleType:
    try:
        import re2
    except ModuleNotFoundError:
        needs = "google-re2, for the patterns in its configuration: pip install google-re2"
        raise ModuleNotFoundError(f"loading this checkpoint needs {needs}", name="re2") from None
    return re2
