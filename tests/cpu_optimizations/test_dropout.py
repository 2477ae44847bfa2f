import pytest
import torch
from torch import nn

from bertvision.cpu_optimizations.dropout import FastDropout, replace_dropout
from bertvision.encoders import load_encoder


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_it_drops_as_many_as_it_should_and_keeps_the_mean(p):
    torch.manual_seed(0)
    x = torch.ones(999, 1001, requires_grad=True)
    y = FastDropout(p)(x)
    dropped = (y == 0).double()
    assert dropped.mean().item() == pytest.approx(p, abs=3e-3)
    # Elements that share a draw are as independent as those that do not.
    lanes = dropped.flatten()[: 4 * 249_000].view(-1, 4).T
    assert lanes.mean(dim=1).tolist() == pytest.approx([p] * 4, abs=5e-3)
    assert torch.corrcoef(lanes).fill_diagonal_(0).abs().max() < 0.01
    assert torch.equal(y.detach().unique(), torch.tensor([0.0, 1 / (1 - p)]))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_a_seed_decides_and_evaluation_changes_nothing():
    layer, x = FastDropout(0.3), torch.randn(7, 5, 3)
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first) and not torch.equal(layer(x), first)
    assert torch.equal(layer.eval()(x), x) and torch.equal(FastDropout(0.0)(x), x) and not FastDropout(1.0)(x).any()


def test_every_dropout_of_a_model_is_replaced(tiny):
    found = [type(module) for module in load_encoder(str(tiny)).encoder.modules() if isinstance(module, nn.Dropout)]
    assert found and set(found) == {FastDropout}
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.25)))
    replace_dropout(model)
    assert isinstance(model[1][0], FastDropout) and model[1][0].p == 0.25
