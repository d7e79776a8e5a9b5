"""Operators while memory runs out: `python tests/failing_memory.py --seed S --count N --only TEXT`.

Of what a call allocates, Python's objects and threads included, the n-th fails, and as many after
it as FAILURES says, but for what torch allocates. The call raises MemoryError and leaves its
inputs, or it gives the right answer. The next call is right, and nobody keeps a reference.
"""

import gc
import sys
from functools import partial

import calls
import campaign
import torch
from exporters import Legacy, Versioned
from faults import MEMORY, THREAD, during, preloaded
from generators import Guarded

import nvfp4kern

FORMS = {
    "torch": lambda t: t,
    "numpy": lambda t: t.numpy(),
    "versioned": Versioned,
    "legacy": Legacy,
}
ALLOCATIONS = MEMORY | THREAD
FAILURES = (1, 3, 20)
"""How many fail, one after the other. Python ends the process where hundreds do."""


def tensors_in(value):
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_in(item)]
    value = value.tensor if isinstance(value, Guarded) else value
    return [value] if isinstance(value, torch.Tensor) else []


def offered(value, form):
    """A call's argument, with tensors in a form that has their dtype."""
    value = calls.tensors_of(value)
    if isinstance(value, (list, tuple)):
        return type(value)(offered(item, form) for item in value)
    if not isinstance(value, torch.Tensor) or (form == "numpy" and value.dtype not in NUMPY):
        return value
    return FORMS[form](value)


NUMPY = {torch.uint8, torch.float16, torch.float32, torch.int32}


class Subject:
    """A call, its answer, and who holds its arguments."""

    def __init__(self, base, form, given):
        self.args = base("cpu")
        if not given:
            del self.args["out"]
        self.values = {
            name: offered(value, "torch" if name == "out" else form)
            for name, value in self.args.items()
        }
        self.function = getattr(nvfp4kern, calls.FUNCTIONS[base])
        self.positional, self.keywords = calls.arranged(calls.FUNCTIONS[base], self.values)
        self.inputs = tensors_in([v for name, v in self.args.items() if name != "out"])
        self.copies = [t.clone() for t in self.inputs]
        self.answer = copied(self.call())

    def call(self):
        return self.function(*self.positional, **self.keywords)

    def objects(self):
        flat = [*self.positional, *self.keywords.values()]
        lists = [v for v in flat if isinstance(v, (list, tuple))]
        flat += [item for v in lists for item in v]
        return [v for v in flat if not isinstance(v, (int, float, str, type(None)))]

    def counts(self):
        return [sys.getrefcount(value) for value in self.objects()]

    def points(self):
        *_, total, _ = during(self.call, ALLOCATIONS)
        for failures in FAILURES:
            for n in range(1, total + 1):
                yield f"allocation {n} of {total}, {failures}", partial(self.fail, n, failures)

    def fail(self, n, failures):
        before = self.counts()
        answer, raised, _, what = during(self.call, ALLOCATIONS, n, n + failures - 1)
        name = repr(raised)
        if raised is None and not same(copied(answer), self.answer):
            yield f"another answer after {what}"
        if raised is not None and type(raised) is not MemoryError:
            yield f"{name} after {what}"
        raised = answer = None
        if any(not torch.equal(a, b) for a, b in zip(self.inputs, self.copies, strict=True)):
            yield f"an input changed, {name} after {what}"
        if self.counts() != before and (gc.collect() < 0 or self.counts() != before):
            yield f"references {before} became {self.counts()}, {name} after {what}"
        if not same(copied(self.call()), self.answer):
            yield f"the next call is wrong, {name} after {what}"


def copied(result):
    if isinstance(result, (list, tuple)):
        return [copied(item) for item in result]
    result = getattr(result, "tensor", result)  # a global scale comes back as it was given
    return None if result is None else torch.as_tensor(result).clone()


def same(a, b):
    """To the bit."""
    if isinstance(a, list):
        return all(map(same, a, b))
    return a is b or torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def cases():
    return {
        f"{base.__name__} {form}{' out' * given}": partial(make, base, form, given)
        for base in calls.FUNCTIONS
        for form in FORMS
        for given in (True, False)
        if given or form in ("torch", "numpy")
    }


def make(base, form, given):
    torch.set_num_threads(1)
    return Subject(base, form, given).points()


if __name__ == "__main__":
    preloaded()
    sys.exit(campaign.main(__doc__, cases(), count=20))
