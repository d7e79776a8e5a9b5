"""Every operator as a call that can be repeated on new data, for tests of what surrounds kernels.

A Call owns its tensors. Its data is of the exact family, so that the GPU and the CPU backend must
write the same bytes: into poisoned outputs between guards, from inputs between NaNs.
"""

import ctypes
import os
import subprocess
import sys
import textwrap

import numpy as np
from generators import Guarded, raw, rng_of, surrounded

import nvfp4kern
from nvfp4kern.selftest.calls import OPERATORS, SIZES
from nvfp4kern.selftest.trees import difference, leaves, mapped, outputs


def same(name, got, want):
    assert difference(name, got, want) == ""


class Call:
    """One operator of OPERATORS on tensors of its own, filled from a seed."""

    def __init__(self, name, device="cuda", size="deep", seed=0, draw=rng_of):
        self.name, self.size, self.device, self.draw = name, size, device, draw
        self.function, args, options = self.made(seed)
        self.args, self.options = mapped(lambda t: surrounded(t, device), (args, options))
        result = self.function(*args, **options)
        self.outs = [Guarded(t.shape, t.dtype, device) for t in self.outputs_of(result)]
        self.out = [out.tensor for out in self.outs]
        if not isinstance(result, (list, tuple)):
            (self.out,) = self.out

    def made(self, seed):
        return OPERATORS[self.name](self.draw(seed), *SIZES[self.size])

    def staged(self, seed):
        """The inputs of another seed, on the device."""
        return mapped(lambda t: t.to(self.device), leaves(self.made(seed)[1:]))

    def inputs(self):
        return leaves((self.args, self.options))

    def outputs_of(self, result):
        return outputs(self.name, result)

    def copy(self, staged):
        """New inputs into the tensors that are there, and poison into the outputs."""
        for ours, new in zip(self.inputs(), staged, strict=True):
            ours.copy_(new)
        for out in self.outs:
            out.poison()
        return self

    def fill(self, seed):
        return self.copy(self.staged(seed))

    def run(self):
        return self.function(*self.args, out=self.out, **self.options)

    def explain(self):
        return nvfp4kern.explain(self.function.__name__, *self.args, **self.options)

    def check(self, seed=0):
        """What the outputs hold is what the CPU writes; around them nothing was written."""
        want = Call(self.name, "cpu", self.size, seed)
        want.run()
        for ours, theirs in zip(self.outs, want.outs, strict=True):
            same(self.name, ours.tensor, theirs.tensor)
        assert all(out.guards_intact() for out in self.outs)


def run_python(program, **environment):
    """In a fresh process that finds the modules that this one finds; its standard output."""
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path if folder)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Driver:
    """libcuda with errors as exceptions."""

    def __getattr__(self, name):
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)

        def call(*args):
            code = function(*args)
            assert code == 0, f"{name}: {code}"

        return call

    def current(self):
        context = ctypes.c_void_p()
        self.cuCtxGetCurrent(ctypes.byref(context))
        return context.value


def described(tensors):
    return [(t.dtype, tuple(t.shape), t.stride(), t.device.type) for t in tensors]


def assert_same(got, want):
    for ours, theirs in zip(leaves((got,)), leaves((want,)), strict=True):
        assert described([ours]) == described([theirs])
        np.testing.assert_array_equal(raw(ours), raw(theirs))
