"""Xception (Chollet 2016, arXiv:1610.02357) along the width of each token, with layers as channels."""

from torch import Tensor, nn
from torch.nn import functional

from bertvision.lab.heads.cnn import TokenwiseNetwork


def sepconv(inputs: int, outputs: int) -> nn.Sequential:
    """Build a depthwise separable convolution with batch norm."""
    depthwise = nn.Conv1d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
    return nn.Sequential(depthwise, nn.Conv1d(inputs, outputs, 1, bias=False), nn.BatchNorm1d(outputs))


class XceptionBlock(nn.Module):
    """Separable convolutions and pooling, with a strided shortcut."""

    def __init__(self, channels: int, middle: int, outputs: int, *, first: bool = False, average: bool = False):
        super().__init__()
        self.shortcut: nn.Sequential = nn.Sequential(
            nn.Conv1d(channels, outputs, 1, stride=2, bias=False), nn.BatchNorm1d(outputs)
        )
        start = [] if first else [nn.ReLU()]
        pool = nn.AvgPool1d(3, 2, padding=1) if average else nn.MaxPool1d(3, 2, padding=1)
        self.path: nn.Sequential = nn.Sequential(
            *start, sepconv(channels, middle), nn.ReLU(), sepconv(middle, outputs), pool
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.path(x) + self.shortcut(x)


class ResidualBlock(nn.Module):
    """Three separable convolutions with a residual connection."""

    def __init__(self, channels: int):
        super().__init__()
        steps = [step for _ in range(3) for step in (nn.ReLU(), sepconv(channels, channels))]
        self.path: nn.Sequential = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.path(x)


class PadToWidth(nn.Module):
    """Pad narrow inputs on the right to the width that unpadded kernels need."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, max(0, self.width - x.shape[-1])))


def _conv(inputs: int, outputs: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    conv = nn.Conv1d(inputs, outputs, 3, stride=stride, padding=padding, bias=False)
    return [conv, nn.BatchNorm1d(outputs), nn.ReLU()]


def _average() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool1d(1), nn.Flatten()]


def xception_small(channels: int) -> TokenwiseNetwork:
    """Build the abbreviated Xception. (B, C, T, W) -> (B, T, 512)"""
    entry = [*_conv(channels, 64, stride=3), *_conv(64, 128)]
    return TokenwiseNetwork(
        nn.Sequential(PadToWidth(9), *entry, XceptionBlock(128, 256, 512, first=True, average=True), *_average())
    )


def xception(channels: int, *, middle: int = 8, last: tuple[int, ...] = (1536, 2048)) -> TokenwiseNetwork:
    """Build the full Xception, or one with other middle blocks and last filters. (B, C, T, W) -> (B, T, last[-1])"""
    steps = [*_conv(channels, 32, stride=2, padding=1), *_conv(32, 64, padding=1)]
    steps += [XceptionBlock(64, 128, 128, first=True), XceptionBlock(128, 256, 256), XceptionBlock(256, 728, 728)]
    steps += [ResidualBlock(728) for _ in range(middle)]
    steps.append(XceptionBlock(728, 728, 1024))
    for inputs, outputs in zip((1024, *last), last, strict=False):
        steps += [sepconv(inputs, outputs), nn.ReLU()]
    return TokenwiseNetwork(nn.Sequential(*steps, *_average()))
