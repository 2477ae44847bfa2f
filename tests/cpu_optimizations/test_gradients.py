import pytest
import torch
from torch.autograd import gradcheck

from bertvision.cpu_optimizations import gradients, use_cpu_optimizations
from bertvision.heads import token_pooling


def random(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


ALLOWED = (random(2, 4, 4) > 0.5) | torch.eye(4, dtype=torch.bool)  # no token is without an allowed one
STEPS = {
    "masked_max": lambda x: token_pooling.masked_max(x, ALLOWED[:, :, 0]),
    "normalize": token_pooling.normalize,
    "self_attention": lambda x: token_pooling.self_attention(x, ALLOWED, 3.0),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_values_and_gradients_equal_those_of_autograd(step):
    def run(enabled):
        x = random(2, 4, 3)
        with use_cpu_optimizations(enabled):
            y = step(x)
        (y * torch.arange(1, y.numel() + 1).view_as(y)).sum().backward()
        return y.detach(), x.grad

    for fast, plain in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(fast, plain)
    assert gradcheck(step, random(2, 4, 3))
    torch.testing.assert_close(step(random(2, 4, 3).detach()), run(False)[0])


def test_equal_values_share_the_gradient_as_with_amax():
    values = torch.tensor([[[1.0, 5.0], [1.0, 2.0], [0.0, 5.0], [1.0, 5.0]]])
    weight, x, plain = torch.tensor([[2.0, 3.0]]), values.clone().requires_grad_(), values.clone().requires_grad_()
    (gradients.MaskedMax.apply(x, torch.zeros(1, 4, 1)) * weight).sum().backward()
    (plain.amax(dim=1) * weight).sum().backward()
    torch.testing.assert_close(x.grad, plain.grad)


def test_a_zero_vector_stays_zero_and_its_gradient_is_finite():
    x = torch.zeros(1, 2, 3, requires_grad=True)
    unit = token_pooling.normalize(x)
    assert not unit.any()
    unit.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
