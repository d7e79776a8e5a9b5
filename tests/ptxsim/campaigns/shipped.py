"""The simulator's bits that the package has with it, for `python -m nvfp4kern selftest`.

A GPU of each capability, with as many SMs as most real ones, runs every tile on data that rounds.
"""

import json
import os
import subprocess
import sys

from .. import build
from . import package

SMS = {"8.0": 108, "9.0": 132, "10.0": 148, "12.0": 170}


def made(only=""):
    """{"tiles", "kept"} of this process's GPU, of tiles that begin so."""
    from nvfp4kern.selftest import bits, probes, trees

    from .. import fake_cuda  # noqa: F401  before anything asks torch for a GPU

    call, tiles = bits.rounding_call("cuda"), {}
    for whole, row, tile in bits.tiles():
        found = bits.digested(whole, row, tile, call) if whole.startswith(only) else None
        if found:
            tiles[whole] = found[0] | {"outputs": trees.digest(found[1].outs)}
    asked = (probes.bits_within_a_product, probes.bits_of_the_accumulator)
    return {"tiles": tiles, "kept": {probe.__name__: probe("cuda")["kept"] for probe in asked}}


def of_capability(cc, only=""):
    """The same, from a process that has such a GPU."""
    settings = build.environment(cc=cc, sms=SMS[cc])
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p)
    program = f"import json; from {__name__} import made; print(json.dumps(made({only!r})))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | settings | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {"sms": SMS[cc]} | json.loads(done.stdout)


def run(options):
    from nvfp4kern.selftest.known import SIMULATED

    found = {cc: of_capability(cc) for cc in SMS}
    package.write_results(SIMULATED, found, depth=3)
    print({cc: len(part["tiles"]) for cc, part in found.items()}, SIMULATED)
    return 0


def add_command(commands):
    command = commands.add_parser("shipped", help="writes the bits that selftest compares with")
    command.set_defaults(work=run)
