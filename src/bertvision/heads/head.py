"""The structure that most heads share, BERT's own kind of head, and the selection of layers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.heads.input_spec import InputSpec, input_spec_of
from bertvision.heads.layer_pooling import ConcatLayers
from bertvision.heads.span_classifier import SpanClassifier
from bertvision.heads.token_pooling import ClsPooling, build_token_pooling
from bertvision.types import HeadShape, StateView, call_head


class Head(nn.Module):
    """A head of four parts that turns the hidden states of all layers into logits.

    adapter          (B, L, T, W) -> (B, L, T, A)    reduce the width of each layer; optional
    layer_pooling    (B, L, T, A) -> (B, T, F)       merge the layers
    skip             (B, T, F)    -> (B, T, F + W)   concatenate the last layer; optional
    token_pooling    (B, T, F)    -> (B, F)          merge the tokens, unless logits are per token
    classifier       (B, .., F)   -> (B, .., C)

    In training, adapter and layer pooling compute in `input_spec.dtype`. Logits are always float32.
    """

    def __init__(
        self,
        shape: HeadShape,
        layer_pooling: nn.Module,
        *,
        adapter: nn.Module | None = None,
        skip: bool = False,
        token_pooling: str = "cls",
        dropout: float = 0.0,
        end_given_start: bool = False,
    ):
        super().__init__()
        self.shape = shape
        self.adapter: nn.Module = adapter or nn.Identity()
        self.layer_pooling = layer_pooling
        self.skip = skip
        features = self._features()
        pooling = build_token_pooling(token_pooling, shape, features)  # always, so that an unknown name is an error
        self.token_pooling: nn.Module = nn.Identity() if shape.per_token else pooling
        reads_cls = isinstance(self.token_pooling, ClsPooling) and not getattr(layer_pooling, "mixes_tokens", False)
        self.input_spec: InputSpec = InputSpec(tokens="cls" if reads_cls else "all")
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        linear = SpanClassifier if end_given_start and shape.per_token else nn.Linear
        self.classifier = linear(self._pooled_features(features), shape.num_outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        """Compute logits. Hidden states (B, L, T, W), mask and text ids (B, T) -> (B, T, C) or (B, C)"""
        if self.input_spec.tokens == "cls":  # the outputs of other tokens would not be used
            hidden, attention_mask, text_ids = hidden[:, :, :1], attention_mask[:, :1], None
        hidden = self.take(hidden)
        with self.products(hidden):
            x = self._represent(hidden, attention_mask, text_ids)
        x = self.pool_tokens(x.to(self.classifier.weight.dtype), attention_mask, text_ids)
        masks = [attention_mask] if isinstance(self.classifier, SpanClassifier) else []
        return self.classifier(self.dropout(x), *masks)

    def pool_tokens(self, x: Tensor, attention_mask: Tensor, text_ids: Tensor | None) -> Tensor:
        """Merge the tokens if the task is about whole texts. (B, T, F) -> (B, F)"""
        return x if self.shape.per_token else call_head(self.token_pooling, x, attention_mask, text_ids)

    def products(self, hidden: Tensor) -> AbstractContextManager[Any]:
        """Return the context in which adapter and layer pooling are computed."""
        dtype = self.input_spec.dtype
        reduced = self.training and dtype != torch.float32
        return torch.autocast(hidden.device.type, dtype) if reduced else nullcontext()

    def take(self, hidden: Tensor) -> Tensor:
        """Return the hidden states in the type that the head computes in."""
        weight, dtype = self.classifier.weight.dtype, self.input_spec.dtype
        return hidden.to(dtype if self.training and dtype != torch.float32 else weight)

    def _represent(self, hidden: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        x = call_head(self.layer_pooling, self.adapter(hidden), attention_mask, text_ids)
        return torch.cat([x, hidden[:, -1]], dim=-1) if self.skip else x

    @torch.no_grad()
    def _features(self) -> int:
        """Measure F with one token of zeros."""
        self.eval()  # so that batch norm does not update its statistics
        probe = torch.zeros(1, self.shape.num_channels, 1, self.shape.hidden_size)
        features = self._represent(probe, torch.ones(1, 1, dtype=torch.bool)).shape[-1]
        self.train()
        return features

    @torch.no_grad()
    def _pooled_features(self, features: int) -> int:
        """Measure the number of features after token pooling."""
        if self.shape.per_token:
            return features
        return self.token_pooling(torch.zeros(1, 1, features), torch.ones(1, 1, dtype=torch.bool)).shape[-1]


class LinearHead(Head):
    """A linear layer on the pooled states of all layers. For whole texts, a solver of `bertvision.convex` fits it."""

    center: Tensor

    def __init__(self, shape: HeadShape, solver: str, **options: Any):
        super().__init__(shape, ConcatLayers(), **options)
        self.solver: str = "" if shape.per_token else solver
        self.register_buffer("center", nn.init.zeros_(self.classifier.weight)[0].detach().clone())

    def pool_tokens(self, x: Tensor, attention_mask: Tensor, text_ids: Tensor | None) -> Tensor:
        """Merge the tokens, and subtract the mean of the features, for numerical precision."""
        return super().pool_tokens(x, attention_mask, text_ids) - self.center


class BertHead(nn.Module):
    """BERT's own kind of head: a linear layer on the last layer, for sentence tasks after [CLS] and BERT's pooler."""

    def __init__(self, shape: HeadShape, *, dropout: float = 0.1, end_given_start: bool = False):
        super().__init__()
        self.shape = shape
        self.input_spec: InputSpec = InputSpec(layers="last", tokens="all" if shape.per_token else "cls")
        if not shape.per_token:
            self.pooler: nn.Linear = nn.Linear(shape.hidden_size, shape.hidden_size)
            self.dropout: nn.Dropout = nn.Dropout(dropout)
        linear = SpanClassifier if end_given_start and shape.per_token else nn.Linear
        self.classifier = linear(shape.hidden_size, shape.num_outputs)
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)  # BERT's initializer
                nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Read the last layer: (B, L, T, W) -> (B, T, C) or (B, C)"""
        last = hidden[:, -1].to(self.classifier.weight.dtype)
        if self.shape.per_token:
            masks = [attention_mask] if isinstance(self.classifier, SpanClassifier) else []
            return self.classifier(last, *masks)
        return self.classifier(self.dropout(self.pooler_output(last)))

    def pooler_output(self, last: Tensor) -> Tensor:
        """Return BERT's pooled [CLS]. (B, T, W) -> (B, W)"""
        return torch.tanh(self.pooler(last[:, 0]))


class LayerSelect(nn.Module):
    """A head that receives only some channels of the hidden states."""

    def __init__(self, head: nn.Module, selection: StateView, available: StateView):
        """`selection`: the channels that the head reads; `available`: those that the hidden states hold."""
        super().__init__()
        self.head = head
        self.selection = selection
        self.select_from(available)

    def forward(self, hidden: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Any:
        return call_head(self.head, hidden[:, self.channels], attention_mask, text_ids)

    @property
    def input_spec(self) -> InputSpec:
        """The input specification of the head."""
        return input_spec_of(self.head)

    def select_from(self, available: StateView) -> None:
        """Find the positions of the selected channels among the `available` ones."""
        positions = available.positions(self.selection)
        # A slice is a view; a list of indices copies every state.
        first, last = positions[0], positions[-1]
        step = positions[1] - first if len(positions) > 1 else 1
        self.channels = slice(first, last + 1, step) if positions == list(range(first, last + 1, step)) else positions
