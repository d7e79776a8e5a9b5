#!/usr/bin/env bash
# The wheel for 64-bit Arm, and the main job with it in an emulator: tests/aarch64.sh [FOLDER for the wheel]
#
# Needs a Debian with gcc-aarch64-linux-gnu and qemu-user, and its package lists; nothing is installed. $PYTHON has
# setuptools and apache-tvm-ffi. Kernels are bytes to a compiler of another processor, so the wheel has them all;
# NVFP4KERN_CUDA=0 leaves them out. The emulator shows that the CPU's code is right, not how fast it is.
set -euo pipefail
export LC_ALL=C PIP_DISABLE_PIP_VERSION_CHECK=1

die() { echo "aarch64.sh: $*" >&2; exit 1; }

python=${PYTHON:-python3}
tree=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheels=$(realpath -m "${1:-$work/wheels}")
TAG=manylinux_2_34_aarch64
for tool in aarch64-linux-gnu-gcc qemu-aarch64 dpkg apt-get; do
    command -v $tool > /dev/null || die "no $tool: apt-get install gcc-aarch64-linux-gnu qemu-user"
done

echo "-- the wheel"
cp -r "$tree"/{pyproject.toml,setup.py,MANIFEST.in,build_tools,csrc,nvfp4kern,README.md,LICENSE} "$work"
(cd "$work" && find . -name '*.so' -delete && CC=aarch64-linux-gnu-gcc LDSHARED="aarch64-linux-gnu-gcc -shared" \
    "$python" setup.py -q bdist_wheel --plat-name $TAG --dist-dir "$wheels" > "$work/log" 2>&1) || { cat "$work/log"; exit 1; }
wheel=$(ls "$wheels"/nvfp4kern-*-cp311-abi3-$TAG.whl)
echo "$(basename "$wheel"), $(wc -c < "$wheel") bytes"

echo "-- Debian's Python for it, and NumPy"
mkdir -p "$work"/{lists/partial,debs,sysroot,whl,packages}
options=(-oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists="$work/lists" -qq)
apt-get "${options[@]}" update
(cd "$work/debs" && apt-get "${options[@]}" download python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 \
    libgcc-s1 libstdc++6 zlib1g libexpat1 libbz2-1.0 liblzma5 libffi8 libssl3 libuuid1 libsqlite3-0 2> /dev/null)
for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/sysroot"; done
"$python" -m pip download --quiet --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
    -d "$work/whl" 'numpy<2.4' rich
for file in "$work"/whl/*.whl "$wheel"; do "$python" -m zipfile -e "$file" "$work/packages"; done

echo "-- the main job, emulated"
cd "$work/packages"
PYTHONPATH=$PWD qemu-aarch64 -L "$work/sysroot" "$work/sysroot/usr/bin/python3.11" -m nvfp4kern
