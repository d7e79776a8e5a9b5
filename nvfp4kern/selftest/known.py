"""What the simulated GPUs compute: `python -m tests.ptxsim shipped` writes the file."""

import json
from pathlib import Path

SIMULATED = Path(__file__).with_name("simulated.json")


def simulated():
    """{compute capability: {"sms", "tiles": {tile: what the simulator made of it}, "kept"}}"""
    return json.loads(SIMULATED.read_text())
