"""csrc/cuda beyond what the product's kernels use of it: clusters along both axes, every kind of
tensor map, ranges of compute capabilities. Compiled by itself, on the simulated GPU."""

import ctypes
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_calls import run_python
from ptxsim import build, gpu

sys.path.insert(0, str(Path(__file__).parents[2] / "build_tools"))
import kernels  # noqa: E402

missing = [
    name for name, path in [("cc", build.find_cc()), ("nvcc", build.find_nvcc())] if not path
]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")

# By nk_dtype: the driver's number of the type, bytes of an element.
TYPES = [(0, 1), (0, 1), (0, 1), (6, 2), (9, 2), (7, 4), (3, 4)]
FLOATS = (3, 4, 5)  # of nk_dtype
SWIZZLES = [0, 32, 64, 128]  # bytes, as the driver numbers them
ANY_NEWER = 2**31 - 1


class Layer:
    """The functions of launch_layer.c, with errors as exceptions."""

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))
        results = {"message": ctypes.c_char_p, "why_not": ctypes.c_char_p}
        for name, kind in (results | {"serves": ctypes.c_bool, "is_ready": ctypes.c_bool}).items():
            getattr(self.library, f"layer_{name}").restype = kind

    def __getattr__(self, name):
        function = getattr(self.library, f"layer_{name}")

        def call(*args):
            code = function(*args)
            if code:
                raise RuntimeError(self.library.layer_message().decode())

        return call


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    csrc = build.CSRC
    target = tmp_path_factory.mktemp("layer") / "layer.so"
    sources = [Path(__file__).with_name("launch_layer.c"), *sorted((csrc / "cuda").glob("*.c"))]
    sources = [path for path in sources if not path.name.startswith("cuda_gemv")]  # these plan
    sources += [csrc / "nk_status.c", csrc / "nk_settings.c"]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    flags += ["-Werror", "-shared", "-Wl,-z,defs", f"-I{csrc}"]
    flags.append(f"-I{kernels.include_folder(Path(build.find_nvcc()))}")
    command = [build.find_cc(), *flags, *sources, "-o", target, "-ldl", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    gpu.configure(sms=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVFP4KERN_LIBCUDA", str(build.simulator()))
        patch.delenv("NVFP4KERN_PTX_DIR", raising=False)
        layer = Layer(target)
        gpu.simulator()
        assert layer.library.layer_serves(90, 90)  # opens the driver
        yield layer


def ints(*values):
    return (ctypes.c_int32 * len(values))(*values)


class Module:
    """A gpu.Module whose launches go through the layer."""

    def __init__(self, layer, ptx, name):
        self.layer, self.name = layer, name
        layer.kept = name.encode(), ptx.encode()  # the C side has their addresses
        layer.library.layer_kernel(*layer.kept)

    def launch(self, name, *args, grid=1, block=32, shared_bytes=0, cluster=(0, 0)):
        assert name == self.name
        kept = [gpu.raw_argument(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(arg) for arg in kept))
        ctas = ints(*gpu.three(grid))
        cluster = (cluster, 1) if isinstance(cluster, int) else cluster
        self.layer.launch(ctas, ints(*cluster), block, shared_bytes, pointers)


def encode(layer, address, dtype, dims, strides, box, swizzle=0, l2=0, nan=False):
    record = ctypes.create_string_buffer(128 + 64)
    at = (ctypes.addressof(record) + 63) // 64 * 64
    layer.encode(
        ctypes.c_void_p(address), dtype, len(dims), (ctypes.c_uint64 * 5)(*dims),
        (ctypes.c_uint64 * 4)(*strides), (ctypes.c_uint32 * 5)(*box), swizzle, l2, nan,
        ctypes.c_void_p(at),
    )  # fmt: skip
    return ctypes.string_at(at, 128)


# --- Clusters ---

WHERE = """
mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x;
mad.lo.u32 %r3, %r1, %r2, %r0;
mul.wide.u32 %rd1, %r3, 16; add.u64 %rd2, %rd0, %rd1;
mov.u32 %r4, %cluster_ctaid.x; mov.u32 %r5, %cluster_ctaid.y;
mov.u32 %r6, %cluster_nctaid.x; mov.u32 %r7, %cluster_nctaid.y;
st.global.u32 [%rd2], %r4; st.global.u32 [%rd2+4], %r5;
st.global.u32 [%rd2+8], %r6; st.global.u32 [%rd2+12], %r7;
"""


@pytest.mark.parametrize("cluster", [(0, 0), (1, 1), (2, 1), (1, 2), (4, 2), (8, 1), (1, 8)])
def test_clusters_along_x_and_y(layer, cluster):
    module = Module(layer, gpu.kernel(WHERE), "f")
    out = gpu.Memory(np.full((8, 16, 4), 99, np.uint32))
    module.launch("f", out, grid=(16, 8), block=1, cluster=cluster)
    x, y = (max(size, 1) for size in cluster)
    for row, col in itertools.product(range(8), range(16)):
        assert out.read()[row, col].tolist() == [col % x, row % y, x, y]


def test_a_grid_of_broken_clusters_is_refused(layer):
    module = Module(layer, gpu.kernel(WHERE), "f")
    out = gpu.Memory(np.zeros((8, 16, 4), np.uint32))
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx of f: CUDA_ERROR_"):
        module.launch("f", out, grid=(16, 7), block=1, cluster=(1, 2))


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2)])
def test_the_shape_of_a_cluster_does_not_matter_for_the_room(layer, cluster):
    Module(layer, gpu.kernel(WHERE), "f")
    found = []
    for shape in (cluster, cluster[::-1]):
        clusters = ctypes.c_int32(-1)
        layer.clusters_at_once(ints(*shape), 1024, 200 << 10, ctypes.byref(clusters))
        found.append(clusters.value)
    assert found[0] == found[1] > 0
    assert found[0] <= 8 // (cluster[0] * cluster[1])  # 8 SMs, one such CTA each


# --- Tensor maps ---


def by_the_driver(address, kind, dims, strides, box, swizzle, l2, fill):
    """What the driver itself makes of these numbers."""
    record = ctypes.create_string_buffer(128 + 64)
    at = (ctypes.addressof(record) + 63) // 64 * 64
    ones = (ctypes.c_uint32 * 5)(1, 1, 1, 1, 1)
    code = gpu.library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), kind, len(dims), ctypes.c_void_p(address),
        (ctypes.c_uint64 * 5)(*dims), (ctypes.c_uint64 * 4)(*strides),
        (ctypes.c_uint32 * 5)(*box), ones, 0, swizzle, l2, fill,
    )  # fmt: skip
    assert code == 0
    return ctypes.string_at(at, 128)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", range(len(TYPES)))
def test_maps_say_what_was_asked(layer, dtype, rank):
    kind, size = TYPES[dtype]
    memory = gpu.Memory(np.zeros(1 << 16, np.uint8))
    dims = [256 // size, 10, 3, 2, 2][:rank]
    strides = [256, 2560, 7680, 15360][: rank - 1]
    for swizzle, l2, nan in itertools.product(range(4), range(4), range(1 + (dtype in FLOATS))):
        box = [(SWIZZLES[swizzle] or 16) // size, 8, 2, 1, 1][:rank]
        numbers = dims, strides, box, swizzle, l2, nan
        found = encode(layer, memory.address, dtype, *numbers)
        assert found == by_the_driver(memory.address, kind, *numbers), (swizzle, l2, nan)


def test_a_map_that_the_driver_refuses_is_named(layer):
    """Rows of a box that are longer than those of the swizzle."""
    memory = gpu.Memory(np.zeros(1 << 16, np.uint8))
    with pytest.raises(RuntimeError, match="cuTensorMapEncodeTiled of the boxes: CUDA_ERROR_"):
        encode(layer, memory.address, 3, (128, 8), (256,), (128, 8), swizzle=3)


# --- Rows ---


@pytest.mark.parametrize("oldest, newest", [(80, ANY_NEWER), (90, 90), (90, 93), (80, 90)])
def test_a_row_serves_its_range(layer, oldest, newest):
    assert layer.library.layer_serves(oldest, newest)
    assert layer.library.layer_why_not(oldest, newest) is None


@pytest.mark.parametrize(
    "oldest, newest, said",
    [
        (80, 89, "8.0 to 8.9"),
        (100, 100, "10.0"),
        (100, 103, "10.0 to 10.3"),
        (120, ANY_NEWER, "12.0 or newer"),
    ],
)
def test_a_row_says_what_it_would_serve(layer, oldest, newest, said):
    assert not layer.library.layer_serves(oldest, newest)
    why = layer.library.layer_why_not(oldest, newest).decode()
    assert why == f"no GPU of compute capability {said}"


@pytest.mark.parametrize("variable", ["NVFP4KERN_SM_LIMIT", "NVFP4KERN_SMEM_LIMIT"])
def test_a_limit_is_a_number(variable):
    for text in ("many", "0", "9999999999"):
        settings = {"NVFP4KERN_LIBCUDA": str(build.simulator()), variable: text}
        said = run_python(
            "import nvfp4kern; print(nvfp4kern.backends()[-1]['why_not'])", **settings
        )
        expected = f"{variable}: '{text}', expected a number from 1 to {2**31 - 1}\n"
        assert said == expected or said.startswith("left out")


def test_a_row_is_warmed_up_by_the_kernels_of_its_folder(layer):
    Module(layer, gpu.kernel(WHERE), "f")
    assert not layer.library.layer_is_ready()
    layer.warm_up()
    assert layer.library.layer_is_ready()
    Module(layer, gpu.kernel(WHERE), "missing")
    with pytest.raises(RuntimeError, match="cuLibraryGetKernel of missing: "):
        layer.warm_up()
