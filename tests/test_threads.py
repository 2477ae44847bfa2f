"""Threads of torch."""

import subprocess
import sys

import pytest

CODE = """
import os, signal, torch
from bertvision import threads, trained_model
threads.set_num_threads(2)
values = torch.randn(400, 400, 64)
expected = values.exp().sum()
child = os.fork()
if child == 0:
    signal.alarm(20)
    assert torch.isclose(values.exp().sum(), expected)
    os._exit(0)
print(os.waitpid(child, 0)[1], torch.get_num_threads())
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork here")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0", "2"], done.stderr
