"""SetFit, the package: a sentence encoder trained on contrastive pairs, then logistic regression on its embeddings."""

import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.encoders import load_encoder
from bertvision.tasks import Example
from peer.data import CellData
from peer.meter import Meter
from peer.methods.base import Outcome, Train, joined, labels_of
from peer.plan import Job

PAIR_ROWS = 2000
"""Rows that pairs are drawn from. The package lists all pairs of rows before it draws: 10,000 rows make 50 million."""
BATCH = 16


def setfit(cell: CellData, job: Job, meter: Meter) -> Outcome:
    """Train with the package's defaults but for the learning rate; the length is the number of steps.

    Pairs are drawn from at most PAIR_ROWS rows, the logistic regression reads all.
    """
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments  # pyright: ignore[reportMissingImports]

    logging.getLogger("setfit").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    torch.manual_seed(job.seed)
    np.random.seed(job.seed)
    with tempfile.TemporaryDirectory() as directory:
        with meter.stage("load"):
            _save_sentence_encoder(cell.experiment.encoder, Path(directory))
            model: Any = SetFitModel.from_pretrained(
                directory, head_params={"max_iter": 1000}, local_files_only=True, device="cpu"
            )
        arguments = TrainingArguments(
            output_dir=f"{directory}/output",
            batch_size=BATCH,
            num_epochs=1,
            max_steps=int(job.length),
            body_learning_rate=job.setting.rate,
            max_length=cell.task.max_tokens,
            seed=job.seed,
            report_to="none",
            save_strategy="no",
            show_progress_bar=False,
        )
        rows = cell.task.sample(cell.train, PAIR_ROWS, job.seed)
        data = Dataset.from_dict({"text": joined(rows), "label": labels_of(rows).tolist()})
        with meter.stage("train"):
            trainer = Trainer(model=model, args=arguments, train_dataset=data)
            trainer.train_embeddings(joined(rows), labels_of(rows).tolist(), args=arguments)
        with meter.stage("head"):
            model.fit(joined(cell.train), labels_of(cell.train).tolist(), num_epochs=1)

    def predict(examples: Sequence[Example]) -> dict[str, np.ndarray]:
        found = np.asarray(model.predict_proba(joined(examples), as_numpy=True))
        probabilities = np.zeros((len(examples), len(cell.task.classes)), dtype=np.float32)
        probabilities[:, model.model_head.classes_] = found
        return {"model": np.log(np.maximum(probabilities, 1e-20))}

    trainable = sum(p.numel() for p in model.model_body.parameters() if p.requires_grad)
    return Outcome(predict, trainable, 4 * trainable)


def _save_sentence_encoder(name: str, directory: Path) -> None:
    """Write the encoder in the layout of sentence-transformers: mean of the last layer, length 1."""
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
    from sentence_transformers.sentence_transformer.modules import (  # pyright: ignore[reportMissingImports]
        Normalize,
        Pooling,
        Transformer,
    )

    encoder = load_encoder(name).encoder
    encoder.save_pretrained(directory / "encoder")
    body = Transformer(str(directory / "encoder"))
    parts: list[Any] = [body, Pooling(encoder.hidden_size, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(directory))


METHODS: dict[str, Train] = {"setfit": setfit}
