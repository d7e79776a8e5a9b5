#!/usr/bin/env bash
# Every kernel under compute-sanitizer's memcheck, racecheck, initcheck and synccheck: tests/sanitize_gpu.sh [tool ..]
#
# $PYTHON must find nvfp4kern and a torch that sees a GPU. Each tool runs on each pretended GPU, all side by side.
# torch's allocator goes without its cache, so that an allocation ends where its tensor does and new memory is
# uninitialised.
set -euo pipefail
export LC_ALL=C

die() { echo "sanitize_gpu.sh: $*" >&2; exit 1; }

python=${PYTHON:-python3}
cases=$(cd "$(dirname "$0")" && pwd)/sanitize_cases.py
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
sanitizer=$(PATH="$PATH:/usr/local/cuda/bin" command -v compute-sanitizer) || die "no compute-sanitizer"

mapfile -t gpus < <("$python" "$cases" gpus) # each row's own kernels, on GPUs as tests/rows.py has them
[ ${#gpus[@]} -gt 0 ] || die "no row is available"

sanitized() { # tool, argument of the program
    local options=(--tool "$1" --error-exitcode 9 --print-limit 20)
    if [ "$1" = synccheck ]; then options+=(--num-cuda-barriers 65536); fi # of all CTAs of a launch
    if [ "$1" = memcheck ]; then options+=(--destroy-on-device-error kernel); fi # on to the next kernel
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 500 "$sanitizer" "${options[@]}" "$python" "$cases" "$2"
}

watched() { # tool; what all GPUs said, one after the other
    local code=0 i at pids=()
    at=$(mktemp -d -p "$reports")
    for i in "${!gpus[@]}"; do (export ${gpus[$i]}; sanitized "$1" run) > "$at/$i" 2>&1 & pids+=($!); done
    for i in "${!gpus[@]}"; do wait "${pids[$i]}" || code=$?; cat "$at/$i"; done
    return $code
}

findings() { # what a tool said, each after the case that it said it of
    grep -v 'Host Frame' | awk '/^=========/ { if (said) print said; said = ""; print; next } { said = $0 }'
}

echo "-- the sanitizer sees a bug"
if sanitized memcheck bug > "$reports/bug" 2>&1; then die "a read past the end of an allocation went unnoticed"; fi
grep -q 'Invalid __global__ read' "$reports/bug" || { cat "$reports/bug" >&2; die "expected an invalid read"; }
echo "found, as it must be"

declare -A started
names=()
begin=$SECONDS
for tool in "$@"; do
    watched "$tool" > "$reports/$tool" 2>&1 &
    started[$tool]=$!
done

echo "-- the kernels" # while tools watch them: torch's profiler takes longer than some tools
for i in "${!gpus[@]}"; do
    env ${gpus[$i]} "$python" "$cases" ran 2> "$reports/said.$i" > "$reports/ran.$i" &
    names+=($!)
done
for i in "${!gpus[@]}"; do
    wait "${names[$i]}" || { tail -n 20 "$reports/said.$i" >&2; die "a case failed on ${gpus[$i]}"; }
done
sort -u "$reports"/ran.* > "$reports/all"
"$python" "$cases" embedded | sort > "$reports/embedded"
echo "$(wc -l < "$reports/all") ran:" $(cat "$reports/all")
never=$(comm -13 "$reports/all" "$reports/embedded")

failed=
for tool in "$@"; do
    if wait "${started[$tool]}"; then
        echo "-- $tool, within $((SECONDS - begin)) s: $(grep 'SUMMARY' "$reports/$tool" | tr -d '\n')"
    else
        echo "-- $tool: FAILED within $((SECONDS - begin)) s"
        findings < "$reports/$tool" | head -n 300
        failed="$failed $tool"
    fi
done
[ -z "$failed" ] || die "errors found by:$failed"
[ -z "$never" ] || die "not every kernel ran:" $never
