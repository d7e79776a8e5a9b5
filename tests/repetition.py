"""What stands twice in csrc: python tests/repetition.py [--most NAMES] [--csrc FOLDER]

Prints each function and each type that several files define under one name, and each run of six
lines that stands in two places. Exits with 1 if there are more such names than the most, or a run
that no comment excuses. No name counts
- of a kernel, or of a function of cpu/ that is written once for each instruction set,
- for files that are compiled together, where two definitions are overloads,
- `check`, which each operator has.
Lines are compared without comments and white space. Includes, strings and punctuation alone do not
count. A run is excused by a comment in it, or in the lines before it, that names the other file.
"""

import argparse
import re
import sys
from collections import defaultdict
from functools import partial
from itertools import combinations
from pathlib import Path

CSRC = Path(__file__).parents[1] / "csrc"
NAMES = 22
"""What there is now. It may become less."""
RUN = 6
SUFFIXES = {".c", ".h", ".cu", ".cuh"}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*"(?:\w+/)*([\w.]+)"', re.M)
TRANSPARENT = re.compile(r'\bextern\s+""\s*\{|\bnamespace\s*\w*\s*\{')
ATTRIBUTE = re.compile(r"\b(?:__\w+__|alignas|_Alignas|template)\s*(?=[(<])")
TYPE = re.compile(r"\b(?:struct|union|class|enum)\s+(\w+)\s*(?::[^:].*)?$", re.S)
ALIAS = re.compile(r"\btypedef\s+(?:struct|union)\b.*?(\w+)\s*$|\busing\s+(\w+)\s*=", re.S)
FUNCTION = re.compile(r"\b(\w+)\s*\(")
INSTRUCTION_SET = re.compile(r"cpu_(?:avx|neon|scalar|simd|x86)\w*\.[ch]$")


def sources(csrc):
    return sorted(p for p in csrc.rglob("*") if p.suffix in SUFFIXES)


# --- Names ---


def definitions(text):
    """Names of the functions and types that a file defines at its top, but of kernels."""
    text = DIRECTIVE.sub("", STRING.sub('""', COMMENT.sub(" ", text)))
    depth, head, names = 0, "", []
    for piece in re.split(r"([{};])", TRANSPARENT.sub(" ", text)):
        if piece == "{":
            if depth == 0:
                names.append(_defined(head))
                head += "{}"
            depth += 1
        elif piece == "}":
            depth = max(depth - 1, 0)  # that of a namespace stands alone
            if depth == 0 and not re.search(r"\btypedef\b|\bstruct\b[^(]*$|=", head):
                head = ""
        elif depth == 0 and piece == ";":
            alias = ALIAS.search(head)
            names.append(alias and (alias[1] or alias[2]))
            head = ""
        elif depth == 0:
            head += piece
    return {name for name in names if name and not name.isupper()}


def _defined(head):
    """What begins with `head` and a brace: the name of a function or of a type."""
    if "__global__" in head:
        return None
    head = _without_attributes(head.rpartition("}")[2]).strip()
    found = TYPE.search(head) or ("=" not in head and FUNCTION.search(head))
    return found[1] if found else None


def _without_attributes(text):
    """Without such as `template <..>` and `__launch_bounds__(..)`."""
    while found := ATTRIBUTE.search(text):
        depth, end = 1, found.end() + 1
        while depth and end < len(text):
            depth += (text[end] in "(<") - (text[end] in ")>")
            end += 1
        text = text[: found.start()] + text[end:]
    return text


def repeated_names(csrc=CSRC):
    """Name -> the files that define it, of which two at least are never compiled together."""
    texts = {path.name: path.read_text() for path in sources(csrc)}
    units = [_closure(texts, name) for name in texts if name.endswith((".c", ".cu"))]
    files = defaultdict(set)
    for file, text in texts.items():
        for name in definitions(text):
            if not (name == "check" and file.startswith("op_")):
                files[name].add(file)
    return {
        name: sorted(where)
        for name, where in sorted(files.items())
        if any(_apart(units, *pair) for pair in combinations(where, 2))
    }


def _apart(units, one, other):
    if INSTRUCTION_SET.match(one) and INSTRUCTION_SET.match(other):
        return False
    return not any(one in unit and other in unit for unit in units)


def _closure(texts, file):
    """A file, and those that it includes."""
    found, fresh = set(), {file}
    while fresh:
        found |= fresh
        fresh = {i for f in fresh for i in INCLUDE.findall(texts[f]) if i in texts} - found
    return found


# --- Lines ---


def repeated_lines(csrc=CSRC):
    """(file, line, other file, its line, how many) of each run, with nothing that excuses it."""
    lines, comments = {}, {}
    for path in sources(csrc):
        text = path.read_text()
        comments[path.name] = text.splitlines()
        lines[path.name] = list(_lines(text))
    places = defaultdict(list)
    for file, numbered in lines.items():
        for at in range(len(numbered) - RUN + 1):
            places[tuple(line for _, line in numbered[at : at + RUN])].append((file, at))
    pairs = sorted(pair for same in places.values() for pair in combinations(same, 2))
    found, runs = set(pairs), []
    for (one, i), (other, j) in pairs:
        if ((one, i - 1), (other, j - 1)) in found:
            continue
        count = RUN
        while ((one, i + count - RUN + 1), (other, j + count - RUN + 1)) in found:
            count += 1
        spans = [(f, lines[f][k][0], lines[f][k + count - 1][0]) for f, k in ((one, i), (other, j))]
        if not any(map(partial(_excused, comments), spans, reversed(spans))):
            runs.append((*spans[0][:2], *spans[1][:2], count))
    return runs


def _lines(text):
    """Line numbers, and what stands there, of the lines that count."""
    text = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    for number, line in enumerate(text.splitlines(), 1):
        folded = "".join(line.split())
        if re.search(r"\w", folded) and not folded.startswith(("#include", '"')):
            yield number, folded


def _excused(texts, span, other):
    file, first, last = span
    near = "\n".join(texts[file][max(first - 1 - RUN, 0) : last])
    return any(other[0] in comment for comment in COMMENT.findall(near))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=NAMES, help="names that are allowed")
    parser.add_argument("--csrc", type=Path, default=CSRC)
    arguments = parser.parse_args()
    names, runs = repeated_names(arguments.csrc), repeated_lines(arguments.csrc)
    for name, files in sorted(names.items(), key=lambda entry: -len(entry[1])):
        print(len(files), name, *files)
    for one, i, other, j, count in runs:
        print(f"{one}:{i} and {other}:{j}: {count} equal lines")
    print(f"{len(names)} names, of {arguments.most} at most, and {len(runs)} runs of lines")
    return len(names) > arguments.most or bool(runs)


if __name__ == "__main__":
    sys.exit(main())
