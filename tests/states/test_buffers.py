import torch

from bertvision.states.buffers import Buffers


def where(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_memory_is_used_again_when_nobody_looks_at_it():
    buffers = Buffers()
    first = buffers.take(3, 4)
    place = where(first)
    del first
    assert where(buffers.take(2, 2)) == place


def test_memory_in_use_is_left_alone_even_by_a_view():
    buffers = Buffers()
    view = buffers.take(8).fill_(7)[2:3].unsqueeze(0)
    other = buffers.take(8).fill_(1)
    assert where(other) != where(view) and view.item() == 7


def test_what_autograd_keeps_is_in_use():
    buffers = Buffers()
    weight = torch.ones(4, requires_grad=True)
    loss = (buffers.take(4).fill_(3) * weight).sum()
    buffers.take(4).fill_(-1)
    loss.backward()
    assert weight.grad is not None and weight.grad.tolist() == [3, 3, 3, 3]


def test_what_is_too_small_makes_way():
    buffers = Buffers()
    for size in (1, 100, 10_000):
        assert buffers.take(size).shape == (size,)
    assert len(buffers._arrays) == 1


def test_room_is_made_for_what_comes_later():
    buffers = Buffers(4000)
    place = where(buffers.take(1))
    assert where(buffers.take(1000)) == place
