"""Frozen weights, laid out once as bfloat16 products on a CPU want them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

ROWS = 1024  # tokens of a batch, about; the layout depends on it a little


class Packed(nn.Linear):
    """A linear layer that multiplies in bfloat16 with the numbers autocast would use, to the bit.

    Autocast converts the weights of a frozen layer for every batch, and the product then lays them out anew.
    """

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().bfloat16(), ROWS)
        self._bias = None if self.bias is None else self.bias.detach().bfloat16()

    def forward(self, input: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(input.bfloat16(), self._weight, self._bias, "none", [], "")


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Replace the linear layers of a frozen model on a CPU for a while; the packed weights go when it ends."""
    places = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]
    places = [(parent, name, child) for parent, name, child in places if type(child) is nn.Linear and _can(child)]
    for parent, name, child in places:
        setattr(parent, name, Packed(child))
    try:
        yield
    finally:
        for parent, name, child in places:
            setattr(parent, name, child)


def _can(linear: nn.Linear) -> bool:
    """Whether oneDNN is there, and nothing will change the weights."""
    here = linear.weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return here and hasattr(torch.ops.mkldnn, "_linear_pointwise") and not linear.weight.requires_grad
