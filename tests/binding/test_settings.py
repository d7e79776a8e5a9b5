"""Environment variables: which values are taken, and that no other is."""

import pytest
import torch
from exporters import capsule_of

import nvfp4kern as nk

CODES, SCALES = torch.zeros(1, 8, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8)
YES, NO = ("1", "true", "YES", "on", "True"), ("0", "false", "No", "OFF", "")
WORDS = "1, true, yes, on, 0, false, no or off"


def plan(**fields):
    """Of a gemm; `fields` make the tensors lie, for nothing reads them."""
    codes, scales = (capsule_of(t, **fields) if fields else t for t in (CODES, SCALES))
    return nk.explain("gemm", codes, codes, scales, scales)


@pytest.mark.parametrize("text", YES + NO)
def test_yes_and_no(text, monkeypatch):
    monkeypatch.delenv("NVFP4KERN_BATCH_INVARIANT", raising=False)
    by_default = plan()["batch_invariant"]
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", text)
    assert plan()["batch_invariant"] == (by_default or text in YES)


@pytest.mark.parametrize("text", (*YES, *NO, "weights", "Weights"))
def test_overlap(text, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_PDL", text)
    assert plan()["backend"] == "cpu"


@pytest.mark.parametrize(
    "variable, expected", [("BATCH_INVARIANT", WORDS), ("PDL", f"weights, {WORDS}")]
)
@pytest.mark.parametrize("text", ("2", "maybe", "tru", " 1", "yes "))
def test_other_words(variable, expected, text, monkeypatch):
    name = f"NVFP4KERN_{variable}"
    monkeypatch.setenv(name, text)
    for call in (plan, lambda: nk.quantize(torch.ones(1, 16)), nk.backends):
        with pytest.raises(nk.BackendError) as caught:
            call()
        assert str(caught.value) == f"{name}: '{text}', expected {expected}"


@pytest.mark.parametrize("name", ("NVFP4KERNXPDL", "NVFP4KERN_PDLX", "NVFP4KERN_PD"))
def test_other_variables(name, monkeypatch):
    monkeypatch.setenv(name, "maybe")
    assert plan()["backend"] == "cpu"


@pytest.mark.parametrize(
    "variable, most",
    [
        ("BACKEND", 63),
        ("CPU", 63),
        ("NUM_THREADS", 63),
        ("TILE", 511),
        ("LIBCUDA", 4095),
        ("PTX_DIR", 4095),
        ("SM_LIMIT", 4095),
        ("SMEM_LIMIT", 4095),
        ("ROW_LIMIT", 4095),
        ("ASSUMED_GPU", 4095),
    ],
)
def test_long_texts(variable, most, monkeypatch):
    monkeypatch.setenv(f"NVFP4KERN_{variable}", "x" * (most + 1))
    with pytest.raises(nk.BackendError) as caught:
        plan()
    assert str(caught.value) == (
        f"NVFP4KERN_{variable}: {most + 1} characters, expected at most {most}"
    )


@pytest.mark.parametrize("row", [row["name"] for row in nk.backends()])
def test_a_row_of_gpus_leaves_cpu_tensors_alone(row, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", row)
    assert plan()["backend"] == "cpu"


@pytest.mark.parametrize("text", ("x", "sm80", "sm80/gemm"))
def test_what_is_no_tile(text, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_TILE", text)
    with pytest.raises(nk.BackendError, match=f"^NVFP4KERN_TILE: '{text}', expected <row>/"):
        plan()


def test_gpu_tensors_are_no_work_for_the_cpu(monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    message = "^NVFP4KERN_BACKEND: backend 'cpu' does not run on cuda:0$"
    with pytest.raises(nk.BackendError, match=message):
        plan(device_type=2)
