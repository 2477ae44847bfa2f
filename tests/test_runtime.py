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


def test_clipping_limits_one_model():
    model = nn.Linear(3, 1)
    (model(torch.full((1, 3), 1e3)).sum()).backward()
    runtime.clip(model, 1.0)
    assert torch.cat([p.grad.flatten() for p in model.parameters()]).norm() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_half_precision_on_a_cpu_is_refused():
    with pytest.raises(BertVisionError, match="is for GPUs"):
        runtime.accelerator("bfloat16")
