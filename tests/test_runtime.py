import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from bertvision import runtime
from bertvision.errors import BertVisionError


def test_biases_and_norms_do_not_decay():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    decayed, plain = runtime.optimizer_for(model, 1e-3, 0.1).param_groups
    assert [p.ndim for p in decayed["params"]] == [2] and decayed["weight_decay"] == 0.1
    assert {p.ndim for p in plain["params"]} == {1} and plain["weight_decay"] == 0.0


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("native", [True, False])
def test_precision_follows_the_machine(monkeypatch, native):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": native})
    assert runtime.find_precision("auto") == ("bfloat16" if native else "float32")
    assert runtime.find_precision("bfloat16") == "bfloat16"  # a run made elsewhere may be looked at
    runtime.require_precision(runtime.find_precision("auto"))
    for wanted in ["float16"] if native else ["float16", "bfloat16"]:
        with pytest.raises(BertVisionError, match=f"no {wanted} arithmetic"):
            runtime.require_precision(wanted)


HEAPS = """
import ctypes, sys, threading
import bertvision
libc = ctypes.CDLL("libc.so.6")
libc.fopen.restype = ctypes.c_void_p
barrier = threading.Barrier(4)
def allocate():
    kept = bytearray(100_000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's heaps")
@pytest.mark.parametrize(("told", "heaps"), [({}, 1), ({"MALLOC_ARENA_MAX": "3"}, 3)])
def test_threads_share_a_heap_unless_told_otherwise(tmp_path, told, heaps):
    environment = {key: value for key, value in os.environ.items() if key != "MALLOC_ARENA_MAX"} | told
    subprocess.run([sys.executable, "-c", HEAPS, tmp_path / "info.xml"], env=environment, check=True)
    assert (tmp_path / "info.xml").read_text().count("<heap nr=") == heaps
