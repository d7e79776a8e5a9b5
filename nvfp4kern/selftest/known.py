"""What the simulated GPUs compute: `python -m tests.ptxsim shipped` writes the file."""

import json
from pathlib import Path

SIMULATED = Path(__file__).with_name("simulated.json")


def simulated():
    """{compute capability: {"sms", "tiles": {tile: what the simulator made of it}, "kept"}}"""
    return json.loads(SIMULATED.read_text())


def tiles_of(capability):
    """Those of this capability, or of one that runs the same machine code: 10.0 for 10.3."""
    found = simulated()
    major = capability.partition(".")[0]
    return found.get(capability, found.get(f"{major}.0", {"tiles": {}}))["tiles"]
