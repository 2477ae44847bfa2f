"""model2vec: static embeddings that are distilled from the encoder once, for all data sets."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.encoders.loading import load_encoder
from bertvision.files import atomic_directory, file_lock
from bertvision.sources import cache_directory
from bertvision.tasks import Example
from peer.data import CellData
from peer.meter import Meter
from peer.methods.base import Outcome, Train, joined
from peer.methods.linear import each_text, linear, share
from peer.plan import Job


def static_model(cell: CellData, meter: Meter) -> Any:
    """Return the static model. It is distilled at most once and then kept in the cache directory of the package."""
    from model2vec import StaticModel  # pyright: ignore[reportMissingImports]

    directory = cache_directory() / "benchmarks" / f"model2vec-{Path(cell.experiment.encoder).name}"
    with file_lock(directory, wait=True):
        if not directory.is_dir():
            with meter.stage("prepare"), atomic_directory(directory) as temporary:
                _distill(cell.experiment.encoder).save_pretrained(str(temporary))
    with meter.stage("load"):
        return StaticModel.from_pretrained(str(directory))


def _distill(encoder: str) -> Any:
    from model2vec.distill import distill_from_model  # pyright: ignore[reportMissingImports]
    from transformers import AutoModel

    loaded = load_encoder(encoder)
    model: Any = AutoModel.from_config(loaded.encoder.model.config, attn_implementation="sdpa")
    model.load_state_dict(loaded.encoder.model.state_dict(), strict=False)  # without the pooler, which is not read
    model.name_or_path = "."  # a directory, so that no Hub is asked for the language of the model
    return distill_from_model(model.eval(), loaded.tokenizer)


def frozen(cell: CellData, job: Job, meter: Meter) -> Outcome:
    """A linear model on the static embeddings."""
    model = static_model(cell, meter)

    def embed(examples: Sequence[Example]) -> np.ndarray:
        return np.asarray(model.encode([example.texts[0] for example in examples]), dtype=np.float32)

    return linear(cell, job, meter, each_text(embed), share(cell, job), stored=model.embedding.nbytes)


def tuned(cell: CellData, job: Job, meter: Meter) -> Outcome:
    """The static embeddings and a layer on top are trained; stops early on the validation rows."""
    from model2vec.train import StaticModelForClassification  # pyright: ignore[reportMissingImports]

    logging.getLogger("model2vec").setLevel(logging.ERROR)
    static = static_model(cell, meter)
    labels = [[cell.task.classes[example.label] for example in rows] for rows in (cell.train, cell.validation)]
    with meter.stage("train"):
        model = StaticModelForClassification.from_static_model(model=static)
        model.fit(
            joined(cell.train),
            labels[0],
            X_val=joined(cell.validation),
            y_val=labels[1],
            learning_rate=job.setting.rate,
            max_epochs=int(job.length),
            device="cpu",
            random_seed=job.seed,
        )
    order = [list(model.classes).index(name) for name in cell.task.classes if name in set(model.classes)]

    def predict(examples: Sequence[Example]) -> dict[str, np.ndarray]:
        probabilities = np.full((len(examples), len(cell.task.classes)), 1e-20, dtype=np.float32)
        columns = [row for row, name in enumerate(cell.task.classes) if name in set(model.classes)]
        probabilities[:, columns] = np.asarray(model.predict_proba(joined(examples)))[:, order]
        return {"model": np.log(np.maximum(probabilities, 1e-20))}

    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Outcome(predict, trainable, 4 * trainable)


METHODS: dict[str, Train] = {"model2vec": frozen, "model2vec-tuned": tuned}
