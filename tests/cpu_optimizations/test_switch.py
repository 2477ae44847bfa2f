"""The one switch of all optimizations for CPUs."""

import os
import subprocess
import sys

import pytest
import torch

from bertvision import cpu_optimizations
from bertvision.cpu_optimizations import enabled, read_switch, set_enabled, use_cpu_optimizations
from bertvision.cpu_optimizations.dropout import FastDropout
from bertvision.cpu_optimizations.partial_embedding import PartialEmbedding
from bertvision.cpu_optimizations.two_readers import map_two_at_a_time
from bertvision.encoders import load_encoder


def test_the_switch_is_on_by_default_and_comes_back():
    assert enabled()
    with pytest.raises(KeyError), use_cpu_optimizations(False):
        assert not enabled()
        with use_cpu_optimizations(True):
            assert enabled()
        raise KeyError
    assert enabled()


@pytest.mark.parametrize("value, expected", [("0", False), ("false", False), ("1", True), (None, True)])
def test_the_environment_variable_is_read_on_request(monkeypatch, value, expected):
    monkeypatch.delenv("BERTVISION_CPU_OPTIMIZATIONS", raising=False)
    if value is not None:
        monkeypatch.setenv("BERTVISION_CPU_OPTIMIZATIONS", value)
    try:
        read_switch()
        assert enabled() is expected
    finally:
        set_enabled(True)


def test_the_plain_encoder_has_the_modules_of_transformers_only(tiny):
    with use_cpu_optimizations(False):
        encoder = load_encoder(str(tiny)).encoder
        encoder.restrict_vocabulary(torch.arange(5))
    kinds = {type(module) for module in encoder.model.modules()}
    assert not kinds & {FastDropout, PartialEmbedding}
    assert all(kind.__module__.startswith(("torch.", "transformers.")) for kind in kinds)
    assert encoder.model.config._attn_implementation == "sdpa"


def test_two_readers_keep_the_order_and_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert list(map_two_at_a_time(lambda i: i * i, range(20))) == [i * i for i in range(20)]
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_importing_the_switch_does_not_import_torch():
    code = "import sys; from bertvision.cpu_optimizations import set_environment; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
    assert callable(cpu_optimizations.set_environment)
