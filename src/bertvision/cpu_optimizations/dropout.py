"""Dropout that draws fewer random numbers: on a CPU, drawing them takes a tenth of fine-tuning or more."""

import torch
from torch import Tensor, nn

from bertvision.cpu_optimizations import enabled


def drop(x: Tensor, p: float) -> Tensor:
    """Drop elements of a tensor on a CPU with probability `p`, exact to 1 / 65,536; four share a draw of 64 bits."""
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    kept = (bits >= round(p * 2**16) - 2**15).to(x.dtype)
    return x * kept.mul_(1 / (1 - p))


class FastDropout(nn.Dropout):
    """`nn.Dropout` that uses `drop` on a CPU. The masks differ from those of `nn.Dropout` with the same seed."""

    def forward(self, input: Tensor) -> Tensor:
        fast = self.training and 0 < self.p < 1 and input.device.type == "cpu" and enabled()
        return drop(input, self.p) if fast else super().forward(input)


def replace_dropout(model: nn.Module) -> None:
    """Replace every `nn.Dropout` of a model by `FastDropout`."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p).train(child.training))
