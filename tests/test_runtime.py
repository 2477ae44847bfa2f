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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_half_precision_on_a_cpu_is_refused():
    runtime.require_precision("float32")
    with pytest.raises(BertVisionError, match="is for GPUs"):
        runtime.require_precision("bfloat16")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_autocast_and_device_agree(precision):
    with runtime.autocast(precision):
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == getattr(torch, precision)
