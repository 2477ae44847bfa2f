"""Frozen linear layers whose weights are converted once to the layout of oneDNN's bfloat16 products."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bertvision.devices import onednn_multiplies_bfloat16

ROWS = 1024  # the usual number of tokens in a batch, which the layout depends on slightly


class PackedLinear(nn.Linear):
    """A linear layer that multiplies in bfloat16 with the same numbers as autocast, bit for bit.

    Autocast converts the weights of a frozen layer in every batch, and each product then changes their layout again.
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
    """Replace the frozen linear layers of a model on a CPU inside a `with` block, which needs memory for the copies."""
    children = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]
    layers = [
        (parent, name, child) for parent, name, child in children if isinstance(child, nn.Linear) and _can_pack(child)
    ]
    for parent, name, child in layers:
        setattr(parent, name, PackedLinear(child))
    try:
        yield
    finally:
        for parent, name, child in layers:
            setattr(parent, name, child)


def _can_pack(layer: nn.Module) -> bool:
    """Return whether a layer is a frozen linear layer and oneDNN can multiply with it."""
    if type(layer) is not nn.Linear or layer.weight.requires_grad or layer.weight.device.type != "cpu":
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and onednn_multiplies_bfloat16()
