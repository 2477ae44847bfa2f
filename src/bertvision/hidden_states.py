"""Hidden states as data: extract them from texts, convert them, iterate over them, and train a head on them."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import type_of_target
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from bertvision.computed_states import ComputedStates
from bertvision.convex import fit_models
from bertvision.encoders import Encoder, tokenizer_hash
from bertvision.errors import BertVisionError, lookup
from bertvision.files import inside, load_tensors, read_json, save_tensors, write_json
from bertvision.heads import DEFAULT_LEARNING_RATES, HeadConfig, build_head, load_head_weights
from bertvision.heads.token_pooling import ClsPooling, MaxPooling, MeanPooling
from bertvision.inputs import ClassLabelEncoder, read_rows
from bertvision.prediction import check_own_head, predict
from bertvision.records import check_head_size, read_shape
from bertvision.states import (
    BatchPlan,
    InMemoryStates,
    RowTable,
    StateSource,
    Store,
    StoredStates,
    TokenBatches,
    WriteOptions,
    read_into_memory,
    write,
)
from bertvision.tasks import Example
from bertvision.tasks.encoding import encode_texts
from bertvision.tasks.splitting import count_of, draw, quantile_bins
from bertvision.training import Callback, FitOptions, TrainingConfig
from bertvision.types import Batch, HeadShape, StateView

if TYPE_CHECKING:
    import datasets

POOLINGS: dict[str, nn.Module] = {"mean": MeanPooling(), "max": MaxPooling(), "cls": ClsPooling()}
"""How the tokens of a text are merged into one vector."""
BATCH_ROWS = 32  # of a training step
BATCH_TOKENS = {"cpu": 1024}  # with padding, of a batch that is encoded or predicted; more is no faster
BATCH_TOKENS_ELSEWHERE = 8192


class HiddenStates(Dataset[dict[str, Any]]):
    """The hidden states of texts, in memory or in a store on disk. `extract` returns them.

    They are a `torch.utils.data.Dataset`. Item i is a dictionary with "row", i, and "hidden_states": a tensor (L, T, W)
    for the T tokens of the text, or (L, W) if the tokens were pooled. `DataLoader(states, batch_size=32,
    collate_fn=states.collate)` yields padded batches.
    """

    def __init__(self, source: InMemoryStates | StoredStates, view: StateView, pooling: str | None):
        self.source = source
        self.row_table: RowTable = source.row_table if isinstance(source, InMemoryStates) else source.store.row_table
        self.view = view
        self.pooling = pooling
        sample = source.load(np.array([0])).inputs
        assert isinstance(sample, Tensor)
        self.num_layers: int = sample.shape[1]
        self.hidden_size: int = sample.shape[3]

    @classmethod
    def from_store(cls, store: Store | str | Path) -> "HiddenStates":
        """Open a store that `extract`, `bertvision extract` or an experiment wrote."""
        store = store if isinstance(store, Store) else Store(Path(store))
        pooling = "cls" if store.view.first_token_only else store.identity.get("pooling")
        source = StoredStates(store, BatchPlan(store.row_table.lengths, BATCH_ROWS), threads=0)
        return cls(source, store.view, pooling)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of the encoder that axis L holds. Layer 0 is the embedding output."""
        return self.view.cross_layers

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, L, W) if the tokens were pooled, else (N, L, T, W) with the largest number of tokens T."""
        tokens = () if self.pooling else (int(self.row_table.lengths.max()),)
        return (len(self), self.num_layers, *tokens, self.hidden_size)

    def __len__(self) -> int:
        return self.source.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.__getitems__([row % len(self)])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return several items at once, which `DataLoader` calls."""
        batch = self.source.load(np.asarray(rows))
        hidden, lengths = batch.inputs, batch.attention_mask.sum(dim=1).tolist()
        assert isinstance(hidden, Tensor)
        return [
            {"row": row, "hidden_states": states[:, 0] if self.pooling else states[:, :length]}
            for row, states, length in zip(rows, hidden, lengths, strict=True)
        ]

    def collate(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Combine items to a batch: "row" (B,) and "hidden_states", (B, L, W) if pooled.

        If not pooled, "hidden_states" is (B, L, T, W) padded with zeros, and "attention_mask" is bool (B, T).
        """
        rows, states = torch.tensor([item["row"] for item in items]), [item["hidden_states"] for item in items]
        if self.pooling:
            return {"row": rows, "hidden_states": torch.stack(states)}
        lengths = torch.tensor([state.shape[1] for state in states])
        longest = int(lengths.max())
        padded = torch.stack([functional.pad(state, (0, 0, 0, longest - state.shape[1])) for state in states])
        return {"row": rows, "hidden_states": padded, "attention_mask": torch.arange(longest) < lengths[:, None]}

    def to_numpy(self, *, padded: bool = False) -> Any:
        """Return an array (N, L, W) if the tokens were pooled, else a list of N arrays (L, T, W).

        With `padded`, states of all tokens are returned as an array (N, L, T, W) and a boolean mask (N, T).
        """
        parts = np.array_split(np.arange(len(self)), -(-len(self) // BATCH_ROWS))
        items = [item for rows in parts for item in self.__getitems__(rows.tolist())]
        if padded and not self.pooling:
            batch = self.collate(items)
            return batch["hidden_states"].numpy(), batch["attention_mask"].numpy()
        arrays = [item["hidden_states"].numpy() for item in items]
        return np.stack(arrays) if self.pooling else arrays

    def to_datasets(self) -> "datasets.Dataset":
        """Return a `datasets.Dataset` with the columns "id" and "hidden_states"."""
        try:
            import datasets
        except ImportError:
            raise BertVisionError("to_datasets needs the package `datasets`: pip install datasets") from None
        return datasets.Dataset.from_dict({"id": self.row_table.ids, "hidden_states": list(self.to_numpy())})


class _PooledStates:
    """Hidden states whose tokens are merged into one vector per text as they are read."""

    def __init__(self, source: StateSource, pooling: str):
        self.source = source
        self.pooling = POOLINGS[pooling]
        self.view = source.view
        self.rows = source.rows

    def read(self, batches: Any) -> Iterator[Batch]:
        """Yield the pooled hidden states of these rows, batch by batch. (B, L, 1, W)"""
        for batch in self.source.read(batches):
            hidden = batch.inputs
            assert isinstance(hidden, Tensor)
            vectors = self.pooling(hidden.transpose(1, 2).flatten(start_dim=2), batch.attention_mask)
            pooled = vectors.unflatten(1, (hidden.shape[1], 1, hidden.shape[3]))
            yield replace(batch, inputs=pooled, attention_mask=batch.attention_mask[:, :1], text_ids=None)


def extract(
    encoder: Encoder | str | Path,
    texts: Any,
    *,
    layers: str | Sequence[int] = "all",
    pooling: str | None = None,
    max_tokens: int | None = None,
    batch_size: int = 64,
    output: str | Path | None = None,
    dtype: str = "float32",
) -> HiddenStates:
    """Compute the hidden states of texts.

    Args:
        encoder: An `Encoder`, or the name or path of one.
        texts: Texts or pairs of texts: a list, an array, a DataFrame, a `datasets.Dataset` or the path of a file.
        layers: "all", "last", or the numbers of layers. Layer 0 is the embedding output, -1 the last layer.
        pooling: None keeps all tokens. "mean" and "max" merge the tokens of a text, "cls" keeps the first token.
        max_tokens: Longer texts are truncated. By default it is the largest number that the encoder supports.
        batch_size: Texts that are encoded at once, at most.
        output: A directory, to write the states to a store while they are computed. An interrupted call resumes.
        dtype: The number type of a store: "float32", "float16", "bfloat16", "int8" or "int4".
    """
    encoder = _load_encoder(encoder)
    if pooling is not None:
        lookup(POOLINGS, pooling, "pooling")
    rows = read_rows(texts, labelled=False)
    examples = [Example(id=str(row), texts=row_texts, label=None) for row, row_texts in enumerate(rows.texts)]
    max_tokens = min(max_tokens or encoder.info.max_tokens, encoder.info.max_tokens)
    features = encode_texts(examples, encoder.tokenizer, max_tokens, np.int64)
    device = next(encoder.parameters()).device
    budget = _batch_tokens(device)
    tokens = TokenBatches(features, batch_size, encoder.info.pad_ids, budget=budget)
    view = StateView(
        cross_layers=_layer_numbers(layers, encoder.num_layers),
        first_token_only=pooling == "cls",
        num_layers=encoder.num_layers,
    )
    source = computed = ComputedStates(encoder, tokens, view, device=device)
    if pooling in ("mean", "max"):
        source = _PooledStates(computed, pooling)
    row_table = RowTable(
        lengths=np.ones(len(features), dtype=np.int64) if pooling else features.lengths,
        labels=features.labels,
        ids=features.ids,
        second_text_starts=None if pooling else features.second_text_starts,
    )
    was_training = encoder.training
    try:
        encoder.eval()
        if output is None:
            states = read_into_memory(source, tokens.plan, "extract")
            return HiddenStates(InMemoryStates(states, row_table, tokens.plan), view, pooling)
        options = WriteOptions(type=dtype, batch_size=batch_size, budget=budget, label="extract")
        identity = _identity(encoder, rows.texts, max_tokens, pooling)
        store = write(Path(output), source, row_table, identity, encoder.hidden_size, options)
    finally:
        encoder.train(was_training)
    return HiddenStates.from_store(store)


def _load_encoder(encoder: Any) -> Encoder:
    """Return an encoder; load it if it is a name or a path."""
    if isinstance(encoder, Encoder):
        return encoder
    if not isinstance(encoder, str | Path):
        raise BertVisionError(f"encoder must be an Encoder, a name or a path, got a {type(encoder).__name__}.")
    return Encoder.from_pretrained(str(encoder))


def _layer_numbers(layers: str | Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return the numbers of the chosen layers, in rising order."""
    if isinstance(layers, str):
        chosen: Sequence[int] = lookup({"all": range(num_layers), "last": [num_layers - 1]}, layers, "choice of layers")
    else:
        chosen = list(layers) if isinstance(layers, Iterable) else [layers]
    allowed = range(-num_layers, num_layers)
    if not chosen or any(isinstance(layer, str) or layer not in allowed for layer in chosen):
        raise BertVisionError(f"layers must be whole numbers from {-num_layers} to {num_layers - 1}; got {layers!r}.")
    return tuple(sorted({int(layer) % num_layers for layer in chosen}))


def _identity(encoder: Encoder, texts: Sequence[Any], max_tokens: int, pooling: str | None) -> dict[str, Any]:
    """Return the description of the hidden states in the manifest of a store."""
    return {
        "backbone": encoder.weights_hash(),
        "tokenizer": tokenizer_hash(encoder.tokenizer),
        "task": "",
        "split": "",
        "data": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        "max_tokens": max_tokens,
        "precision": encoder.precision,
        **({"pooling": pooling} if pooling else {}),
    }


def _batch_tokens(device: torch.device) -> int:
    return BATCH_TOKENS.get(device.type, BATCH_TOKENS_ELSEWHERE)


class _LabelledStates:
    """Batches of hidden states with labels."""

    def __init__(self, states: HiddenStates, plan: BatchPlan, labels: np.ndarray):
        self.states = states
        self.plan = plan
        self.labels = torch.from_numpy(labels)
        self.rows = len(plan.chosen)

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number` from batch `start` on."""
        yield from self.read(self.plan(number)[start:])

    def read(self, batches: list[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        for batch in self.states.source.read(batches):
            yield replace(batch, labels=self.labels[batch.rows])


@dataclass(frozen=True, kw_only=True)
class FittedHead:
    """A head trained on hidden states. `fit_head` returns it."""

    module: nn.Module
    shape: HeadShape
    config: HeadConfig | None = None
    """The configuration of the head; None for a module of the user's own."""
    label_encoder: ClassLabelEncoder | None = None
    """None for regression."""

    @property
    def classes_(self) -> np.ndarray:
        """The classes in the order of `predict_proba`."""
        if self.label_encoder is None:
            raise BertVisionError("This head was trained on numbers (regression), so it has no classes.")
        return self.label_encoder.classes_

    def decision_function(self, states: HiddenStates) -> np.ndarray:
        """Return the logits of each row. (N, C)"""
        if (states.num_layers, states.hidden_size) != (self.shape.num_layers, self.shape.hidden_size):
            raise BertVisionError(
                f"The head was trained on {self.shape.num_layers} layers of hidden size {self.shape.hidden_size}; got "
                f"{states.num_layers} layers of hidden size {states.hidden_size}. Extract them in the same way."
            )
        return _logits(self.module, states)

    def predict(self, states: HiddenStates) -> np.ndarray:
        """Return the class of each row, or its score for regression. (N,)"""
        logits = self.decision_function(states)
        return logits[:, 0] if self.label_encoder is None else self.classes_[logits.argmax(axis=1)]

    def predict_proba(self, states: HiddenStates) -> np.ndarray:
        """Return the probability of each class. (N, C)"""
        _ = self.classes_  # an error for regression
        return softmax(self.decision_function(states), axis=1)

    def score(self, states: HiddenStates, y: Any) -> float:
        """Return the accuracy, or for regression the coefficient of determination R^2."""
        metric = r2_score if self.label_encoder is None else accuracy_score
        return float(metric(np.asarray(y), self.predict(states)))

    def save(self, directory: str | Path) -> None:
        """Write the head to a directory, as JSON and safetensors."""
        description = {
            "head": self.config.to_dict() if self.config else None,
            "module": type(self.module).__name__,
            "shape": asdict(self.shape),
            "labels": self.label_encoder.to_dict() if self.label_encoder else None,
        }
        save_tensors(Path(directory) / "head.safetensors", self.module.state_dict())
        write_json(Path(directory) / "head.json", description)

    @classmethod
    def load(cls, directory: str | Path, head: nn.Module | type[nn.Module] | None = None) -> "FittedHead":
        """Load a head that `save` wrote. A module of your own is needed as `head`, because its code is not saved."""
        path = inside(Path(directory), "head.json")
        try:
            description = read_json(path, "fitted head")
            shape, labels = read_shape(description["shape"], str(path)), description["labels"]
            config = HeadConfig.from_dict(description["head"]) if description["head"] else None
        except (KeyError, TypeError, AttributeError) as error:
            raise BertVisionError(f"{path} is damaged: {error!r}.") from error
        if config is None and head is None:
            raise BertVisionError(
                f"The head in {directory} is the module {description['module']}, whose code is not saved. Give the "
                "class or an instance of it: FittedHead.load(directory, head=...)."
            )
        weights = load_tensors(inside(Path(directory), "head.safetensors"), "fitted head")[0]
        if config is not None:
            check_head_size(config, shape, weights, str(directory))
        module = _build_module(config or head, shape)
        load_head_weights(module, weights)
        encoder = ClassLabelEncoder.from_dict(labels) if labels else None
        return cls(module=module.eval(), shape=shape, config=config, label_encoder=encoder)


def fit_head(
    states: HiddenStates,
    y: Any,
    head: str | HeadConfig | nn.Module | type[nn.Module] = "default",
    *,
    epochs: float = 10,
    learning_rate: float | None = None,
    validation_fraction: float = 0.1,
    random_state: int = 0,
    callbacks: Sequence[Callback] = (),
) -> FittedHead:
    """Train a head on hidden states.

    Args:
        states: Hidden states from `extract`.
        y: Class labels; or numbers with fractions, for regression.
        head: A specification such as "adapter:size=32", a `HeadConfig`, or an `nn.Module` whose
            `forward(hidden, attention_mask)` takes hidden states (B, L, T, W) and a boolean mask (B, T) and returns
            logits (B, C). An instance is copied. A class is called with the `HeadShape`. T is 1 for pooled states.
        epochs: Passes over the states. The weights of the epoch with the best validation score are kept.
        learning_rate: Peak learning rate of AdamW.
        validation_fraction: Share of the rows that is held out for validation; 0: the weights of the last epoch.
        random_state: Seed of the split, the initial weights, the order of rows and dropout.
        callbacks: Callbacks of the training loop.
    """
    if not isinstance(states, HiddenStates):
        raise BertVisionError(f"states must be what `extract` returned, got a {type(states).__name__}.")
    labels, encoder = _encode_labels(y, len(states))
    shape = HeadShape(
        num_layers=states.num_layers,
        max_tokens=int(states.row_table.lengths.max()),
        hidden_size=states.hidden_size,
        num_outputs=len(encoder.classes_) if encoder else 1,
        per_token=False,
    )
    kind = "text" if states.row_table.second_text_starts is None else "pair"
    count = count_of(validation_fraction, len(labels)) if validation_fraction else 0
    held_out = draw(labels if encoder else quantile_bins(labels.tolist()), count, random_state, leave=1)
    training = np.setdiff1d(np.arange(len(labels)), held_out)
    plan = BatchPlan(states.row_table.lengths, BATCH_ROWS, seed=random_state, chosen=training)
    validate = partial(_validation_scores, states, labels, held_out) if count else None
    options = FitOptions(seed=random_state, validate=validate, callbacks=callbacks, label="fit head")
    rate = learning_rate or DEFAULT_LEARNING_RATES[kind]
    settings = TrainingConfig(learning_rate=rate, epochs=epochs, batch_size=BATCH_ROWS)
    config = _parse_head(head, kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        module = _build_module(config or head, shape)
        check_own_head(type(module).__name__, module, shape, shape.num_layers, shape.max_tokens)
        batches = _LabelledStates(states, plan, labels)
        rows = _LabelledStates(states, BatchPlan(states.row_table.lengths, BATCH_ROWS, chosen=held_out), labels)
        held_out_states = rows if count else None
        train_state = fit_models(
            {"head": module}, batches, _loss, {"head": settings}, options, validation=held_out_states
        )["head"]
    if train_state.failed:
        raise BertVisionError(f"Training the head failed: {train_state.failed}.")
    return FittedHead(module=module, shape=shape, config=config, label_encoder=encoder)


def _loss(logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Return the cross-entropy for class indices, and the mean squared error for scores."""
    if labels.is_floating_point():
        return functional.mse_loss(logits[:, 0], labels)
    return functional.cross_entropy(logits, labels)


def _validation_scores(
    states: HiddenStates, labels: np.ndarray, held_out: np.ndarray, models: Mapping[str, nn.Module]
) -> dict[str, tuple[float, float]]:
    """Return the accuracy (0 for regression) and the negated loss of the head on the rows that are held out."""
    logits = torch.from_numpy(_logits(models["head"], states, held_out)[held_out])
    expected = torch.from_numpy(labels[held_out])
    accuracy = 0.0 if expected.is_floating_point() else float((logits.argmax(dim=1) == expected).float().mean())
    return {"head": (accuracy, -float(_loss(logits, expected)))}


def _parse_head(head: Any, kind: str) -> HeadConfig | None:
    """Return the configuration of a head; None for a module of the user's own."""
    if isinstance(head, HeadConfig):
        return head
    if not isinstance(head, str):
        return None
    # `extract` encodes the texts of a pair together, but the default head of pairs also reads them separately.
    cross = {"encoding": "cross"} if head == "default" and kind == "pair" else {}
    return HeadConfig.parse(head, kind).replace(**cross)


def _build_module(head: Any, shape: HeadShape) -> nn.Module:
    """Build a head from its configuration or class, or copy a module."""
    if isinstance(head, HeadConfig):
        return build_head(head, shape)
    if isinstance(head, nn.Module):
        return deepcopy(head)
    if isinstance(head, type) and issubclass(head, nn.Module):
        return head(shape)
    raise BertVisionError(f"A head is a specification, a HeadConfig, or an nn.Module or its class; got {head!r}.")


def _encode_labels(y: Any, rows: int) -> tuple[np.ndarray, ClassLabelEncoder | None]:
    """Return class indices and their encoder, or scores and None."""
    values = np.asarray(y)
    if values.shape != (rows,):
        raise BertVisionError(f"y must hold one label for each of the {rows:,} rows; its shape is {values.shape}.")
    if type_of_target(values) == "continuous":
        return values.astype(np.float32), None
    encoder = ClassLabelEncoder().fit(values)
    if len(encoder.classes_) < 2:
        raise BertVisionError(f"y must hold at least two classes; all labels are {values[0]!r}.")
    return encoder.transform(values), encoder


def _logits(module: nn.Module, states: HiddenStates, chosen: np.ndarray | None = None) -> np.ndarray:
    """Return the logits of all rows, (N, C); those of rows that were not chosen are zero."""
    lengths = states.row_table.lengths
    plan = BatchPlan(lengths, 2 * BATCH_ROWS, budget=_batch_tokens(torch.device("cpu")), chosen=chosen)
    batches = _LabelledStates(states, plan, np.zeros(len(states)))
    return predict({"head": module}, batches, states.row_table.ids, label="predict")["head"].logits
