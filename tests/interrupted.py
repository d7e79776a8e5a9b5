"""Interrupts at bytecodes: `python tests/interrupted.py --seed S --count N --only TEXT`.

KeyboardInterrupt comes before a bytecode of what loads, quantises or saves a small model: the first
and the last time that this bytecode runs, of every function of Python that has a part in it. Then
the model, or the directory, is as before or complete, and the exception is KeyboardInterrupt.
"""

import importlib.util
import os
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import campaign

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "models"))


class Tracer:
    """Counts bytecodes of files with `within` in their names, and raises before number `at`.
    `seen`: {(function, offset): [number of the first, of the last]}"""

    def __init__(self, within, at=None):
        self.within, self.at, self.count, self.seen = within, at, 0, {}

    def __call__(self, frame, event, _):
        if self.within not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.at is None:
                self.seen.setdefault((frame.f_code, frame.f_lasti), [self.count] * 2)[1] = (
                    self.count
                )
            elif self.count == self.at:
                raise KeyboardInterrupt
        return self

    def run(self, function):
        sys.settrace(self)
        try:
            function()
        finally:
            sys.settrace(None)


def interrupt(subject, number):
    came = None
    try:
        Tracer(subject.WITHIN, number).run(subject.run)
    except BaseException as error:
        came = error
    if came is not None and type(came) is not KeyboardInterrupt:
        yield f"raised {came!r}"
    yield from subject.wrong(finished=came is None)


def points(make):
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    subject = make()
    tracer = Tracer(subject.WITHIN)
    tracer.run(subject.run)
    assert not list(subject.wrong(finished=True))
    for (code, offset), numbers in tracer.seen.items():
        if code is Tracer.run.__code__:
            continue
        for number in sorted(set(numbers)):
            file = os.path.relpath(code.co_filename, HERE.parent)
            line = next(n for a, b, n in code.co_lines() if a <= offset < b)
            name = f"{file}:{line} {code.co_qualname}, offset {offset}, bytecode {number}"
            yield name, partial(interrupt, subject, number)


def subjects(folder):
    import held
    import tiny

    moe = tiny.make(folder / "moe", "qwen3_moe", "modelopt-nvfp4", shards=2)
    dense = tiny.make(folder / "dense", "llama", "ct-w4a4", spread=True)
    found = {
        "load modelopt experts": partial(held.Load, moe),
        "load compressed-tensors": partial(held.Load, dense),
        "quantize": partial(held.Quantize, moe),
        "save to a new directory": partial(held.Save, dense, folder / "new", False),
        "save to an empty directory": partial(held.Save, dense, folder / "empty", True),
    }
    if importlib.util.find_spec("transformers"):
        found["transformers loads"] = partial(held.Pretrained, moe)
        found["transformers quantizes"] = partial(held.Pretrained, moe, quantize=True)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        cases = {name: partial(points, make) for name, make in subjects(Path(made)).items()}
        status = campaign.main(__doc__, cases, count=30)
    sys.exit(status)
