"""Attention over layers. (B, L, T, W) -> (B, T, W)"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayerAttention(nn.Module):
    """Mix the layers of each token with softmax weights that are computed from its hidden states.

    Layer normalization comes first, so that layers of different scale have equal influence.
    """

    def __init__(self, layers: int, width: int):
        super().__init__()
        self.score: nn.Parameter = nn.Parameter(torch.zeros(layers, width, 1))  # zeros: the initial mix is the mean
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(layers, 1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = functional.layer_norm(x, x.shape[-1:])
        weights = ((x @ self.score).squeeze(-1) + self.bias).softmax(dim=1).unsqueeze(-1)
        mixed = weights[:, 0] * x[:, 0]
        for layer in range(1, x.shape[1]):  # an einsum would copy all hidden states
            mixed = torch.addcmul(mixed, weights[:, layer], x[:, layer])
        return mixed
