import pytest
import torch
from torch import nn

from bertvision import devices
from bertvision.errors import BertVisionError
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
