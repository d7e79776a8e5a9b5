"""What transformers has of its own, with our layers: NVFP4Config, and continuous batching."""

import json

import pytest
import torch
from tiny_architectures import ARCHITECTURES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    NVFP4Config,
)

import nvfp4kern.transformers as nt  # noqa: E402
from nvfp4kern.checkpoint import save_checkpoint  # noqa: E402
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear  # noqa: E402
from nvfp4kern.transformers import config as ours  # noqa: E402

PROMPT = torch.arange(2, 8)[None]


@pytest.fixture(autouse=True)
def taken():
    transformers.utils.logging.disable_progress_bar()
    nt.take_over("nvfp4")
    yield
    nt.hand_back("nvfp4")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """plain(architecture): a folder of a model at 16 bits."""

    def make(name):
        folder = tmp_path_factory.mktemp(name)
        config = AutoConfig.for_model(**ARCHITECTURES[name].config)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        return folder

    return make


def opened(folder, config, dtype=torch.bfloat16, **options):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=config, **options
    )
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(PROMPT).logits


# --- NVFP4Config ---


def test_its_configuration_quantises_where_its_kernels_do_not_run(plain):
    folder = plain("qwen3")
    model = opened(folder, NVFP4Config())
    layer = model.model.layers[0]
    assert type(layer.mlp.up_proj) is NVFP4Linear and layer.mlp.up_proj.input_quant is None
    assert type(model.lm_head) is torch.nn.Linear
    expected = opened(folder, nt.NVFP4KernConfig(exclude=("lm_head",)))
    assert torch.equal(logits(model), logits(expected))
    assert len(model.hf_quantizer.report) == 7 * len(model.model.layers)


def test_it_means_the_layers_that_it_names(plain):
    """Its words are regular expressions; with some given, the head is quantised, too."""
    model = opened(plain("qwen3_moe"), NVFP4Config(modules_to_not_convert=["o_proj", ".*gate"]))
    layer = model.model.layers[0]
    assert type(layer.self_attn.q_proj) is NVFP4Linear and type(model.lm_head) is NVFP4Linear
    assert type(layer.self_attn.o_proj) is torch.nn.Linear
    assert type(layer.mlp.experts) is not NVFP4Experts


def test_layers_that_its_kernels_do_not_take_stay(plain, monkeypatch):
    """Those with a bias, and of sizes that are no multiples of 16."""
    model = opened(plain("llama"), NVFP4Config())
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.bias is not None
    assert type(layer.self_attn.q_proj) is torch.nn.Linear
    assert type(layer.mlp.up_proj) is NVFP4Linear
    odd = torch.nn.ModuleDict({
        f"{k}x{n}": torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
        for k, n in ((32, 16), (32, 24), (24, 32))
    })  # fmt: skip
    odd._keep_in_fp32_modules = None
    quantizer = ours.QUANTIZERS["nvfp4"](NVFP4Config(), pre_quantized=False)
    monkeypatch.setattr(quantizer, "get_modules_to_not_convert", lambda *_: [])
    quantizer._process_model_after_weight_loading(odd)
    assert [type(each) is NVFP4Linear for each in odd.values()] == [True, False, False]


def test_it_takes_16_bits(plain):
    with pytest.raises(ValueError, match=r"^dtype: torch.float32, expected torch.bfloat16 or"):
        opened(plain("qwen3"), NVFP4Config(), torch.float32)


def test_it_takes_no_quantised_folder(plain, tmp_path):
    """Neither ModelOpt's, nor one of NVFP4Config's, which transformers does not load either."""
    folder = plain("qwen3")
    config = nt.NVFP4KernConfig(exclude=("lm_head",))
    save_checkpoint(opened(folder, config), tmp_path / "modelopt")
    said = tmp_path / "modelopt" / "config.json"
    words = json.loads(said.read_text())
    del words["quantization_config"]
    said.write_text(json.dumps(words))
    assert (tmp_path / "modelopt" / "hf_quant_config.json").exists()
    with pytest.raises(ValueError, match=r"^hf_quant_config.json: .* expected NVFP4KernConfig"):
        opened(tmp_path / "modelopt", NVFP4Config())
    words = json.loads((folder / "config.json").read_text())
    words["quantization_config"] = {"quant_method": "nvfp4"}
    (folder / "config.json").write_text(json.dumps(words))
    with pytest.raises(ValueError, match="pre-quantized NVFP4 checkpoints is not supported"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_on_blackwell_it_stays_transformers(plain, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    theirs = ours.QUANTIZERS["nvfp4"].theirs
    assert type(ours.QUANTIZERS["nvfp4"](NVFP4Config(), pre_quantized=False)) is theirs


def test_handing_back(plain, monkeypatch):
    nt.take_over("nvfp4")  # twice is once
    nt.hand_back("nvfp4")
    assert isinstance(ours.QUANTIZERS["nvfp4"], type)
    with monkeypatch.context() as within:
        within.delitem(ours.QUANTIZERS, "nvfp4")
        with pytest.raises(ValueError, match="'nvfp4', expected one of .*mxfp4$"):
            nt.take_over("nvfp4")
    with pytest.raises((ImportError, RuntimeError), match="NVFP4 quantization requires"):
        opened(plain("qwen3"), NVFP4Config())


@pytest.mark.parametrize("name", ["eager", "grouped_mm", "batched_mm"])
def test_the_implementation_of_experts_does_not_matter_to_ours(plain, name):
    folder = plain("qwen3_moe")
    model = opened(folder, nt.NVFP4KernConfig(), experts_implementation=name)
    assert type(model.model.layers[0].mlp.experts) is NVFP4Experts
    assert torch.equal(logits(model), logits(opened(folder, nt.NVFP4KernConfig())))


# --- Continuous batching ---


@pytest.mark.parametrize(
    "dtype, input_quant, bound",
    [(torch.float16, None, 0.05), (torch.float32, "dynamic", 0.005)],
    ids=["w4a16", "w4a4"],
)
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_continuous_batching_gives_each_prompt_its_own_tokens(
    plain, monkeypatch, architecture, dtype, input_quant, bound
):
    """More prompts of very different lengths than its cache has room for. Its attention is another,
    so that tokens are asked to be the likeliest within `bound` of a logit."""
    pytest.importorskip("psutil", reason="psutil is not installed")  # 5.17 sizes its cache by it
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    config = nt.NVFP4KernConfig(input_quant=input_quant)
    model = opened(plain(architecture), config, dtype)
    make = torch.Generator().manual_seed(0)
    lengths = [1, 40, 3, 17, 2, 29, 8, 1, 12, 5, 33, 21]
    prompts = [torch.randint(2, 128, (n,), generator=make).tolist() for n in lengths]
    given = model.generate_batch(
        inputs=prompts,
        generation_config=GenerationConfig(
            max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=16, block_size=16, max_batch_tokens=64
        ),
    )
    assert len(given) == len(prompts)
    found = {tuple(each.prompt_ids): each for each in given.values()}
    for prompt in prompts:
        answer = found[tuple(prompt)]
        assert answer.error is None and len(answer.generated_tokens) == 8
        tokens = torch.tensor(prompt + answer.generated_tokens)
        with torch.no_grad():
            logits = model(tokens[None, :-1]).logits[0, len(prompt) - 1 :].float()
        chosen = logits.gather(1, tokens[len(prompt) :, None])[:, 0]
        assert torch.all(logits.amax(1) - chosen <= bound)
