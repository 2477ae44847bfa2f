import torch
from torch.autograd import gradcheck
from torch.nn import functional

from bertvision.cpu_optimizations import gradients


def random(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def test_written_out_gradients_are_right():
    away = -1e9 * (random(2, 4, 4) > 0.5).double()
    assert gradcheck(lambda x: gradients.largest(x, away[:, :, :1]), random(2, 4, 3))
    assert gradcheck(gradients.unit, random(2, 4, 3))
    assert gradcheck(lambda x: gradients.mix(x, away, 3.0), random(2, 4, 3))


def test_equals_share_a_gradient_as_with_amax():
    x = torch.tensor([[[1.0, 5.0], [1.0, 2.0], [0.0, 5.0], [1.0, 5.0]]])
    weight, here, there = torch.tensor([[2.0, 3.0]]), x.clone().requires_grad_(), x.clone().requires_grad_()
    (gradients.largest(here, torch.zeros(1, 4, 1)) * weight).sum().backward()
    (there.amax(dim=1) * weight).sum().backward()
    torch.testing.assert_close(here.grad, there.grad)


def test_a_vector_of_zeros_stays_one_and_its_gradient_is_a_number():
    x = torch.zeros(1, 2, 3, requires_grad=True)
    found = gradients.unit(x)
    assert not found.any()
    found.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_without_gradients_the_answers_are_the_same():
    x, away = random(2, 4, 3), torch.zeros(2, 4, 4, dtype=torch.float64)
    for function in (
        lambda x: gradients.largest(x, away[:, :, :1]),
        gradients.unit,
        lambda x: gradients.mix(x, away, 3.0),
    ):
        torch.testing.assert_close(function(x), function(x.detach()))
    torch.testing.assert_close(gradients.unit(x), functional.normalize(x, dim=-1))
