"""Adapters, which reduce the width of hidden states. (B, L, T, W) -> (B, L, T, A)"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Adapter(nn.Module):
    """A linear layer and GELU, shared by all layers or separate for each.

    After Houlsby et al. 2019 (arXiv:1902.00751), without the up-projection and the residual connection.

    Args:
        layers: The number of layers.
        width: The width of the hidden states.
        size: The width of the output.
        shared: Whether all layers share one matrix.
        norm: Whether to apply layer normalization first, so that layers of different scale have equal influence.
        init_std: The standard deviation of the initial weights.
    """

    def __init__(
        self, layers: int, width: int, size: int, *, shared: bool = True, norm: bool = False, init_std: float = 1e-3
    ):
        super().__init__()
        matrices = 1 if shared else layers
        self.weight: nn.Parameter = nn.Parameter(torch.empty(matrices, width, size))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(matrices, 1, size))
        self.norm = norm
        nn.init.trunc_normal_(self.weight, std=init_std, a=-2 * init_std, b=2 * init_std)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm:
            x = functional.layer_norm(x, x.shape[-1:])
        if len(self.weight) == 1:
            return functional.gelu(x @ self.weight[0] + self.bias[0])
        return functional.gelu(torch.einsum("bltw,lwa->blta", x, self.weight) + self.bias)
