"""Batches of hidden states (B, L, T, W), wherever they come from."""

from bertvision.activations.kept import MODES, Kept, choose, keep
from bertvision.activations.streamed import Streamed
from bertvision.activations.tokens import Tokens

__all__ = ["MODES", "Kept", "Streamed", "Tokens", "choose", "keep"]
