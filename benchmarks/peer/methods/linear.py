"""Linear models on fixed features: TF-IDF, frozen states, sentence embeddings, static embeddings."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from bertvision.computed_states import ComputedStates
from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.encoders import Encoder, LoadedEncoder, load_encoder
from bertvision.prediction import evaluation_batches
from bertvision.tasks import Example
from bertvision.types import StateView
from peer.data import CellData
from peer.meter import Meter
from peer.methods.base import Outcome, Train, grade, labels_of
from peer.plan import Job

Read = Callable[[Sequence[Example]], Any]
"""Rows to features, a matrix (N, F)."""

STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""C of logistic regression on standardized features, among which validation chooses. Ridge: alpha = 0.01 rows / C."""
SPARSE_STRENGTHS = (1.0, 10.0, 100.0)
"""The same for TF-IDF, whose features are not standardized."""


def linear(cell: CellData, job: Job, meter: Meter, read: Read, rows: Sequence[Example], stored: int = 0) -> Outcome:
    """Fit linear models of several strengths to features, and keep the one that validation prefers.

    The seconds of the others are those of the stage "tuning". `stored`: bytes that `read` needs beside the encoder.
    """
    with meter.stage("features"):
        train, validation = read(rows), read(cell.validation)
    fitted = []
    for strength in SPARSE_STRENGTHS if scipy.sparse.issparse(train) else STRENGTHS:
        began = time.perf_counter()
        model = _fit(cell, strength, train, labels_of(rows))
        score = grade(cell.task, _decide(model, validation, cell.task.outputs), cell.validation)
        fitted.append((score, strength, model, time.perf_counter() - began))
    score, strength, model, seconds = max(fitted, key=lambda each: each[0])
    meter.add("head", seconds)
    meter.add("tuning", sum(each[-1] for each in fitted) - seconds)
    size = model[-1].coef_.size + model[-1].intercept_.size
    extra = {"strength": strength, "tried": {each[1]: each[0] for each in fitted}}
    return Outcome(
        lambda examples: {"model": _decide(model, read(examples), cell.task.outputs)}, size, 8 * size + stored, extra
    )


def _fit(cell: CellData, strength: float, features: Any, labels: np.ndarray) -> Any:
    is_sparse = scipy.sparse.issparse(features)
    if cell.task.classes:
        model = LogisticRegression(C=strength, max_iter=1000)
    else:
        model = Ridge(alpha=1 / strength if is_sparse else 0.01 * len(labels) / strength)
    steps = [model] if is_sparse else [StandardScaler(), model]
    return make_pipeline(*steps).fit(features, labels)


def _decide(model: Any, features: Any, outputs: int) -> np.ndarray:
    """Return log-probabilities of a classifier, scores of a regression. (N, F) -> (N, C)

    Few rows may lack some classes, which then have the smallest probability.
    """
    if hasattr(model, "predict_proba"):
        probabilities = model.predict_proba(features)
        known = np.zeros((len(probabilities), outputs))
        known[:, model.classes_] = probabilities
        return np.log(np.maximum(known, 1e-20)).astype(np.float32)
    return model.predict(features).astype(np.float32)[:, None]


def share(cell: CellData, job: Job) -> list[Example]:
    """Return a stratified share of the training rows: the length of these methods."""
    return cell.task.sample(cell.train, round(job.length * len(cell.train)), job.seed)


def compared(sides: list[Any]) -> Any:
    """Return the features of single texts, or (u, v, |u - v|, u v) of pairs."""
    if len(sides) == 1:
        return sides[0]
    u, v = sides
    if scipy.sparse.issparse(u):
        return scipy.sparse.hstack([u, v, abs(u - v), u.multiply(v)]).tocsr()
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def tf_idf(cell: CellData, job: Job, meter: Meter) -> Outcome:
    """Words, pairs of words and character n-grams, weighted by TF-IDF."""
    rows = share(cell, job)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=1, token_pattern=r"(?u)\b\w+\b")
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2)
    vectorizer = make_union(words, characters)
    with meter.stage("features"):
        vectorizer.fit([text for example in rows for text in example.texts])

    def read(examples: Sequence[Example]) -> Any:
        return compared([vectorizer.transform(list(texts)) for texts in zip(*[e.texts for e in examples], strict=True)])

    return linear(cell, job, meter, read, rows)


def encoder_features(
    cell: CellData, meter: Meter, pool: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Sequence[Example]], np.ndarray]:
    """Return a function from rows to features of the frozen last layer. Pairs are read as one sequence."""
    with meter.stage("load"):
        loaded = load_encoder(cell.experiment.encoder, "auto")
        loaded.encoder.eval().requires_grad_(False)
    return partial(_pooled, cell, loaded, pool)


def _pooled(
    cell: CellData, loaded: LoadedEncoder, pool: Callable[[Tensor, Tensor], Tensor], examples: Sequence[Example]
) -> np.ndarray:
    encoder: Encoder = loaded.encoder
    info = encoder.info
    features = cell.task.encode(examples, loaded.tokenizer, min(cell.task.max_tokens, info.max_tokens))
    batches = evaluation_batches(features, info.pad_ids, encoder.num_layers * encoder.hidden_size * 4, "cpu")
    found = np.empty((len(examples), encoder.hidden_size), dtype=np.float32)
    stream = ComputedStates(encoder, batches, StateView(cross_layers=(encoder.num_layers - 1,)))
    with use_cpu_optimizations(cell.experiment.cpu_optimizations):
        for batch in stream.epoch(0):
            assert isinstance(batch.inputs, Tensor)
            found[batch.rows] = pool(batch.inputs[:, 0], batch.attention_mask).numpy()
    return found


def cls(last: Tensor, mask: Tensor) -> Tensor:
    """(B, T, W) -> (B, W)"""
    return last[:, 0]


def mean(last: Tensor, mask: Tensor) -> Tensor:
    """(B, T, W) -> (B, W)"""
    weight = mask.unsqueeze(-1).to(last.dtype)
    return (last * weight).sum(dim=1) / weight.sum(dim=1)


def unit_mean(last: Tensor, mask: Tensor) -> Tensor:
    """Return sentence embeddings: the mean, of length 1. (B, T, W) -> (B, W)"""
    return nn.functional.normalize(mean(last, mask), dim=-1)


def probe(pool: Callable[[Tensor, Tensor], Tensor], cell: CellData, job: Job, meter: Meter) -> Outcome:
    """A linear model on the frozen last layer."""
    return linear(cell, job, meter, encoder_features(cell, meter, pool), share(cell, job))


def embedding(cell: CellData, job: Job, meter: Meter) -> Outcome:
    """Texts embedded one by one (mean of the last layer, length 1), compared, then a linear model."""
    pooled = encoder_features(cell, meter, unit_mean)
    return linear(cell, job, meter, each_text(pooled), share(cell, job))


def each_text(embed: Callable[[Sequence[Example]], np.ndarray]) -> Read:
    """Return a function that embeds the texts of rows one by one and compares those of pairs."""

    def read(examples: Sequence[Example]) -> np.ndarray:
        sides = range(len(examples[0].texts))
        single = [[Example(id=e.id, texts=(e.texts[side],), label=e.label) for e in examples] for side in sides]
        return compared([embed(rows) for rows in single])

    return read


METHODS: dict[str, Train] = {
    "tf-idf": tf_idf,
    "probe-cls": partial(probe, cls),
    "probe-mean": partial(probe, mean),
    "embedding": embedding,
}
