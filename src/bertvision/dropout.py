"""Dropout that draws fewer random numbers: on a CPU they took a tenth of fine-tuning."""

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """nn.Dropout, but that four elements share one draw of 64 bits where the generator is slow: on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu":
            return super().forward(input)
        count = input.numel()
        draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[:count].view(input.shape)
        kept = (bits >= round(self.p * 2**16) - 2**15).to(input.dtype)
        return input * kept.mul_(1 / (1 - self.p))


def quicken(model: nn.Module) -> None:
    """Replace every nn.Dropout in a model."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
