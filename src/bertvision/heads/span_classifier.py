"""A classifier of tokens whose end logits depend on where the answer starts."""

import torch
from torch import Tensor, nn

SIZE = 32
"""The size of the vectors that starts and ends are compared in."""


class SpanClassifier(nn.Linear):
    """Start and end logits of each token. The end logits depend on the start.

    The token where the answer starts, averaged with the probabilities of the starts, is compared with every token.
    Training and prediction are the same, and the logits have the shape of those of a linear layer.
    """

    def __init__(self, features: int, outputs: int):
        super().__init__(features, outputs)
        self.start: nn.Linear = nn.Linear(features, SIZE)
        self.end: nn.Linear = nn.Linear(features, SIZE, bias=False)  # a bias would add the same number to all ends

    def forward(self, input: Tensor, attention_mask: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute logits. (B, T, F), mask (B, T) -> (B, T, C); the first two are start and end."""
        logits = super().forward(input)
        starts = logits[..., 0].masked_fill(~attention_mask, torch.finfo(logits.dtype).min)
        start = torch.einsum("bt,btk->bk", starts.softmax(dim=1), self.start(input))
        match = torch.einsum("bk,btk->bt", start, self.end(input)) * SIZE**-0.5
        return torch.cat([logits[..., :1], logits[..., 1:2] + match.unsqueeze(-1), logits[..., 2:]], dim=-1)
