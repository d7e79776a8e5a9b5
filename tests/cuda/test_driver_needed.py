"""A driver too old for the kernels, by a stand-in: what the error, backends() and info say."""

import re
import subprocess
from pathlib import Path

import pytest
from cuda_calls import run_python
from ptxsim import build

import nvfp4kern

NEEDED = r"a driver of CUDA 1\d\.\d \(r\d+\) or newer, found "
pytestmark = [
    pytest.mark.skipif(not build.find_cc(), reason="no cc"),
    pytest.mark.skipif(
        not any(row["code"] for row in nvfp4kern.backends()), reason="a build without kernels"
    ),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The stand-in with a macro defined, or as it is."""

    def compiled(macro="AS_IT_IS"):
        library = tmp_path_factory.mktemp(macro) / "libcuda.so"
        source = Path(__file__).with_name("refusing_driver.c")
        flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-D{macro}"]
        subprocess.run([build.find_cc(), *flags, source, "-o", library], check=True)
        return str(library)

    return compiled


def error_of_warmup(library):
    return run_python(
        """
        import nvfp4kern as nk
        try:
            nk.warmup("cuda")
        except nk.BackendError as error:
            print(error)
        """,
        NVFP4KERN_LIBCUDA=library,
        NVFP4KERN_PTX_DIR="",
    )


@pytest.mark.parametrize(
    "macro, call", [("AS_IT_IS", "cuLibraryLoadData"), ("LAZY", "cuKernelGetFunction")]
)
def test_a_refused_image_names_both_drivers_and_the_package(driver, macro, call):
    said = error_of_warmup(driver(macro))
    assert re.fullmatch(
        rf"{call} of sm\w+: CUDA_ERROR_UNSUPPORTED_PTX_VERSION \(.*\); "
        rf"the kernels need {NEEDED}CUDA 12\.8; "
        r"on data-center GPUs the package cuda-compat-1\d-\d will do\n",
        said,
    ), said


def test_a_driver_without_an_entry_is_too_old(driver):
    said = error_of_warmup(driver("LACKS_LAUNCH"))
    assert re.search(
        r"libcuda.so has no cuLaunchKernelEx: it is too old, "
        r"expected CUDA 1\d\.\d \(r\d+\) or newer, found CUDA 12\.8",
        said,
    ), said


@pytest.mark.parametrize("there", [True, False])
def test_backends_and_info_say_what_is_needed_and_what_was_found(driver, there):
    said = run_python(
        """
        import nvfp4kern
        from nvfp4kern import __main__
        for row in nvfp4kern.backends():
            if row["code"]:
                print(row["needs"])
            else:
                assert row["needs"] is None
        __main__.info()
        """,
        NVFP4KERN_LIBCUDA=driver() if there else "/nowhere/libcuda.so.1",
    )
    rows = sum(bool(row["code"]) for row in nvfp4kern.backends())
    said = re.sub(r"\n {9}", " ", said)  # info breaks its lines
    found = re.findall(NEEDED + r"(.*)", said)
    assert found == ["CUDA 12.8" if there else "none"] * 2 * rows
