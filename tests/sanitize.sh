#!/usr/bin/env bash
# The operators' tests under AddressSanitizer and UndefinedBehaviorSanitizer: tests/sanitize.sh [pytest arguments]
# Threads that write what calls read (tests/races.py) instead: tests/sanitize.sh --races SECONDS
# Calls with hostile arguments (tests/fuzz.py) instead: tests/sanitize.sh --fuzz CALLS [SEED]
#
# Builds a copy of the tree into a temporary folder (the normal install and build/ stay as they are) and runs $PYTHON,
# which must have the test extra installed. torch takes part: it runs under a preloaded libasan. Leaks of Python itself
# drown ours, so detect_leaks=0; tests/binding/test_lifetime.py counts ours. Built without kernels: tests/sanitize_gpu.sh is theirs.
set -euo pipefail

die() { echo "sanitize.sh: $*" >&2; exit 1; }

python=${PYTHON:-python}
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

cp -r "$root"/{pyproject.toml,setup.py,build_tools,README.md,LICENSE,csrc,nvfp4kern,tests} "$tree"
find "$tree" \( -name '*.so' -o -name '*.egg-info' -o -name __pycache__ \) -prune -exec rm -rf {} +
NVFP4KERN_CUDA=0 NVFP4KERN_SANITIZE=1 "$python" -m pip install --quiet --no-deps --target "$tree/installed" "$tree"
rm -rf "$tree/nvfp4kern"

cc=${CC:-gcc}
runtime=$("$cc" -print-file-name=libasan.so)
[ -e "$runtime" ] || die "$cc has no libasan.so"

sanitized() {
    # Python's own pools hide overruns: every allocation goes to malloc. libasan wraps the throwing of C++ exceptions,
    # as torch does, and finds what it wraps only where libstdc++ is there from the start.
    env PYTHONPATH="$tree/installed" PYTHONMALLOC=malloc NVFP4KERN_SANITIZED=1 \
        LD_PRELOAD="$(realpath "$runtime") $("$cc" -print-file-name=libstdc++.so.6)" \
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:log_path=$tree/report" \
        UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:log_path=$tree/report" \
        "$python" "$@"
}

echo "-- the sanitizers see a bug"
# An array that lies about its size: the library must be caught reading past the end, in its own code.
cat > "$tree/bug.py" <<'PYTHON'
import numpy as np
import nvfp4kern

assert "installed" in nvfp4kern.__file__, nvfp4kern.__file__
assert "libasan" in open("/proc/self/maps").read()
real = np.zeros(4096, np.uint8)
lie = np.lib.stride_tricks.as_strided(real, (64, 128), (128, 1))
nvfp4kern.to_blocked(lie)
PYTHON
if sanitized "$tree/bug.py" 2> "$tree/bug.log"; then
    die "a read past the end of a buffer went unnoticed"
fi
cat "$tree"/report.* >> "$tree/bug.log" 2> /dev/null || true
rm -f "$tree"/report.*
grep -q 'heap-buffer-overflow' "$tree/bug.log" && grep -q 'cpu_relayout' "$tree/bug.log" || {
    cat "$tree/bug.log" >&2
    die "expected a report of a heap-buffer-overflow in cpu_relayout"
}
# A shared object that UBSan instrumented calls its handlers.
nm -D --undefined-only "$tree"/installed/nvfp4kern/_C.abi3.so | grep -q __ubsan_handle
echo "found, as it must be"

# Reports go to files: pytest catches what a dying process writes. That an allocation failed is no finding: a test asks
# for more than there is, and allocator_may_return_null=1 lets it.
finish() {
    for report in $(compgen -G "$tree/report.*"); do
        sed -i '/WARNING: AddressSanitizer failed to allocate/d' "$report"
        [ -s "$report" ] || rm "$report"
    done
    if compgen -G "$tree/report.*" > /dev/null; then
        cat "$tree"/report.* >&2
        die "the sanitizers found something, see above"
    fi
    exit "$1"
}

cd "$tree"
code=0
if [ "${1:-}" = --races ]; then
    echo "-- the races"
    sanitized tests/races.py "${2:?seconds}" || code=$?
    finish $code
fi
if [ "${1:-}" = --fuzz ]; then
    echo "-- hostile arguments"
    sanitized tests/fuzz.py --calls "${2:?calls}" --seed "${3:-0}" || code=$?
    finish $code
fi
echo "-- the tests"
if [ $# -eq 0 ]; then
    # Left out: what asserts memory or starts programs of its own, nvcc, which libasan ends, among them; torch's
    # compilers, since test_torch_library.py calls the same operators; torch's fp8 product, which takes more time than
    # ours beside it; what is about text; what needs gigabytes; what is about benchmarks or models, whose calls are the
    # operators'; and the simulated GPU, which is a program of its own.
    set --
    # Instrumented code of one thread is most of the time: a process for each of two cores.
    if "$python" -c 'import xdist' 2> /dev/null; then set -- -n 2; fi
    for test in ptxsim cuda/test_ptx_layer.py cuda/test_launch_layer.py cuda/test_peer_kernels.py binding/test_lifetime.py \
        operators/test_reference.py operators/test_scaled_mm.py \
        test_source_rules.py test_documents.py test_machine_code.py test_gpu_fences.py test_issue_loops.py \
        test_fit_costs.py test_repetition.py test_compare_builds.py test_find_cliffs.py test_bench.py test_bench_pictures.py \
        test_bench_resumed.py test_bench_humming.py test_bench_layers.py test_decode.py test_dit_block.py \
        engines/test_vllm_benchmark.py models test_checkout.py test_mutate_host.py \
        test_blackwell_model.py test_selftest.py test_selftest_runs.py binding/test_torch_compile.py; do
        [ -e "tests/$test" ] || die "there is no tests/$test to leave out"
        set -- "$@" "--ignore=tests/$test"
    done
    # Without --all costly tests run on the CPU's fastest path alone, others on each.
    set -- "$@" -m "not large" --hypothesis-seed=0
fi
sanitized -m pytest -q -p no:cacheprovider "$@" || code=$?
finish $code
