"""Host code with one thing spoiled: the tests of the binding and of the operators must notice.

    python tests/mutate_host.py                        # every check, and 200 other mutants
    python tests/mutate_host.py --only csrc/op --sample 0
    python tests/mutate_host.py --only op_route.c --sample 20 --seed 3 --json route.json
    python tests/mutate_host.py --no-checks --json all.json --more    # where an earlier run ended

Hours for all, so CI runs a self-test alone (test_mutate_host.py). A check of csrc/op or csrc/python
is removed by its text: it is still evaluated, and what it says is ignored. The other mutants are
drawn by a seed from the C files of csrc, csrc/op and csrc/python. The build is one for the CPU, and
of it one file is compiled again. A failed test, a crash and a timeout notice a mutant. One whose
machine code is the same does not count, nor one of which known_mutants.SURVIVORS says why it is no
error. UNSEEN there says of others, at most 5 %, why these tests cannot see them.

The checks of CPython's own functions (no memory) are not among those that are removed: no caller
can make them fail.
"""

import argparse
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import anchors
from anchors import mask
from known_mutants import SURVIVORS, UNSEEN

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ("csrc/op", "csrc/python")
SPOILED = ("csrc", *CHECKED)
LIKELY = ("bad_input", "bad_memory", "bad_sizes", "messages", "binding")
QUICK = [*(f"tests/binding/test_{name}.py" for name in LIKELY), "tests/operators/test_shapes.py"]
BINDING = [f"tests/binding/test_{name}.py" for name in ("dlpack", "numpy", "old_torch", "settings")]
ENOUGH = ["tests/binding", "tests/operators"]

LEFT = "SURVIVED"


@dataclass(frozen=True)
class Mutant:
    kind: str
    file: str
    begin: int
    end: int
    new: str
    line: int
    text: str
    key: str

    def __str__(self):
        return f"{self.kind}: {self.file}:{self.line}: {self.text}"

    def spoil(self, source):
        return source[: self.begin] + self.new + source[self.end :]


# --------------------------------------------------------------------------------------------------
# What can be spoiled


def closing(text, at, comma=False):
    """Where the parenthesis that opens at `at` closes, or where its first argument ends."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0 or (comma and depth == 1 and text[i] == ","):
            return i
    raise ValueError(f"unclosed: {text[at : at + 60]}")


FAIL = r"(?:nk_fail\w*|py_fail_at|py_wrong_type|not_converted|unknown_word|py_not_exported"
FAIL += r"|PyErr_Format)"


def removals(text):
    """(begin, end, what it becomes) of every check of a masked source."""
    for m in re.finditer(r"\bNK_(CHECK|CHECK_AT|TRY)\(", text):
        whole = m[1] == "TRY"
        end = closing(text, m.end() - 1, comma=not whole)
        yield m.end(), end, f"((void)({{}}), {'NK_OK' if whole else '1'})"
    guarded = set()
    for m in re.finditer(r"\bif \(", text):
        begin, end = m.end(), closing(text, m.end() - 1)
        fails = re.compile(rf"\)\s*{{?\s*(?:return )?{FAIL}\(").match(text, end)
        gone = re.compile(r"\)\s*(?:return (?:-1|NULL)|goto \w+);").match(text, end)
        variable = re.fullmatch(r"!(\w+)", text[begin:end])
        calls = variable and re.findall(rf"\b{variable[1]} = (?:\w+ \? )?(\w+)\(", text[:begin])
        if fails or (gone and calls and not calls[-1].startswith("Py")):
            guarded.add(fails.end() if fails else 0)
            yield begin, end, "((void)({}), 0)"
    for m in re.finditer(rf"(?:\breturn|[?:;{{])\s*({FAIL}\()", text):  # not the definition
        if m.end() not in guarded:
            yield m.start(1), closing(text, m.end() - 1) + 1, "0"
    for m in re.finditer(r"(?:\b\w+->)?\b(?!Py)\w+\(", text):
        end = closing(text, m.end() - 1) + 1
        if text.startswith(" < 0", end):
            yield m.start(), end + 4, "((void)({}), 0)"


# A -1 stays, since any number below 0 is a failure or no index, too. So does `return 0`, since
# callers compare what they get with 0 by `<`.
OTHERS = {
    "comparison": r" (<|<=|>|>=|==|!=) ",
    "one more or less": r" ([+-])(?= 1\b)",
    "and, or": r" (&&|\|\|)(?=\s)",
    "constant": r"(?<![\w.-])(?<!return )(\d+)(?![\w.])",
}
SWAPPED = ["< <=", "<= <", "> >=", ">= >", "== !=", "!= ==", "+ -", "- +", "&& ||", "|| &&"]


def changes(text):
    """(kind, begin, end, what it becomes) of every other place of a masked source."""
    swapped = dict(pair.split() for pair in SWAPPED)
    for kind, pattern in OTHERS.items():
        for m in re.finditer(pattern, text):
            yield kind, *m.span(1), swapped.get(m[1]) or str(int(m[1]) + 1)


def mutants_of(file, source, places):
    """Their text is all of what is removed for a check, else the line. What was explained of one is
    found by its key: the function, and which of its like there."""
    functions, lines = anchors.functions(source), source.split("\n")
    like = []
    for kind, begin, end, new in places:
        what = kind if kind == "check" else f"{source[begin:end]} -> {new}"
        like.append(f"{Path(file).name}, {anchors.at(functions, begin)}: {what}")
    for (kind, begin, end, new), key in zip(places, anchors.ordinals(like), strict=True):
        old, line = source[begin:end], source.count("\n", 0, begin)
        text = " ".join((old if kind == "check" else lines[line]).split())
        if kind != "check":
            text += f" ({old} -> {new}, column {begin - source.rfind(chr(10), 0, begin)})"
        yield Mutant(kind, file, begin, end, new.replace("{}", old), line + 1, text, key)


def mutants(folders, only, places):
    """Of the files in the folders whose path contains any of `only`, by their masked source."""
    found = []
    for path in (path for folder in folders for path in sorted((ROOT / folder).glob("*.c"))):
        file, source = str(path.relative_to(ROOT)), path.read_text()
        if any(text in file for text in only or [""]):
            found += mutants_of(file, source, sorted(set(places(mask(source)))))
    return found


def checks(*only):
    return mutants(CHECKED, only, lambda text: (("check", *place) for place in removals(text)))


def others(seed, *only):
    """All, in an order drawn by the seed. What a change leaves alone keeps its place."""
    found = mutants(SPOILED, only, changes)
    seen = Counter()

    def place(m):
        seen[m.file, m.text] += 1
        return random.Random(f"{seed} {m.file} {m.text} {seen[m.file, m.text]}").random()

    return sorted(found, key=place)


# --------------------------------------------------------------------------------------------------
# An extension with a mutant, and the tests in a process of their own


class Workshop:
    """A copy of the tree with an extension for the CPU, and the commands that built it."""

    def __init__(self, folder):
        self.tree, self.objects = folder / "tree", folder / "objects"
        skip = shutil.ignore_patterns("*.so", "build", ".git", "__pycache__", "*.egg-info", ".*")
        shutil.copytree(ROOT, self.tree, ignore=skip)
        command = [sys.executable, "setup.py", "-v", "build_ext", "--inplace", "--force"]
        command += ["--build-temp", str(self.objects)]
        env = os.environ | {"NVFP4KERN_CUDA": "0"}
        done = subprocess.run(command, cwd=self.tree, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        lines = [shlex.split(line) for line in done.stdout.splitlines() if " -o " in line]
        self.compilers = {line[line.index("-c") + 1]: line for line in lines if "-c" in line}
        self.linker = next(line for line in lines if "-shared" in line)
        self.extension = next((self.tree / "nvfp4kern").glob("_C*.so"))
        self.spoiled, self.plain = folder / "spoiled", {}

    def compile(self, file, source):
        """The object of a changed source; None where it does not compile."""
        shutil.rmtree(self.spoiled, ignore_errors=True)
        self.spoiled.mkdir()
        place = self.spoiled / Path(file).name
        place.write_text(source)
        line = list(self.compilers[file])
        line[line.index(file)] = str(place)
        line[line.index("-o") + 1] = str(place.with_suffix(".o"))
        line += ["-w", "-I", str(Path(file).parent)]
        done = subprocess.run(line, cwd=self.tree, capture_output=True)
        return None if done.returncode else place.with_suffix(".o").read_bytes()

    def build(self, m):
        """Whether the tree's extension is now that of the mutant, and why not."""
        source = (ROOT / m.file).read_text()
        if m.file not in self.plain:
            self.plain[m.file] = self.compile(m.file, source)
        spoiled = self.compile(m.file, m.spoil(source))
        if spoiled in (None, self.plain[m.file]):
            return "the same machine code" if spoiled else "does not compile"
        was = self.compilers[m.file][self.compilers[m.file].index("-o") + 1]
        here = str(self.spoiled / Path(m.file).with_suffix(".o").name)
        fresh = self.extension.with_suffix(".new")
        line = [here if word == was else word for word in self.linker]
        line[line.index("-o") + 1] = str(fresh)
        subprocess.run(line, cwd=self.tree, check=True, capture_output=True)
        fresh.replace(self.extension)
        return ""

    def test(self, paths, seconds):
        """The first test that notices, or ''. The child has this process's modules: torch takes
        longer to import than most mutants live."""
        told = self.tree / "told"
        told.write_text("the import")
        child = os.fork()
        if child == 0:
            os.setsid()
            os.chdir(self.tree)
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1), os.dup2(log, 2)
            code = 99
            try:
                sys.path[:] = [str(self.tree), *(p for p in sys.path if p != str(ROOT / "tests"))]
                os.environ["PYTHONPATH"] = str(self.tree)  # programs that tests start: fuzz.py
                import pytest

                arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", *paths]
                code = int(pytest.main(arguments, plugins=[Told(told)]))
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        status, end = None, time.monotonic() + seconds
        while status is None and time.monotonic() < end:
            status = next((s for pid, s in [os.waitpid(child, os.WNOHANG)] if pid), None)
            time.sleep(0.02)
        try:
            os.killpg(child, signal.SIGKILL)  # what the tests have started, too
        except ProcessLookupError:
            pass
        if status is None:
            os.waitpid(child, 0)
        if status == 0:
            return ""
        how = "timeout in " if status is None else "crash in " if os.WIFSIGNALED(status) else ""
        return how + told.read_text()


class Told:
    """Writes down which test runs, and so, at the end, which one ended the run."""

    def __init__(self, file):
        self.file = file

    def pytest_runtest_logstart(self, nodeid):
        self.file.write_text(nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.file.write_text(f"collecting {report.nodeid}")


def tests_for(file):
    """Where a mutant of this file is likely to be noticed, then everything."""
    name = re.sub(r"^(op|py|nk)_", "", Path(file).stem).replace("relayout", "quantize")
    tests = sorted((ROOT / "tests").glob("*/test_*.py"))
    own = [path for path in tests if re.match(rf"test_(bad_)?{name}", path.name)]
    binding = [] if file.startswith("csrc/op") else BINDING
    return [[*QUICK, *binding, *(str(p.relative_to(ROOT)) for p in own)], ENOUGH]


def judge(shop, m, stages, seconds):
    """What becomes of a mutant: who notices it, 'SURVIVED', or why it is none."""
    why = shop.build(m)
    if why:
        return f"none: {why}"
    for paths in stages:
        noticed = shop.test(paths, seconds)
        if noticed:
            return noticed
    return LEFT


def earlier_rows(file):
    """The rows of an earlier run's json by their mutants: none where there is no file yet."""
    rows = json.loads(file.read_text()) if file.exists() else []
    return {Mutant(*(r[f.name] for f in fields(Mutant))): r for r in rows}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="in a file's path")
    parser.add_argument("--sample", type=int, default=200, help="mutants that are no checks")
    parser.add_argument("--seed", type=int, default=0, help="of that sample")
    parser.add_argument("--no-checks", action="store_true", help="the sample alone")
    parser.add_argument("--quick", action="store_true", help="run the likeliest tests alone")
    parser.add_argument("--again", type=Path, metavar="FILE", help="what survived in that json")
    parser.add_argument("--timeout", type=int, default=900, help="seconds, of one mutant's tests")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--more", action="store_true", help="keep what that json knows already")
    asked = parser.parse_args(argv)
    import numpy, pytest, torch  # noqa: E401, F401, I001  for the children, see test()

    removed, drawn = [] if asked.no_checks else checks(*asked.only), others(asked.seed, *asked.only)
    if asked.again:
        survived = {r["key"] for r in json.loads(asked.again.read_text()) if r["result"] == LEFT}
        removed, drawn = ([m for m in some if m.key in survived] for some in (removed, drawn))
    known = earlier_rows(asked.json) if asked.more else {}
    rows, counted = [], 0
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop(Path(folder))
        before = shop.test(QUICK if asked.quick else QUICK + ENOUGH, 3 * asked.timeout)
        if before:
            log = (shop.tree / "log").read_text()[-2000:]
            raise SystemExit(f"the tests fail without a mutant: {before}\n{log}")
        for m in removed + drawn:
            if m.kind != "check" and counted == asked.sample:
                break
            stages = tests_for(m.file)[: 1 if asked.quick else 2]
            row = known.pop(m, None)
            result = row["result"] if row else judge(shop, m, stages, asked.timeout)
            counted += m.kind != "check" and not result.startswith("none")
            why = SURVIVORS.get(m.key) or UNSEEN.get(m.key, "")
            rows.append(asdict(m) | {"result": result, "why": why})
            print(f"{m}\n    {result} {why}", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps([*rows, *known.values()], indent=1))
    return summary(rows)


def summary(rows):
    """Prints the counts. 1 where what survives is not explained, or more than 5 % are errors."""
    bad = False
    for name in ("check", "other"):
        some = [r for r in rows if (r["kind"] == "check") == (name == "check")]
        some = [r for r in some if not r["result"].startswith("none")]
        left = [r for r in some if r["result"] == LEFT]
        new = [r for r in left if not r["why"]]
        print(f"{name}: {len(some)} mutants, {len(left)} survive, {len(new)} of them unexplained")
        unseen = sum(r["why"] not in SURVIVORS.values() for r in left)
        bad |= bool(new) or unseen > 0.05 * (len(some) - len(left) + unseen)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
