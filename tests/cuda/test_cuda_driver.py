"""The driver layer: contexts, threads, several GPUs, and the environment that it reads."""

import ctypes
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cuda_calls import OPERATORS, Call, Driver, run_python
from rows import TABLE
from threads import in_threads

import nvfp4kern

CSRC = Path(__file__).parents[2] / "csrc"
every_operator = pytest.mark.parametrize("name", OPERATORS)
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


# --- Contexts ---


@contextmanager
def another_context(index=0):
    """Current for the body, of the same GPU, and not the one that tensors live in."""
    driver, context, device = Driver(), ctypes.c_void_p(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    try:
        yield context.value
    finally:
        driver.cuCtxDestroy_v2(context)


@every_operator
def test_the_tensors_context_is_used_and_the_callers_restored(gpu, name):
    call = Call(name)
    call.run()  # torch has the workspace from now on
    call.fill(1)
    torch.cuda.synchronize()
    with another_context() as other:
        assert Driver().current() == other
        call.run()
        assert Driver().current() == other
    call.check(1)


@pytest.mark.parametrize("size", [(19, 70, 2048), (1, 128, 1024)])  # the latter by tensor maps
def test_no_context_stays_behind_on_a_thread(gpu, size):
    """A thread that had none, and whose first use of the GPU is ours, has none afterwards."""
    run_python(f"""
        import threading
        import torch
        from cuda_calls import SIZES, Call, Driver
        SIZES["given"] = {size}
        call, seen = Call("gemv", size="given"), []
        torch.cuda.synchronize()
        def body():
            seen.append(Driver().current())
            call.run()
            seen.append(Driver().current())
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        assert len(seen) == 2 and seen[0] == seen[1], seen
        torch.cuda.synchronize()
        call.check(0)
    """)


# --- Threads and GPUs ---


def streams_and_calls(device, thread):
    """Two streams, and on each calls whose data nobody else has."""
    names = list(OPERATORS)[thread::4]
    for half in range(2):
        calls = [Call(name, device, "small", seed=10 * thread + half) for name in names]
        yield torch.cuda.Stream(device), calls


def test_threads_and_streams_do_not_cross(gpu):
    """Four threads, each with two streams on every GPU, call away while the others do."""
    devices = [f"cuda:{i}" for i in range(min(torch.cuda.device_count(), 2))]
    work = {
        thread: [pair for device in devices for pair in streams_and_calls(device, thread)]
        for thread in range(4)
    }
    for i in range(len(devices)):
        torch.cuda.synchronize(i)

    def body(pairs):
        for _ in range(25):
            for stream, calls in pairs:
                with torch.cuda.stream(stream):
                    for call in calls:
                        call.run()

    in_threads(*(lambda pairs=pairs: body(pairs) for pairs in work.values()))
    for i in range(len(devices)):
        torch.cuda.synchronize(i)
    for thread, pairs in work.items():
        for at, (_, calls) in enumerate(pairs):
            for call in calls:
                call.check(10 * thread + at % 2)


@two_gpus
@every_operator
def test_the_first_call_may_come_from_a_fresh_thread_on_the_second_gpu(gpu, name):
    """The current device is the first, in the thread as well; no call was made before."""
    run_python(f"""
        import threading
        import torch
        from cuda_calls import Call
        first, second = Call({name!r}, "cuda:0"), Call({name!r}, "cuda:1")
        torch.cuda.synchronize(1)
        thread = threading.Thread(target=second.run)
        thread.start()
        thread.join()
        torch.cuda.synchronize(1)
        second.check(0)
        first.run()
        first.check(0)
        assert torch.cuda.current_device() == 0
    """)


# --- The environment ---


def test_without_a_driver_the_cpu_works_and_the_error_says_why():
    said = run_python(
        """
        import numpy as np
        import nvfp4kern as nk
        q = nk.quantize(np.full((4, 32), 6, np.float32))
        assert (nk.gemm(q.data, q.data, q.scales, q.scales, out_dtype="float32") == 36 * 32).all()
        for row in nk.backends():
            assert row["available"] == (row["name"] == "cpu")
        try:
            nk.warmup("cuda")
        except nk.BackendError as error:
            print(error)
        """,
        NVFP4KERN_LIBCUDA="/nowhere/libcuda.so.1",
    )
    with_kernels = any("left out" not in (row["why_not"] or "") for row in nvfp4kern.backends()[1:])
    assert said.startswith("device: ") and ("/nowhere/libcuda.so.1" in said) == with_kernels, said


def test_gpu_tensors_without_a_driver_are_refused(gpu):
    """torch has its own way to the driver."""
    said = run_python(
        """
        import torch
        import nvfp4kern as nk
        x = torch.ones(4, 32, device="cuda")
        try:
            nk.quantize(x)
        except nk.BackendError as error:
            print(error)
        """,
        NVFP4KERN_LIBCUDA="/nowhere/libcuda.so.1",
        NVFP4KERN_BACKEND="",
    )
    assert "cuda:0" in said and "/nowhere/libcuda.so.1" in said


CALL_GEMV = """
    import nvfp4kern as nk
    from cuda_calls import Call
    call = Call("gemv_of_halves")
    try:
        call.run()
        call.check(0)
        print("right")
    except nk.BackendError as error:
        print(error)
"""


def test_ptx_text_from_a_folder_replaces_the_built_in_kernels(gpu, tmp_path):
    name = Call("gemv_of_halves").explain()["kernel"]
    image = f"{gpu.name}_gemv"
    said = run_python(CALL_GEMV, NVFP4KERN_PTX_DIR=str(tmp_path))
    assert said == f"NVFP4KERN_PTX_DIR: cannot read {tmp_path}/{image}.ptx\n"

    text = tmp_path / f"{image}.ptx"
    text.write_text(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f() { no.ptx; }\n"
    )
    said = run_python(CALL_GEMV, NVFP4KERN_PTX_DIR=str(tmp_path))
    assert said.startswith(f"cuLibraryLoadData of {image}: ") and "line 4; error" in said

    nvcc, source = shutil.which("nvcc"), CSRC / gpu.name / "gemv" / f"{image}.cu"
    if not nvcc or not source.is_file():
        pytest.skip("needs nvcc and the kernels' sources for the rest")
    flags = [f"-arch={TABLE[gpu.name].target}", "-std=c++17", "-fmad=false", f"-I{CSRC}"]
    subprocess.run([nvcc, "-ptx", *flags, "-o", text, source], check=True, capture_output=True)
    assert name in text.read_text()
    assert run_python(CALL_GEMV, NVFP4KERN_PTX_DIR=str(tmp_path)) == "right\n"


def test_a_smaller_gpu_is_believed(gpu):
    """NVFP4KERN_SMEM_LIMIT: what fits a device with 99 KB per CTA is planned, and right."""
    said = run_python(
        """
        from cuda_calls import OPERATORS, Call
        for name in OPERATORS:
            call = Call(name)
            call.run()
            call.check(0)
        print("right")
        """,
        NVFP4KERN_SMEM_LIMIT="101376",
    )
    assert said == "right\n"
