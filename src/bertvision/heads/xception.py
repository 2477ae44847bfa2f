"""Xception (Chollet 2016, arXiv:1610.02357) along the width of each token alone: layers are its channels."""

from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads.cnn import EachToken


def sepconv(one: int, other: int) -> nn.Sequential:
    """Depthwise 1x3, then 1x1, then batch norm."""
    depthwise = nn.Conv1d(one, one, 3, padding=1, groups=one, bias=False)
    return nn.Sequential(depthwise, nn.Conv1d(one, other, 1, bias=False), nn.BatchNorm1d(other))


class XceptionBlock(nn.Module):
    """Separable convolutions and a pool, beside a strided shortcut."""

    def __init__(self, channels: int, middle: int, other: int, *, first: bool = False, average: bool = False):
        super().__init__()
        self.shortcut = nn.Sequential(nn.Conv1d(channels, other, 1, stride=2, bias=False), nn.BatchNorm1d(other))
        start = [] if first else [nn.ReLU()]
        pool = nn.AvgPool1d(3, 2, padding=1) if average else nn.MaxPool1d(3, 2, padding=1)
        self.path = nn.Sequential(*start, sepconv(channels, middle), nn.ReLU(), sepconv(middle, other), pool)

    def forward(self, x: Tensor) -> Tensor:
        return self.path(x) + self.shortcut(x)


class Middle(nn.Module):
    """Three separable convolutions, added to what went in."""

    def __init__(self, channels: int):
        super().__init__()
        steps = [step for _ in range(3) for step in (nn.ReLU(), sepconv(channels, channels))]
        self.path = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.path(x)


class WideEnough(nn.Module):
    """Pad a narrow input on the right, so that unpadded kernels fit."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, max(0, self.width - x.shape[-1])))


def _conv(one: int, other: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    conv = nn.Conv1d(one, other, 3, stride=stride, padding=padding, bias=False)
    return [conv, nn.BatchNorm1d(other), nn.ReLU()]


def _average() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool1d(1), nn.Flatten()]


def xception_small(channels: int) -> EachToken:
    """The abbreviated net. (B, C, T, W) -> (B, T, 512)"""
    entry = [*_conv(channels, 64, stride=3), *_conv(64, 128)]
    return EachToken(
        nn.Sequential(WideEnough(9), *entry, XceptionBlock(128, 256, 512, first=True, average=True), *_average())
    )


def xception(channels: int, *, middle: int = 8, last: tuple[int, ...] = (1536, 2048)) -> EachToken:
    """The full net, or with fewer middle blocks and another end. (B, C, T, W) -> (B, T, last)"""
    steps = [*_conv(channels, 32, stride=2, padding=1), *_conv(32, 64, padding=1)]
    steps += [XceptionBlock(64, 128, 128, first=True), XceptionBlock(128, 256, 256), XceptionBlock(256, 728, 728)]
    steps += [Middle(728) for _ in range(middle)]
    steps.append(XceptionBlock(728, 728, 1024))
    for one, other in zip((1024, *last), last, strict=False):
        steps += [sepconv(one, other), nn.ReLU()]
    return EachToken(nn.Sequential(*steps, *_average()))
