"""Narrow every token of every layer. (B, L, T, W) -> (B, L, T, A)"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Adapter(nn.Module):
    """z = GELU(A x + b), with one matrix for all layers or one for each.

    After Houlsby et al. 2019 (arXiv:1902.00751), without the up-projection and the residual. `norm` brings every state
    to mean 0 and variance 1 first, so that layers of different scale count alike.
    """

    def __init__(
        self, layers: int, width: int, size: int, *, shared: bool = True, norm: bool = False, init_std: float = 1e-3
    ):
        super().__init__()
        copies = 1 if shared else layers
        self.weight = nn.Parameter(torch.empty(copies, width, size))
        self.bias = nn.Parameter(torch.zeros(copies, 1, size))
        self.norm = norm
        nn.init.trunc_normal_(self.weight, std=init_std, a=-2 * init_std, b=2 * init_std)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm:
            x = functional.layer_norm(x, x.shape[-1:])
        if len(self.weight) == 1:
            return functional.gelu(x @ self.weight[0] + self.bias[0])
        return functional.gelu(torch.einsum("bltw,lwa->blta", x, self.weight) + self.bias)
