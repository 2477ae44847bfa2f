import threading

import pytest
import torch
from torch import nn

from bertvision import devices
from bertvision.errors import BertVisionError
from bertvision.threads import thread_pool
from bertvision.training.optimizers import build_optimizer


def test_biases_and_norms_do_not_decay():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    decayed, plain = build_optimizer(model, 1e-3, 0.1).param_groups
    assert [p.ndim for p in decayed["params"]] == [2] and decayed["weight_decay"] == 0.1
    assert {p.ndim for p in plain["params"]} == {1} and plain["weight_decay"] == 0.0


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("native", [True, False])
def test_precision_follows_the_machine(monkeypatch, native):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": native})
    assert devices.resolve_precision("auto") == ("bfloat16" if native else "float32")
    assert devices.resolve_precision("bfloat16") == "bfloat16"  # a run made elsewhere may be looked at
    devices.check_precision(devices.resolve_precision("auto"))
    for wanted in ["float16"] if native else ["float16", "bfloat16"]:
        with pytest.raises(BertVisionError, match=f"no native {wanted} arithmetic"):
            devices.check_precision(wanted)


def test_a_device_is_selected_within_a_block():
    default = devices.device()
    with devices.use_device("cpu") as selected:
        assert selected == devices.device() == torch.device("cpu")
        with devices.use_device(torch.device("cpu")), devices.use_device("auto") as automatic:
            assert automatic == default
    assert devices.device() == default


def test_the_selection_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), devices.use_device("cpu"):
        raise ZeroDivisionError
    assert devices._chosen.get() is None


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", "The device 'cuda' is not available here. Use one of auto, cpu."),
        ("cuda:1", "The device 'cuda:1' is not available here"),
        ("mps", "The device 'mps' is not available here"),
        ("cpu:3", "The device 'cpu:3' is not available here"),
        ("gpu", "'gpu' is not a device. Use one of auto, cpu."),
        (None, "None is not a device"),
    ],
)
def test_a_device_that_does_not_exist_is_refused(name, message):
    with pytest.raises(BertVisionError, match=message), devices.use_device(name):
        pass


def test_a_new_thread_has_the_default_device_and_a_pool_the_selected_one():
    selected = []
    with devices.use_device("cpu"):
        thread = threading.Thread(target=lambda: selected.append(devices._chosen.get()))
        thread.start()
        thread.join()
        with thread_pool(2) as pool:
            selected += [pool.submit(devices._chosen.get).result() for _ in range(4)]
    assert selected == [None, *[torch.device("cpu")] * 4]
