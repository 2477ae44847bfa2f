"""Encoders and hidden states that all estimators of a process share, and predictions with them."""

from collections.abc import Sequence
from functools import lru_cache

from bertvision import devices
from bertvision.computed_states import ComputedStates
from bertvision.encoders import Encoder, EncoderInfo, load_encoder_info
from bertvision.pipeline import cache_keys, experiment_of
from bertvision.pipeline.frozen_cache import FrozenCache, full_view
from bertvision.prediction import evaluation_batches, predict
from bertvision.runs import Run
from bertvision.shared_encoders import (
    AttachedHead,
    EncoderPool,
    TorchEncoder,
    channels_of,
    scoring_precision,
    view_of_head,
)
from bertvision.states import InMemoryStates, RowTable
from bertvision.trained_model import TrainedModel
from bertvision.types import Features, Predictions, StateView

CACHE = FrozenCache()
"""The cache that all estimators of this process share."""


@lru_cache(maxsize=8)
def encoder_info(name: str) -> EncoderInfo:
    """Return the tokenizer and dimensions of an encoder that has a name."""
    return load_encoder_info(name)


def load_model(
    run: Run, info: EncoderInfo, cache: FrozenCache = CACHE, *, encoder: Encoder | None = None
) -> TrainedModel:
    """Load the model of a run in the precision it was scored in. The encoder in the cache is used if it is the same.

    `encoder` is the encoder of the run, if it is in memory.
    """
    pool = EncoderPool(precision="run")
    first = (run.members() or [run])[0]
    if encoder is not None:
        weights = first.record.encoder_hash
        pool.loaded[weights, scoring_precision(first)] = TorchEncoder(encoder, weights)
        return TrainedModel(run, pool, info)
    cached = cache.last_encoder
    if cached is not None and cached.weights_hash == first.record.encoder_hash:
        pool.loaded[cached.weights_hash, scoring_precision(first)] = TorchEncoder(
            cached.loaded.encoder, cached.weights_hash
        )
    return TrainedModel(run, pool, info)


def logits(model: TrainedModel, features: Features, cache: FrozenCache = CACHE) -> Predictions:
    """Return the logits of a model. Texts that an encoder without fine-tuning has read before are not encoded again."""
    shape = model.members[0].record.head_shape
    num_bytes = int(features.offsets[-1]) * shape.num_channels * shape.hidden_size * 4
    is_torch = all(isinstance(head.shared_encoder, TorchEncoder) for head in model.attached_heads)
    if model.run.record.fraction > 0 or num_bytes > cache.max_bytes // 2 or not is_torch:
        return model.logits(features)
    groups: dict[tuple[int, StateView], list[AttachedHead]] = {}
    for head in model.attached_heads:
        encoder = head.shared_encoder
        assert isinstance(encoder, TorchEncoder)
        own = view_of_head(encoder.heads[head.head], encoder.encoder.num_layers)
        groups.setdefault((id(encoder), own), []).append(head)
    predictions: dict[AttachedHead, Predictions] = {}
    for (_, own), heads in groups.items():
        predictions |= _logits(model, heads, own, features, cache)
    return model.combine_members(predictions)


def _logits(
    model: TrainedModel, attached: Sequence[AttachedHead], own: StateView, features: Features, cache: FrozenCache
) -> dict[AttachedHead, Predictions]:
    """Return the logits of heads that read the same hidden states."""
    encoder = attached[0].shared_encoder
    assert isinstance(encoder, TorchEncoder)
    num_layers, device = encoder.encoder.num_layers, devices.device()
    view = full_view(num_layers, bi_encoding=bool(own.bi_layers))
    token_bytes = num_layers * encoder.encoder.hidden_size * 4
    tokens = evaluation_batches(features, model.pad_ids, token_bytes, device.type)
    source = ComputedStates(encoder.encoder, tokens, view, device=device)
    identity = cache_keys.frozen_states(experiment_of(model.run), encoder.weights)
    rows = RowTable(
        lengths=features.lengths,
        labels=features.labels,
        ids=features.ids,
        second_text_starts=features.second_text_starts,
    )
    channels = channels_of(own, view)
    states = InMemoryStates([state[channels] for state in cache.read(source, identity)], rows, tokens.plan)
    offsets = features.offsets if model.task.per_token else None
    heads = {head.head: encoder.heads[head.head] for head in attached}
    predictions = predict(heads, states, features.ids, offsets, label="predict")
    return {head: predictions[head.head] for head in attached}
