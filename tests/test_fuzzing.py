"""Malformed inputs by the thousand. `python tests/fuzzing.py --inputs 100000` is the whole campaign."""

import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing import SHARES

SCRIPT = Path(__file__).with_name("fuzzing.py")
COUNTS = {
    "toml": 4000,
    "heads": 4000,
    "data": 3000,
    "tokens": 3000,
    "stores": 1000,
    "records": 1000,
    "exports": 300,
    "models": 300,
    "http": 1000,
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", SHARES)
def test_malformed_inputs_are_refused(target):
    command = [sys.executable, str(SCRIPT), "--target", target, "--inputs", str(COUNTS[target]), "--seed", "1"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
