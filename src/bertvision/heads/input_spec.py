"""What a head reads of the hidden states."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """What a head reads of the hidden states. A module declares it as its attribute `input_spec`.

    A module without one reads all layers and all tokens of cross-encoded texts, in float32. `layers` and `encoding` of
    a registered class are the defaults of the head's options of the same names.
    """

    layers: str = "all"
    """Encoder layers, as `select_layers` takes them."""
    tokens: str = "all"
    """"all", or "cls": only the first token is given to the head where no other head needs more."""
    dtype: torch.dtype = torch.float32
    """The type of the hidden states in training, if all heads that are trained together agree. Else float32."""
    encoding: str = "cross"
    """How the encoder reads pairs of texts: "cross", "bi" or "both"."""


def input_spec_of(head: object) -> InputSpec:
    """Return the input specification of a head, or the default for a plain module."""
    spec = getattr(head, "input_spec", None)
    return spec if isinstance(spec, InputSpec) else InputSpec()


def shared_input_spec(heads: Iterable[nn.Module]) -> InputSpec:
    """Return what heads that read the same batches need: all tokens unless all read [CLS] only, and a common type."""
    specs = [input_spec_of(head) for head in heads]
    tokens, dtypes = {spec.tokens for spec in specs}, {spec.dtype for spec in specs}
    shared = replace(specs[0], tokens="cls" if tokens == {"cls"} else "all")
    return replace(shared, dtype=specs[0].dtype if len(dtypes) == 1 else torch.float32)
