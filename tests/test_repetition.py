"""What stands twice in csrc does not become more, and what counts it sees what it should."""

import pytest
from repetition import NAMES, definitions, repeated_lines, repeated_names


def test_names_stand_once():
    found = repeated_names()
    assert len(found) <= NAMES, "python tests/repetition.py lists them"
    assert 20 < len(found) or NAMES < 40, "lower NAMES with what there is"


def test_six_equal_lines_stand_once():
    assert repeated_lines() == []


@pytest.mark.parametrize(
    "source, names",
    [
        ("static int f(int x)\n{\n    return g(x);\n}\nint g(int);", {"f"}),
        ("typedef struct tile {\n    int m;\n} tile;\ntypedef struct tile also;", {"tile", "also"}),
        ("static const tile t[] = {{1, 2}};\nenum { A, B };\nextern int x;", set()),
        ("template <int N, class T> struct ring {\n    T t[N];\n    int f() {}\n};", {"ring"}),
        ("template <int N>\n__device__ inline void load(int (&x)[N])\n{\n}", {"load"}),
        ('extern "C" __global__ void __launch_bounds__(32 * 8, 1) kernel(int x)\n{\n}', set()),
        ("namespace {\n__device__ __forceinline__ int f() {}\n}\nint g() {}", {"f", "g"}),
        ("using word = uint32_t; /* int f() {} */\n#define F() int h() {}\n", {"word"}),
    ],
)  # fmt: skip
def test_definitions(source, names):
    assert definitions(source) == names


def tree(folder, **files):
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_what_is_compiled_together_is_an_overload(tmp_path):
    one, other = "int f(int x) { return x; }\n", "int f(float x) { return 1; }\n"
    csrc = tree(
        tmp_path, a_cuh=one, b_cuh=other, c_cu='#include "a.cuh"\n', d_cu='#include "b.cuh"\n'
    )
    assert repeated_names(csrc) == {"f": ["a.cuh", "b.cuh"]}
    tree(tmp_path, c_cu='#include "a.cuh"\n#include "b.cuh"\n')
    assert repeated_names(csrc) == {}


def test_runs_of_lines(tmp_path):
    lines = [f"call({i}); /* here */" for i in range(7)]
    again = "\n}\n\n".join(line.replace(" /* here */", "").replace("(", " (") for line in lines)
    csrc = tree(tmp_path, a_c="\n".join(lines), b_c=f"#include <x.h>\n{again}\nlast();")
    assert repeated_lines(csrc) == [("a.c", 1, "b.c", 2, 7)]
    tree(tmp_path, b_c=f"/* As in a.c: another compiler. */\n{again}")
    assert repeated_lines(csrc) == []
    tree(tmp_path, b_c="\n".join(lines[:5]))
    assert repeated_lines(csrc) == []
