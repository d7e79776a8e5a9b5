"""`nvfp4kern generate`: the words are those of model.generate, the figures those of the clock."""

import re
import sys

import pytest
import torch
from byte_model import byte_tokenizer, make
from safetensors.torch import load_file, save_file

from nvfp4kern.__main__ import main
from nvfp4kern.nn import NVFP4Linear
from nvfp4kern.quantizing import quantize_folder

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TEMPLATE = "{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}<bot>"
PROMPT = "Träume"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Folders of 16 bits, of each architecture once."""
    made = {}

    def find(architecture):
        if architecture not in made:
            path = tmp_path_factory.mktemp("plain") / architecture
            made[architecture] = make(path, architecture, chat_template=TEMPLATE)
        return made[architecture]

    return find


@pytest.fixture(scope="module")
def folder(plain, tmp_path_factory):
    """NVFP4 folders, each once."""
    made = {}

    def find(architecture="llama", **options):
        key = architecture, *options.values()
        if key not in made:
            made[key] = tmp_path_factory.mktemp("made") / "folder"
            quantize_folder(plain(architecture), made[key], **options)
        return made[key]

    return find


@pytest.fixture
def generate(monkeypatch, capsys):
    """Calls the command; (status, stdout, stderr)."""

    def call(*arguments):
        words = ["nvfp4kern", "generate", *map(str, arguments), "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        return main(), *capsys.readouterr()

    return call


def text_of(path, prompt, seed=0, **options):
    """What transformers says, and the prompt's tokens."""
    import nvfp4kern.transformers as ours

    ours.take_over()
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    ours.hand_back()
    assert sum(isinstance(each, NVFP4Linear) for each in model.modules())
    tokenizer = byte_tokenizer()
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    options |= {"max_new_tokens": 20, "pad_token_id": 0, "num_beams": 1}
    options = {"do_sample": False} | options
    torch.manual_seed(seed)
    new = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :]
    return tokenizer.decode(new), ids.shape[1]


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("llama", {}, []),
        ("llama", {"format": "compressed-tensors"}, []),
        ("qwen3_moe", {"input_quant": "dynamic"}, []),
        ("llama", {}, ["--compile"]),
    ],
    ids=["W4A16", "compressed-tensors", "experts", "compiled"],
)
def test_words_are_those_of_generate(monkeypatch, folder, generate, architecture, options, words):
    """Compiling is for other tests: here it is only asked for."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda call, **_: compiled.append(call) or call)
    path = folder(architecture, **options)
    expected, tokens = text_of(path, f"<user>{PROMPT}<bot>")
    status, out, err = generate(path, PROMPT, "--max-new-tokens", 20, *words)
    assert status == 0, err
    assert out == f"{expected}\n" and len(expected) > 5
    said = dict(line.split(maxsplit=1) for line in err.splitlines())
    assert said["prompt"].startswith(f"{tokens} tokens, ")
    assert said["new"].startswith("20 tokens, ") and said["new"].endswith(" tokens/s")
    assert said["backend"] == f"cpu, {14 if architecture == 'llama' else 10} NVFP4 layers"
    assert re.fullmatch(r"\d+\.\d\d s", said["load"]) and "thread" in said["device"]
    assert ("warm-up" in said) == bool(words)
    assert bool(compiled) == bool(words)


def test_a_gpu_warms_up_first(gpu, folder, monkeypatch, capsys):
    pytest.importorskip("accelerate", reason="accelerate is not installed")  # for device_map
    monkeypatch.delenv("NVFP4KERN_BACKEND")
    words = ["nvfp4kern", "generate", str(folder()), PROMPT, "--max-new-tokens", "20"]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0
    out, err = capsys.readouterr()
    said = dict(line.split(maxsplit=1) for line in err.splitlines())
    assert len(out) > 5 and said["device"] == torch.cuda.get_device_name()
    assert said["backend"].startswith("sm") and said["warm-up"].endswith(" s")
    assert said["new"].startswith("20 tokens, ")


def test_a_template_is_left_away(folder, generate):
    expected, tokens = text_of(folder(), PROMPT)
    status, out, err = generate(folder(), PROMPT, "--raw", "--max-new-tokens", 20)
    assert (status, out) == (0, f"{expected}\n") and f"prompt   {tokens} tokens" in err


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--sample", "--seed", 3], {"seed": 3, "top_k": 40, "temperature": 0.7}),
        (["--temperature", 1.5], {"top_k": 40, "temperature": 1.5}),
    ],
)
def test_a_draw_is_that_of_its_seed(folder, generate, words, options):
    expected, _ = text_of(folder(), PROMPT, do_sample=True, **options)
    _, out, _ = generate(folder(), PROMPT, "--raw", "--max-new-tokens", 20, *words)
    assert out == f"{expected}\n"
    assert out != generate(folder(), PROMPT, "--raw", "--max-new-tokens", 20)[1]


def test_a_folder_in_16_bits_and_one_new_token(plain, generate):
    status, out, err = generate(plain("llama"), PROMPT, "--max-new-tokens", 1)
    assert status == 0 and len(out) == 2
    assert "backend  torch alone: the folder has no NVFP4 layers\n" in err
    assert err.endswith("\nnew      1 tokens\n")


def words_of(tokenizer, ids, **options):
    from nvfp4kern.transformers.generating import Stream

    written = []
    stream = Stream(tokenizer, written.append)
    stream.begin()
    stream.put(torch.tensor([[1, 2]]))
    for each in ids:
        stream.put(torch.tensor([each]))
        written.append(None)
    stream.end()
    return written


def test_characters_are_written_whole_and_at_once():
    tokenizer = byte_tokenizer()
    text = "é 漢\n  x\U0001f600"
    written = words_of(tokenizer, tokenizer(text).input_ids)
    expected = [None, "é", None, " ", None, None, None, "漢", None, "\n", None, " ", None, " "]
    assert written[: len(expected)] == expected
    assert "".join(filter(None, written)) == text
    broken = tokenizer("é漢").input_ids[1:-1]
    assert "".join(filter(None, words_of(tokenizer, broken))) == tokenizer.decode(broken)


def test_spaces_are_those_of_the_whole_text():
    """This tokenizer leaves out the space of the first token that it decodes."""
    import tokenizers

    words = ["▁a", "▁b", "\n", "▁c", "d"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}))
    made.decoder = tokenizers.decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
    written = words_of(tokenizer, range(5))
    assert [each for each in written if each] == ["a", " b", "\n", " c", "d"]
    assert tokenizer.decode(range(5)) == "a b\n cd"


def test_rates_are_tokens_over_seconds():
    from nvfp4kern.transformers.generating import Stream, facts

    stream = Stream(byte_tokenizer(), str)
    stream.start, stream.times, stream.prompt, stream.new = 10.0, [12.0, 12.5, 13.0], 8, [1, 2, 3]
    said = facts(torch.nn.Module(), "cpu", 1.5, 2.25, stream)
    assert said["prompt"] == "8 tokens, 2.000 s, 4.0 tokens/s"
    assert said["new"] == "3 tokens, 1.000 s, 2.0 tokens/s"
    assert (said["load"], said["warm-up"]) == ("1.50 s", "2.25 s")


# --- What is refused ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["", "--raw"], "PROMPT: '' has no tokens, expected at least one"),
        (["x", "--max-new-tokens", 0], "--max-new-tokens: 0, expected 1 or more"),
        (["x", "--temperature", -0.5], "--temperature: -0.5, expected a number above 0"),
        (["x", "--temperature", "nan"], "--temperature: nan, expected a number above 0"),
        (["x", "--dtype", "float32"], "is float32; inputs that are not quantised are float16 or"),
    ],
)
def test_what_cannot_be_is_refused(folder, generate, words, said):
    status, out, err = generate(folder(), *words)
    assert status == 2 and out == "" and err.startswith("error: ") and said in err


def test_a_folder_without_a_tensor_or_a_configuration_is_refused(folder, generate, tmp_path):
    path = tmp_path / "none"
    said = f"error: FOLDER: '{path}', expected a folder with config.json\n"
    assert generate(path, "x") == (2, "", said)
    for each in folder().iterdir():
        path.mkdir(exist_ok=True)
        (path / each.name).write_bytes(each.read_bytes())
    tensors = load_file(path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    status, _, err = generate(path, "x")
    assert status == 2 and err.endswith("error: none: lacks model.norm.weight\n")


def test_weights_beside_float32_run_in_16_bits(generate, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(make(tmp_path / "m")).float()
    model.save_pretrained(tmp_path / "m")
    quantize_folder(tmp_path / "m", tmp_path / "q")
    assert generate(tmp_path / "q", "x", "--max-new-tokens", 1)[0] == 0


def test_what_is_not_installed_is_named(folder, generate, monkeypatch):
    for name in [each for each in sys.modules if each.startswith("nvfp4kern.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, _, err = generate(folder(), "x")
    assert status == 2 and "pip install torch transformers accelerate safetensors google-re2" in err


def test_a_folder_without_a_tokenizer_is_named(folder, generate):
    path = folder()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()
    status, _, err = generate(path, "x")
    assert status == 2 and f"{path.name}: no tokenizer that opens: " in err
    assert len(err.splitlines()) == 1
