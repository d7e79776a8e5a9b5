"""The documents are true: their Python runs, their commands, options, variables and links exist."""

import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from conftest import GPUS, NO_GPU

import nvfp4kern
from nvfp4kern import __main__ as main

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = ROOT / "README.md"
FENCE = re.compile(r"^```([\w{}]*)\n(.*?)^```$", flags=re.M | re.S)

relative = {"ids": lambda path: str(path.relative_to(ROOT))}


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 130


@pytest.mark.parametrize("path", DOCUMENTS, **relative)
def test_lines_are_short_but_in_tables(path):
    lines = enumerate(path.read_text().splitlines(), 1)
    long = [i for i, line in lines if len(line) > (300 if line.startswith("|") else 120)]
    assert not long, f"lines {long}"


# --- Python ---


def find_python():
    for path in DOCUMENTS:
        found = FENCE.findall(path.read_text())
        for i, code in enumerate(code for language, code in found if language == "python"):
            yield pytest.param(path, i, code, id=f"{path.relative_to(ROOT)}-{i}")


PYTHON = list(find_python())


def numbers_of(q, alpha=1.0):
    return nvfp4kern.dequantize((*q[:2], None), out_dtype="float32") * alpha


def check_linear(names):
    x, qx, qw, y = (names[name] for name in ("x", "qx", "qw", "y"))
    assert y.shape == (64, 256) and y.dtype == torch.bfloat16
    want = x.float() @ numbers_of(qw, qw.global_scale).T
    torch.testing.assert_close(y.float(), want, rtol=2e-2, atol=0.1)
    assert qx.data.shape == (64, 256)


def check_moe(names):
    """Against fp32 products of what the quantised weights hold."""
    x, k, y = names["x"].float(), names["k"], names["y"]
    w1, w2 = numbers_of(names["w1"]), numbers_of(names["w2"])
    logits = x @ names["router"].float().T
    values, ids = logits.topk(k)
    weights = values.softmax(-1)
    want = torch.zeros_like(y)
    for token in range(len(x)):
        for j in range(k):
            gate, up = (x[token] @ w1[ids[token, j]].T).chunk(2)
            h = torch.nn.functional.silu(gate) * up
            want[token] += weights[token, j] * (h @ w2[ids[token, j]].T)
    error = (y - want).norm() / want.norm()
    assert 0.01 < error < 0.25  # 4-bit activations twice over


def check_compiled(names):
    assert names["y"].shape == (64, 128) and names["y"].isfinite().all()


def check_quantized_model(names):
    y, model = names["y"], names["model"]
    assert y.shape == (3, 64) and y.dtype == torch.bfloat16 and y.isfinite().all()
    assert all(type(layer) is names["NVFP4Linear"] for layer in model)


def check_calibrated_model(names):
    model, report = names["model"], names["report"]
    assert report == ["0", "1"] and model(names["batches"][0]).isfinite().all()


def check_adapters(names):
    assert names["loss"].isfinite() and names["model"].peft_config


def check_migration(names):
    x, w, y = (names[name].float() for name in "xwy")
    assert names["y"].dtype == torch.bfloat16
    assert 0.01 < (y - x @ w.T).norm() / (x @ w.T).norm() < 0.25
    values = [
        nvfp4kern.dequantize(
            (names[q], names[sf], None), scale_layout="blocked", out_dtype="float32"
        )
        for q, sf in (("a", "sfa"), ("b", "sfb"))
    ]
    a, b = (v / s for v, s in zip(values, names["inverses"], strict=True))
    assert (y - a @ b.T).abs().max() <= 2**-8 * y.abs().max()


CHECKS = {
    ("README.md", 0): check_linear,
    ("docs/api.md", 0): check_compiled,
    ("docs/migration.md", 0): check_migration,
    ("docs/own-model.md", 0): check_quantized_model,
    ("docs/own-model.md", 1): check_calibrated_model,
    ("docs/own-model.md", 2): check_adapters,
    ("docs/own-model.md", 3): check_moe,
}
ASSERTING = {"docs/nvfp4.md", "docs/operators.md", "docs/tour.md"}
"""Pages whose blocks assert what they show."""


def tiny_model():
    """What the reader of a recipe has: a model's configuration, and tokens."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    return {"config": config, "batch": torch.arange(2, 34).reshape(2, 16)}


def run_block(path, i, code, device):
    torch._dynamo.reset()
    torch.manual_seed(0)
    if "import peft" in code:
        pytest.importorskip("peft", reason="peft is not installed")
    names = tiny_model() if "from transformers" in code else {}
    with torch.device(device):
        exec(compile(code, str(path), "exec"), names)
        if (key := (str(path.relative_to(ROOT)), i)) in CHECKS:
            CHECKS[key](names)


@pytest.mark.filterwarnings("ignore")  # compilers warn, nvfp4kern does not
@pytest.mark.parametrize("path, i, code", PYTHON)
def test_python_blocks_run(path, i, code):
    run_block(path, i, code, "cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", GPUS[:1] or NO_GPU, ids=str)
@pytest.mark.parametrize("path, i, code", PYTHON)
def test_python_blocks_run_on_a_gpu(path, i, code, row):
    run_block(path, i, code, row.device)


def test_every_python_block_has_a_check():
    found = {(str(path.relative_to(ROOT)), i): code for path, i, code in (b.values for b in PYTHON)}
    asserting = {key for key, code in found.items() if re.search(r"\bassert", code)}
    assert set(CHECKS) == {key for key in found if key[0] not in ASSERTING}
    assert {key for key in found if key[0] in ASSERTING} <= asserting


CONF = runpy.run_path(str(ROOT / "docs" / "conf.py"))
OPERATORS = ROOT / "docs" / "operators.md"


def test_every_operator_has_an_example():
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", OPERATORS.read_text(), re.M | re.S))
    assert list(sections) == [name for name in CONF["reference"]() if not name.startswith("_")]
    for name, section in sections.items():
        assert f"nk.{name}(" in FENCE.search(section)[2]


def test_the_site_has_every_argument_and_every_name():
    """docs/conf.py puts what the table says behind the examples."""
    page = CONF["add_reference"](OPERATORS.read_text())
    assert "- **row\\_scale**: float32 \\[.., M\\]" in page and "{out}" not in page
    for op in CONF["generate"].OPERATORS:
        words = CONF["reference"]()[op.name].rpartition("```\n")[2].replace("\\", "")
        silent = {p.name for p in op.parameters if not re.search(rf"\b{p.name}\b", words)}
        assert silent <= {"out", "scales"}, op.name  # of to_blocked and from_blocked
    page += (ROOT / "docs" / "api.md").read_text()
    public = {*nvfp4kern.__all__} - {"__version__"}
    assert {name for name in public if not re.search(rf"\b{name}\b", page)} == set()


# --- Messages ---


def literals(path):
    """A source's text with its string literals joined, and `..` for what is filled in."""
    text = path.read_text()
    if path.suffix == ".py":
        text = re.sub(r"""(["'])\n\s+f?["']""", "", text)
        text = re.sub(r"\{[^{}\n]*\}", "..", text)
    else:
        text = re.sub(r'%"\s*PRI\w+\s*"|"\s*CUDA_[A-Z_]+\s*"', "..", text)
        text = re.sub(r'"\s*\n\s*"', "", text)
    text = re.sub(r"%[-.*\d]*(?:ll|l|z)?[a-zA-Z]", "..", text)
    return re.sub(r"\.{2,}", "..", text)


def test_messages_of_the_troubleshooting_exist():
    found = "\n".join(map(literals, sources("csrc", "nvfp4kern")))
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    titles = re.findall(r"^### (.*)$", page, flags=re.M)
    messages = re.findall(r"^### `(.*)`$", page, flags=re.M)
    assert len(messages) == len(titles) > 60 and len(set(messages)) == len(messages)
    assert [each for each in messages if each.removesuffix("..").rstrip() not in found] == []


# --- Commands ---

PROGRAMS = ("python", "pip", "pytest", "cd", "ruff", ".ci/run")
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=\S*$")
OF_OTHERS = {"--help", "--version"}
"""Options that the tree does not define."""


def find_commands():
    """(path, words) for each line of an indented block and each inline code that is a command;
    pictures stand in such blocks, too."""
    for path in DOCUMENTS:
        text = FENCE.sub("", path.read_text())
        lines = re.findall(r"^    (\S.*)$", text, flags=re.M)
        lines += re.findall(r"`((?:[A-Z_0-9]+=\S+ )*(?:python|pip|pytest) [^`]+)`", text)
        for line in lines:
            first = next((word for word in line.split() if not ASSIGNMENT.match(word)), "")
            if first in PROGRAMS:
                words = shlex.split(line, comments=True)
                yield pytest.param(words, id=f"{path.relative_to(ROOT)}-{line[:60]}")


COMMANDS = list(find_commands())


@pytest.fixture(scope="module")
def defined():
    """All that the sources say between quotes and that looks like an option."""
    texts = [path.read_text() for path in sources("nvfp4kern", "tests", "benchmarks")]
    texts.append((ROOT / ".ci" / "run").read_text())
    return {option for text in texts for option in re.findall(r"(?<!\w)--[a-z][a-z-]+", text)}


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_name_options_modules_and_files_that_exist(words, defined):
    """That README's commands work is what .ci/run shows."""
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("--"):
            assert word.partition("=")[0] in defined | OF_OTHERS, word
        elif before == "-m" and word != "pytest":
            module = ROOT / word.replace(".", "/")
            assert module.is_dir() or module.with_suffix(".py").is_file(), word
        elif re.fullmatch(r"[\w./-]+\.(py|sh)(::.*)?|tests/[\w./-]+", word):
            places = (ROOT / place / word.partition("::")[0] for place in ("", "tests"))
            assert any(place.exists() for place in places), word
        elif extras := re.search(r"\[(.*)\]$", word) if "pip" in words else None:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert {*extras[1].split(",")} <= {*project["optional-dependencies"]}, word


def test_commands_are_found():
    assert ["pip", "install", ".[check]", "&&", "python", "-m", "nvfp4kern"] in [
        command.values[0] for command in COMMANDS
    ]


OF_AN_INDEX = re.compile(r"pip install[^\n`&;]*?(?<![\w./*(-])nvfp4kern(?![\w-])")
"""nvfp4kern by its name, where no index has it: a stranger's package may. A path is none."""


def test_nobody_is_told_to_install_it_from_an_index():
    assert OF_AN_INDEX.search('pip install torch "nvfp4kern[models]"')
    assert not OF_AN_INDEX.search('pip install "$(ls nvfp4kern-*.whl)[models]" numpy')
    named = [path for path in DOCUMENTS if OF_AN_INDEX.search(path.read_text())]
    named += [
        path
        for path in (*sources("csrc", "nvfp4kern", "benchmarks"), *ROOT.glob("docs/**/*.ipynb"))
        if OF_AN_INDEX.search(literals(path) if path.suffix != ".ipynb" else path.read_text())
    ]
    assert named == []


def test_an_extra_brings_what_its_commands_say_they_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: {*found} for name, found in project["optional-dependencies"].items()}
    for extra, messages in {
        "check": [main.CHECK_NEEDS],
        "bench": [main.BENCH_NEEDS, main.SELFTEST_NEEDS],
        "plot": [main.BENCH_NEEDS, main.PLOT_NEEDS],
        "models": [main.CHECKPOINT_NEEDS, main.QUANTIZE_NEEDS, main.GENERATE_NEEDS]
        + [main.COMPARE_NEEDS, main.CALIBRATE_NEEDS],
    }.items():
        for message in messages:
            assert {*message.partition("pip install ")[2].split()} <= extras[extra], message


# --- Variables, files, links ---


def sources(*places):
    files = [p for place in places for p in (ROOT / place).rglob("*") if p.is_file()]
    files += [ROOT / "setup.py"]
    return [p for p in files if p.suffix in (".c", ".h", ".cuh", ".cu", ".py", ".sh")]


def variables_of_csrc():
    """What the library reads: nk_settings.c looks names up behind the prefix."""
    texts = [path.read_text() for path in sources("csrc")]
    settings = (ROOT / "csrc" / "nk_settings.c").read_text()
    found = {name for text in texts for name in re.findall(r'"(NVFP4KERN_[A-Z_]+)"', text)}
    return found | {f"NVFP4KERN_{name}" for name in re.findall(r'"([A-Z_]+)"', settings)}


@pytest.mark.parametrize("path", DOCUMENTS, **relative)
def test_environment_variables_exist(path):
    places = ("csrc", "nvfp4kern", "build_tools", "tests")
    known = variables_of_csrc()
    for source in sources(*places):
        if source != Path(__file__):
            known |= set(re.findall(r"\b(?:NVFP4KERN|PTXSIM)_[A-Z_]+\b", source.read_text()))
    named = set(re.findall(r"\b(?:NVFP4KERN|PTXSIM)_[A-Z_]+\b", path.read_text()))
    assert named <= known, named - known


def test_every_variable_is_documented():
    text = (ROOT / "docs" / "api.md").read_text()
    build = (ROOT / "setup.py").read_text() + (ROOT / "build_tools" / "kernels.py").read_text()
    names = variables_of_csrc() | set(re.findall(r'"(NVFP4KERN_[A-Z_]+)"', build))
    missing = {name for name in names if f"| `{name}` |" not in text}
    assert not missing


SUFFIXES = "c|h|cu|cuh|py|pyi|md|sh|toml"
EXAMPLES = {"submission.py", "Python.h"}
CURRENT = [p for p in DOCUMENTS if "worklog" not in p.parts and p.name != "CHANGELOG.md"]


@pytest.mark.parametrize("path", CURRENT, **relative)
def test_files_exist(path):
    skipped = {"build", ".git"}
    files = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.*")]
    files = ["/" + name for name in files if name.split("/")[0] not in skipped]
    text = FENCE.sub("", path.read_text())
    for name in re.findall(rf"(?<![\w<>/*])([\w./-]+\.(?:{SUFFIXES}))\b(?![<>(])", text):
        if name not in EXAMPLES and not name.startswith(("http", "../")):
            assert any(file.endswith("/" + name.removeprefix("./")) for file in files), name
    for folder in re.findall(r"`([\w./-]+/)`", text):
        assert any(f"/{folder}" in file for file in files), folder


def anchors_of(path):
    titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, **relative)
def test_links_resolve(path):
    for target in re.findall(r"\[[^\]]*\]\(([^)]+)\)", FENCE.sub("", path.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.is_file(), target
        assert not anchor or anchor in anchors_of(linked), target


def test_figures_are_those_of_the_results():
    command = [sys.executable, "benchmarks/figures.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, **relative)
def test_figures_stand_in_marked_blocks(path):
    marks = re.findall(r"<!-- (figures: [\w-]+|end) -->", path.read_text())
    assert all(mark.startswith("figures") for mark in marks[::2])
    assert all(mark == "end" for mark in marks[1::2]) and len(marks) % 2 == 0
    assert len(set(marks[::2])) == len(marks[::2])
