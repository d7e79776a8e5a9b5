"""Names of places in C sources that survive renames of variables, comments and reformatting.

A place is named by its function, a word, and its ordinal among those of its kind there: `store:
__syncwarp (2 of 3)`. Where a function gains or loses one of them, the old name is of no place.
"""

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cache

BLANK = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|^[ \t]*#(?:\\\n|[^\n])*'
BLANK = re.compile(BLANK, re.S | re.M)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|\S")
LOOPS = {"for", "while"}
NO_FUNCTION = LOOPS | {
    "if",
    "switch",
    "sizeof",
    "alignas",
    "__align__",
    "__attribute__",
    "__launch_bounds__",
}
TYPES = {"struct", "union", "enum", "namespace"}


def mask(source):
    """The source with blanks for comments, strings and the preprocessor's lines."""
    return BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)


@dataclass
class Statement:
    """A simple statement with its `if (..)` or `else`, or what stands before a body."""

    function: str
    """Of none: what lies between two functions."""
    begin: int
    words: list


def declared(words):
    """The function whose body follows, or ""."""
    depth = 0
    for word, after in zip(words, words[1:], strict=False):
        if depth == 0 and after == "(" and word not in NO_FUNCTION and word[0] not in ">)":
            return "" if words[0] in TYPES else word
        depth += (word in "([") - (word in ")]")
    return ""


@cache
def statements(source):
    """Those of all functions of a source, in their order."""
    found, words, function, outer = [], [], "", []
    depth = 0
    for m in TOKEN.finditer(mask(source)):
        word = m[0]
        if not words:
            begin = m.start()
        words.append(word)
        depth += (word in ("(", "[")) - (word in (")", "]"))
        if depth and not function:  # {} of a default argument
            continue
        if word == "{":
            if not function:
                function = declared(words)
                base = len(outer)
            outer.append(depth)
            depth = 0
        elif word == "}":
            depth = outer.pop()
        elif depth or not (word == ";" or (word == ")" and words[0] in LOOPS)):
            continue
        if function and any(map(str.isidentifier, words)):
            found.append(Statement(function, begin, words))
        if word == "}" and function and len(outer) == base:
            found.append(Statement("", m.end(), []))
            function = ""
        words = []
    return found


def ordinals(names):
    """`a`, where there is but one of these, or `a (2 of 3)`."""
    total, seen = Counter(names), Counter()
    for name in names:
        seen[name] += 1
        yield name if total[name] == 1 else f"{name} ({seen[name]} of {total[name]})"


@cache
def named(source, is_lasting):
    """(offset, name) of all statements, named by the first word that lasts, such as a function of
    the PTX layer; "" of what lies between functions."""
    found = statements(source)
    words = [next(filter(is_lasting, s.words), "statement") for s in found]
    names = ordinals([f"{s.function}: {word}" for s, word in zip(found, words, strict=True)])
    return [(s.begin, name if s.function else "") for s, name in zip(found, names, strict=True)]


def at(places, offset):
    """What is said of the last of these (offset, ..) that begins there or before."""
    return places[bisect_right(places, offset, key=lambda place: place[0]) - 1][1]


def functions(source):
    """(offset, name), "" of what lies between them."""
    return [(s.begin, s.function) for s in statements(source)]
