"""Inception (Szegedy et al. 2014, arXiv:1409.4842) with strides along the width only."""

import torch
from torch import Tensor, nn

from bertvision.lab.heads.cnn import ImageNetwork

# Filters of the 1x1, the reduced 3x3, the reduced 5x5 and the pooled branch of each block. They are the published ones
# except for the last 3x3, which is chosen so that the head has its published number of parameters.
BLOCKS = [
    (64, (96, 128), (16, 32), 32),
    (128, (128, 192), (32, 96), 64),
    (192, (96, 208), (16, 48), 64),
    (160, (112, 224), (24, 64), 64),
    (128, (128, 256), (24, 64), 64),
    (112, (144, 288), (32, 64), 64),
    (256, (160, 320), (32, 128), 128),
    (256, (160, 320), (32, 128), 128),
    (384, (192, 551), (48, 128), 128),
]
HALVE_BEFORE = (0, 2, 7)


class InceptionBlock(nn.Module):
    """Parallel convolutions of several sizes. (B, C, T, W) -> (B, C', T, W)"""

    def __init__(self, channels: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int):
        super().__init__()
        self.one: nn.Conv2d = nn.Conv2d(channels, one, 1)
        self.three: nn.Sequential = _reduced(channels, *three, kernel=3)
        self.five: nn.Sequential = _reduced(channels, *five, kernel=5)
        self.pooled: nn.Sequential = nn.Sequential(nn.AvgPool2d(3, 1, padding=1), nn.Conv2d(channels, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1))


def _reduced(channels: int, reduced: int, outputs: int, kernel: int) -> nn.Sequential:
    # Without a bias, padding stays zero for the wider kernel that follows.
    narrow = nn.Conv2d(channels, reduced, 1, bias=False)
    return nn.Sequential(narrow, nn.ReLU(), nn.Conv2d(reduced, outputs, kernel, padding=kernel // 2))


def inception(channels: int) -> ImageNetwork:
    """Build the stem and nine blocks. (B, C, T, W) -> (B, T, F)"""
    steps: list[nn.Module] = [
        nn.Sequential(nn.Conv2d(channels, 64, 7, stride=(1, 2), padding=3), nn.ReLU(), _halve()),
        nn.Sequential(nn.Conv2d(64, 64, 1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(64, 192, 3, padding=1), nn.ReLU()),
    ]
    channels = 192
    for number, (one, three, five, pooled) in enumerate(BLOCKS):
        block = InceptionBlock(channels, one, three, five, pooled)
        steps.append(nn.Sequential(_halve(), block) if number in HALVE_BEFORE else block)
        channels = one + three[1] + five[1] + pooled
    network = ImageNetwork(*steps)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):  # without batch norm, default weights make signals vanish
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return network


def _halve() -> nn.Module:
    return nn.MaxPool2d((1, 3), stride=(1, 2), padding=(0, 1))
