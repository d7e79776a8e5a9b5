"""The rules that keep the tree readable, as tests: layers, names, sizes, imports, documentation."""

import ast
import inspect
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from rows import ROWS, TABLE

import nvfp4kern
from nvfp4kern import _C

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "build_tools"))
import generate  # noqa: E402
import kernels  # noqa: E402

CSRC = ROOT / "csrc"
PTX = CSRC / "cuda" / "ptx"  # the only place with asm
ASM = r"\b(asm|__asm|__asm__)\b"
PACKAGE = ROOT / "nvfp4kern"
SUFFIXES = {".c", ".h", ".cu", ".cuh"}
C_FILES = sorted(p for p in CSRC.rglob("*") if p.suffix in SUFFIXES)
ALL_C_FILES = C_FILES + sorted(
    p
    for place in ("tests", "benchmarks")
    for p in (ROOT / place).rglob("*")
    if p.suffix in SUFFIXES
)
PY_FILES = sorted(
    p for place in (PACKAGE, ROOT / "tests", ROOT / "benchmarks") for p in place.rglob("*.py")
)

SHARED = {
    "nk_status.h",
    "nk_format.h",
    "nk_math.h",
    "nk_memo.h",
    "nk_peer.h",
    "nk_problem.h",
    "nk_settings.h",
    "nk_tile.h",
}  # what operators and backends both know
MAY_INCLUDE = {  # folder -> headers outside that folder; nobody may include python/
    "": SHARED | {"nvfp4kern.h", "backend.h"},
    "python": {"nvfp4kern.h", "nk_peer.h", "nk_version.h"},
    "op": SHARED | {"backend.h"},
    "cuda": SHARED | {"backend.h"},
    "cpu": SHARED | {"backend.h"},
    "gemm": SHARED | {"backend.h", "cuda/"},
}
ARCH = SHARED | {"backend.h", "cuda/", "gemm/"}  # sm80/, sm90/, ...: and nothing of each other
MAX_LINES = 450

relative = {"ids": lambda path: str(path.relative_to(ROOT))}


def folder_of(path):
    return path.relative_to(CSRC).parts[0] if path.parent != CSRC else ""


def code_of(path):
    """A C file without comments and string literals."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(), flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def includes(path):
    return re.findall(r'^\s*#\s*include\s+("[^"]+"|<[^>]+>|\w+)', path.read_text(), flags=re.M)


def test_the_rules_see_the_sources():
    assert {"", "python", "op", "cpu"} <= {folder_of(p) for p in C_FILES}
    assert len(C_FILES) > 30 and len(ALL_C_FILES) > 200 and len(PY_FILES) > 10


# --- C ---


@pytest.mark.parametrize("path", C_FILES, **relative)
def test_includes_follow_the_layers(path):
    here = folder_of(path)
    allowed = MAY_INCLUDE.get(here, ARCH if here.startswith("sm") else None)
    assert allowed is not None, f"a folder without a rule: csrc/{here}"
    for include in includes(path):
        if not include.startswith('"'):
            continue
        name = include.strip('"')
        target = path.parent / name if "/" not in name else CSRC / name
        target = target if target.is_file() else CSRC / name
        assert target.is_file(), f"{include} does not exist"
        to = target.relative_to(CSRC)
        there = folder_of(target)
        inside = there == here and here != ""
        assert inside or str(to) in allowed or f"{there}/" in allowed, (
            f"{here or 'csrc'} must not include {to}"
        )


def test_the_binding_has_no_circle():
    """A file of csrc/python is a .c with its .h. Each stands above those that it includes."""
    below = {}
    for path in (p for p in C_FILES if folder_of(p) == "python"):
        names = {Path(i.strip('"')).stem for i in includes(path) if i.startswith('"py_')}
        below.setdefault(path.stem, set()).update(names - {path.stem})
    order = list(TopologicalSorter(below).static_order())  # CycleError names a circle's files
    assert order.index("py_state") < order.index("py_tensor") < order.index("py_invoke")


ATOM_ARITHMETIC = (
    r"\bNK_SF_ATOM_\w+|[/%] (?:SF_ATOM_(?:ROWS|COLS|K)|128)\b|% 32 \* (?:8|16)\b"
    r"|/ 32(?: % 4)? \* 4\b|\+ 63\) / 64\b"
)
"""What works the blocked layout of scale factors out: by its constants, or by their numbers."""
WORK_IT_OUT = ("cuda/expert.cuh", "cuda/quantize.cuh")
"""Device code that still does."""


def test_one_header_knows_where_scale_factors_lie():
    header = CSRC / "cuda" / "sf_layout.cuh"
    assert re.search(ATOM_ARITHMETIC, code_of(header))
    for path in (p for p in C_FILES if p.suffix in {".cu", ".cuh"} and p != header):
        found = re.findall(ATOM_ARITHMETIC, code_of(path))
        name = str(path.relative_to(CSRC))
        assert not found or name.startswith(WORK_IT_OUT), f"{name}: {found}, see sf_layout.cuh"


@pytest.mark.parametrize("path", C_FILES, **relative)
def test_foreign_headers_and_asm_stay_where_they_belong(path):
    here = folder_of(path)
    for include in includes(path):
        name = include.strip('<>"').lower()
        if name in {"python.h", "structmember.h"} or "dlpack" in name:
            assert here == "python", include
        if re.match(r"(cuda|cu_|nv|cooperative)(?!fp4kern)", name):
            assert here in {"cuda", "gemm"} or here.startswith("sm"), include
    if path.parent != PTX:
        assert not re.search(ASM, code_of(path))


@pytest.mark.parametrize("path", sorted(PTX.glob("*")), **relative)
def test_the_ptx_layer_knows_no_kernel(path):
    """Instructions, which every row uses; see registers.cuh."""
    others = {"cuda/cuda_tensor_map.h", *(f"cuda/ptx/{header.name}" for header in PTX.glob("*"))}
    assert path.suffix == ".cuh" and "asm" in code_of(path)
    assert {name.strip('<>"') for name in includes(path)} <= {"stdint.h", *others}


@pytest.mark.parametrize("path", C_FILES, **relative)
def test_the_library_does_not_allocate_print_or_exit(path):
    allocating = r"malloc|calloc|realloc|aligned_alloc|posix_memalign|free|strdup|alloca"
    printing = r"v?f?printf|f?puts|putchar|perror|exit|_exit|abort|assert"
    cuda = r"cudaMalloc\w*|cuMemAlloc\w*"
    found = re.search(rf"\b({allocating}|{printing}|{cuda})\s*\(", code_of(path))
    assert not found, found.group()


@pytest.mark.parametrize("path", [p for p in C_FILES if p.suffix in {".h", ".cuh"}], **relative)
def test_headers_are_guarded_by_their_name(path):
    stem = re.sub(r"\W", "_", path.name).upper()
    guard = stem if stem.startswith(("NK_", "NVFP4KERN")) else f"NK_{stem}"
    assert f"#ifndef {guard}\n#define {guard}\n" in path.read_text()


def test_file_names_are_unique():
    names = [p.name for p in C_FILES]
    assert sorted(set(names)) == names or sorted(set(names)) == sorted(names), (
        "two files share a name"
    )


def test_files_of_tests_have_unique_names():
    """pytest imports them by these alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("folder", ("nvfp4kern", "tests", "benchmarks"))
def test_json_files_have_no_key_twice(folder):
    """As a merge of two that add the same one has."""

    def read(pairs):
        keys = [key for key, _ in pairs]
        assert sorted(set(keys)) == sorted(keys), path
        return dict(pairs)

    for path in (ROOT / folder).rglob("*.json"):
        json.loads(path.read_text(), object_pairs_hook=read)


@pytest.mark.parametrize("path", C_FILES, **relative)
def test_c_files_say_their_layer(path):
    here = folder_of(path)
    prefix = {"": ("nk_", "backend.", "nvfp4kern."), "python": ("py_",)}.get(here, (f"{here}_",))
    if here == "cuda":
        return  # pipeline.cuh, driver.c: shared pieces named for what they are
    assert path.name.startswith(prefix)


def test_functions_shared_between_files_carry_a_prefix():
    """What a header declares starts with the layer's name, so that a reader knows where to look."""
    for path in C_FILES:
        here = folder_of(path)
        if path.suffix != ".h" or not here:
            continue
        prefix = {"python": "py_"}.get(here, f"{here}_")
        for name in re.findall(r"^[a-z_][\w \*]*?\b(\w+)\([^;{]*\);", code_of(path), flags=re.M):
            assert name.startswith((prefix, "nk_")), f"{path.name}: {name}"


@pytest.mark.parametrize("path", ALL_C_FILES, **relative)
def test_files_open_with_what_they_are_for(path):
    """In a sentence: words, and a full stop before the comment ends."""
    opening = re.match(r"/\* (\w.*?)\*/", path.read_text(), flags=re.S)
    assert opening, "no comment before everything else"
    sentence, stop, _ = re.sub(r"\s[*]?\s*", " ", opening.group(1)).partition(". ")
    assert stop and len(sentence.split()) > 1, opening.group(1)


# --- Every file ---


@pytest.mark.parametrize("path", ALL_C_FILES + PY_FILES, **relative)
def test_files_are_small_and_finished(path):
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES
    assert not re.search(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b", text)
    assert "\t" not in text and "\r" not in text and text.endswith("\n")
    assert not re.search(r"[ ]+$", text, flags=re.M), "white space at the end of a line"
    too_long = [i for i, line in enumerate(text.splitlines(), 1) if len(line) > 120]
    assert not too_long, f"lines of more than 120 characters: {too_long}"  # ruff: 100 in Python


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), **relative)
def test_tests_assert_and_import_no_other_tests(path):
    calls = [
        n.func.id
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.Call) and hasattr(n.func, "id")
    ]
    assert "print" not in calls
    assert not [name for _, name in imports_of(path) if name.startswith("test_")]


# --- Python ---


def test_importing_needs_no_array_library():
    program = "import sys, nvfp4kern\n"
    program += "print(*{'torch', 'numpy', 'jax', 'cupy', 'rich', 'tvm_ffi'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def imports_of(path, module_level_only=False):
    """(level, module) of every import."""
    tree = ast.parse(path.read_text())
    for node in tree.body if module_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


ORACLE = {"reference", "activations", "routing", "data", "shapes", ""}


@pytest.mark.parametrize("name", sorted(f"{each}.py" for each in ORACLE if each))
def test_the_oracle_is_independent(name):
    """It knows NumPy and its own folder; torch only where its tensors are asked for."""
    path = PACKAGE / "verify" / name
    standard = sys.stdlib_module_names | {"numpy"}
    for level, module in imports_of(path):
        assert level <= 1, f"{name} imports {'.' * level}{module}"
        if level == 0:
            assert module.split(".")[0] in standard | ({"torch"} if name == "data.py" else set()), (
                module
            )
        else:
            assert module.split(".")[0] in ORACLE, module
    assert all(
        module.split(".")[0] != "torch" for _, module in imports_of(path, module_level_only=True)
    )


FOREIGN = {
    "torch": {"torch"},
    "nn": {"torch"},
    "distributed": {"torch"},
    "checkpoint": {"torch", "safetensors"},
    "quantizing": {"torch"},
    "comparing": {"torch", "transformers", "tqdm", "matplotlib"},
    "transformers": {"torch", "transformers"},
    "peft": {"torch", "peft"},
    "engines": {"torch"},
    "vllm": {"torch", "vllm"},
    "sglang": {"torch", "sglang"},
    "comfy": {"torch", "comfy_kitchen"},
    "jax": {"jax"},
}
"""What a folder imports, which whoever has it imports by name."""


def test_the_package_imports_nothing_foreign_at_module_level():
    """But for those folders, and what the benchmark and the self-test import when they run: `bench`
    and `selftest` themselves have the command's arguments."""
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE)
        runs = here.parts[0] in ("bench", "selftest")
        runs = runs and here.name not in ("__init__.py", "shapes.py")
        if here.parts[0] in ("verify", "__main__.py") or runs:
            continue
        foreign = FOREIGN.get(here.parts[0], set())
        for level, module in imports_of(path, module_level_only=True):
            first = module.split(".")[0]
            assert level or first in sys.stdlib_module_names | foreign, f"{here} imports {module}"
            assert not (level and first in FOREIGN) or foreign, f"{here} imports .{module}"


# --- The stub, docstrings and signatures ---


def stub():
    """name -> AST nodes (several where overloaded) of every public name in _C.pyi."""
    names = {}
    for node in ast.parse((PACKAGE / "_C.pyi").read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign):
            names.setdefault(node.target.id, []).append(node)
    return {name: node for name, node in names.items() if not name.startswith("_")}


def is_function(thing):
    return inspect.isbuiltin(thing) or inspect.isfunction(thing)


C_FUNCTIONS = sorted(
    name for name in dir(_C) if is_function(getattr(_C, name)) and not name.startswith("_")
)


def test_the_stub_lists_the_public_names():
    public = {name for name in dir(_C) if not name.startswith("_")}
    assert set(stub()) == public
    assert len(C_FUNCTIONS) >= 9


@pytest.mark.parametrize("name", C_FUNCTIONS)
def test_the_stub_has_the_signatures(name):
    nodes = stub()[name]
    parameters = inspect.signature(getattr(_C, name)).parameters.values()

    def of_kind(kind):
        return [p.name for p in parameters if p.kind is kind]

    for node in nodes:
        args = node.args
        assert of_kind(inspect.Parameter.POSITIONAL_ONLY) == [a.arg for a in args.posonlyargs]
        assert of_kind(inspect.Parameter.POSITIONAL_OR_KEYWORD) == [a.arg for a in args.args]
        assert of_kind(inspect.Parameter.KEYWORD_ONLY) == [a.arg for a in args.kwonlyargs]
        positional = args.posonlyargs + args.args
        defaults = {a.arg: d for a, d in zip(positional[::-1], args.defaults[::-1], strict=False)}
        defaults |= {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d}
        real = {p.name: p.default for p in parameters if p.default is not p.empty}
        if len(nodes) == 1:  # an overload may demand what the function as a whole does not
            assert set(defaults) == set(real)
        for parameter, default in defaults.items():
            assert ast.literal_eval(default) == real[parameter], parameter


@pytest.mark.parametrize("name", generate.FILES)
def test_what_the_table_of_operators_gives_is_committed(name):
    assert (ROOT / name).read_text() == generate.FILES[name](), "run python build_tools/generate.py"


def test_public_functions_are_documented():
    assert set(nvfp4kern.__all__) <= set(dir(nvfp4kern))
    for name in nvfp4kern.__all__:
        thing = getattr(nvfp4kern, name)
        if name.startswith("__"):
            continue
        assert inspect.ismodule(thing) or (inspect.getdoc(thing) or "").strip(), (
            f"{name} has no docstring"
        )
        if is_function(thing):
            assert "(" in str(inspect.signature(thing)), name


def test_explain_lists_its_operators():
    others = {"explain", "backends", "warmup"}
    operators = {n for n in C_FUNCTIONS if n not in others and not n.startswith("competition_")}
    listed = re.search(r"^op: one of (.*)\.$", _C.explain.__doc__, flags=re.M).group(1).split()
    assert set(listed) == operators and len(listed) == len(operators) >= 9


# --- The backend table ---


def test_every_row_is_in_every_list():
    """The rows of backend.c are the CPU's and those that the build knows, built or not. Each
    row is in README, and each of its families has a page."""
    rows = re.findall(r"^    ROW\((\w+), ", (CSRC / "backend.c").read_text(), flags=re.M)
    folders = {path.name for path in CSRC.iterdir() if path.name.startswith("sm")}
    assert [row["name"] for row in nvfp4kern.backends()] == rows
    assert set(rows) - {"cpu"} == folders == set(kernels.ARCHS) == set(TABLE) <= set(ROWS)
    said = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), flags=re.M)
    assert set(said) == set(rows)
    families = {f"{folder.parent.name}-{folder.name}" for folder in CSRC.glob("sm*/*/")}
    pages = {path.stem for path in (ROOT / "docs" / "kernels").glob("sm*.md")}
    assert pages == {family.replace("_", "-") for family in families}


def test_the_specification_has_every_cell():
    """The CPU row is what the others are measured by, so no cell of it may be empty."""
    listed = (CSRC / "backend.h").read_text().partition("define NK_OPERATORS(X)")[2]
    cells = re.findall(r"X\((\w+)\)", listed.partition("\n\n")[0])
    filled = re.findall(
        r"^\s*\.(\w+) = \{(\w+), (\w+)\}", (CSRC / "cpu" / "cpu_backend.c").read_text(), flags=re.M
    )
    assert cells and cells == [op for op, _, _ in filled]
    assert all(plan.startswith("plan_") and run.startswith("run_") for _, plan, run in filled)
