"""One cell of peers.py: run a method on a task, measure seconds and memory of each stage, score it once on dev."""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import Cells, Finished
from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from bertvision import heads, pipeline
from bertvision.computed_states import ComputedStates
from bertvision.encoders import Encoder, EncoderWithHead, LoadedEncoder, load_encoder
from bertvision.ensembles import combine
from bertvision.heads import BertHead, required_view
from bertvision.pipeline import ExperimentData
from bertvision.pipeline.evaluation import validation_score
from bertvision.pipeline.experiment import Experiment, make
from bertvision.pipeline.head_training import new_head
from bertvision.pipeline.states import states
from bertvision.training import FitOptions, TrainState, fit
from bertvision.types import Predictions, StateView, call_head

LATENCY_ROWS = 200


def anonymous() -> int:
    """Return the anonymous memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("The kernel does not report anonymous memory.")


class Meter:
    """Seconds and peak anonymous memory, above what imports take, of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, int] = {}
        self.baseline = anonymous()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure what happens inside."""
        ended = threading.Event()
        peak = [anonymous()]

        def watch() -> None:
            while not ended.wait(0.02):
                peak[0] = max(peak[0], anonymous())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            ended.set()
            watcher.join()
            self.peaks[name] = max(self.peaks.get(name, 0), peak[0] - self.baseline)


@dataclass
class Outcome:
    """The result of a method."""

    predict: Callable[[str], dict[str, Predictions]]
    """Predictions of "validation" or "dev" by each variant; the first is the method's own."""
    trainable: int
    kept_bytes: int
    """What must be stored to answer later, in addition to the original encoder where it is unchanged."""
    answer: nn.Module
    """Tokens -> logits, to time an answer."""
    extra: dict[str, Any] = field(default_factory=dict)


def load(data: ExperimentData) -> LoadedEncoder:
    """Load the encoder, the same and in the same precision for all methods."""
    return load_encoder(data.experiment.encoder, data.experiment.precision)


def finetune(data: ExperimentData, cell: dict, meter: Meter, adapt: Callable[[Encoder], None]) -> Outcome:
    """Train an encoder with BERT's own head; `adapt` chooses which parameters are trained."""
    with meter.stage("load"):
        torch.manual_seed(cell["seed"])
        loaded = load(data)
        adapt(loaded.encoder)
        loaded.encoder.restrict_vocabulary(data.vocabulary())
        model = EncoderWithHead(loaded.encoder, BertHead(data.shape(loaded.encoder), dropout=loaded.dropout))
    optim = replace(data.config.finetuning, learning_rate=cell["rate"], epochs=cell["length"], schedule="linear")
    optim = replace(optim, warmup_epochs=0.1 * cell["length"])

    def predict(name: str) -> dict[str, Predictions]:
        split = getattr(data, name)
        return data.predict({"model": model}, data.ordered(split), split, name)

    def validate(models: dict[str, nn.Module]) -> dict[str, tuple[float, float]]:
        return {"model": validation_score(data, data.validation, predict("validation")["model"])}

    with meter.stage("train"):
        batches = data.shuffled(optim)
        train_state = fit(
            {"model": model},
            batches,
            data.task.loss,
            {"model": optim},
            FitOptions(seed=cell["seed"], validate=validate),
        )
    with loaded.encoder.full_table():  # words that did not occur could have changed, too
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Outcome(predict, trainable, 4 * trainable, model, {"best_epoch": train_state["model"].best_epoch})


def everything(encoder: Encoder) -> None:
    """Full fine-tuning."""


def lora(encoder: Encoder) -> None:
    """peft's usual settings for BERT."""
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["query", "value"])
    get_peft_model(encoder.model, config)  # it puts its layers into the encoder itself and freezes the rest


def bitfit(encoder: Encoder) -> None:
    """Biases alone."""
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))


class Regression(nn.Module):
    """A linear model on frozen features, as a module whose latency is measured."""

    def __init__(self, encoder: Encoder, features: Callable[[Tensor, Tensor], Tensor], model: Any):
        super().__init__()
        self.encoder, self.features, self.model = encoder, features, model

    def forward(self, tokens: dict[str, Tensor], mask: Tensor) -> Tensor:
        """Tokens -> scores."""
        found = self.features(self.encoder.last(tokens, mask)[:, 0], mask).numpy()
        return torch.from_numpy(decide(self.model, found))


def decide(model: Any, features: np.ndarray) -> np.ndarray:
    """Log-probabilities of a classifier, scores of a regression. (N, F) -> (N, C)"""
    if hasattr(model, "predict_proba"):
        return np.log(np.maximum(model.predict_proba(features), 1e-20)).astype(np.float32)
    return model.predict(features).astype(np.float32)[:, None]


def regress(data: ExperimentData, rate: float, features: np.ndarray) -> Any:
    """Fit a regularized linear model, features standardized."""
    labels = data.train.features.labels
    if data.task.outputs == 1:
        return make_pipeline(StandardScaler(), Ridge(alpha=len(labels) * 0.01 / rate)).fit(features, labels)
    model = LogisticRegression(C=0.01 * rate, max_iter=1000)
    return make_pipeline(StandardScaler(), model).fit(features, labels)


def cls(last: Tensor, mask: Tensor) -> Tensor:
    """(B, T, W) -> (B, W)"""
    return last[:, 0]


def mean(last: Tensor, mask: Tensor) -> Tensor:
    """(B, T, W) -> (B, W)"""
    weight = mask.unsqueeze(-1).to(last.dtype)
    return (last * weight).sum(dim=1) / weight.sum(dim=1)


def linear(
    data: ExperimentData,
    cell: dict,
    meter: Meter,
    read: Callable[[str], np.ndarray],
    encoder: Encoder,
    features: Callable[[Tensor, Tensor], Tensor],
) -> Outcome:
    """Fit a linear model on what `read` makes of a split."""
    with meter.stage("states"):
        train, validation = read("train"), read("validation")
    with meter.stage("head"):
        model = regress(data, cell["rate"], train)

    def predict(name: str) -> dict[str, Predictions]:
        found = validation if name == "validation" else read(name)
        return {"model": Predictions(ids=getattr(data, name).features.ids, logits=decide(model, found))}

    count = model[-1].coef_.size + data.task.outputs
    return Outcome(predict, count, 8 * count, Regression(encoder, features, model))


def probe(data: ExperimentData, cell: dict, meter: Meter, features: Callable[[Tensor, Tensor], Tensor]) -> Outcome:
    """A linear model on the frozen last layer."""
    with meter.stage("load"):
        encoder = load(data).encoder.eval().requires_grad_(False)

    def read(name: str) -> np.ndarray:
        split = getattr(data, name)
        stream = ComputedStates(encoder, data.ordered(split), StateView(cross_layers=(encoder.num_layers - 1,)))
        found = np.empty((len(split.features), encoder.hidden_size), dtype=np.float32)
        for batch in stream.epoch(0):
            assert isinstance(batch.inputs, Tensor)
            found[batch.rows] = features(batch.inputs[:, 0], batch.attention_mask).numpy()
        return found

    return linear(data, cell, meter, read, encoder, features)


def embedding(data: ExperimentData, cell: dict, meter: Meter) -> Outcome:
    """Sentences embedded one by one (mean of the last layer, length 1), compared, then a linear model."""
    with meter.stage("load"):
        encoder = load(data).encoder.eval().requires_grad_(False)
    kinds = len(data.train.examples[0].texts)

    def embed(name: str, side: int) -> np.ndarray:
        examples = [replace(each, texts=(each.texts[side],)) for each in getattr(data, name).examples]
        features = data.task.encode(examples, data.tokenizer, data.max_tokens)
        split = replace(getattr(data, name), features=features)
        stream = ComputedStates(encoder, data.ordered(split), StateView(cross_layers=(encoder.num_layers - 1,)))
        found = np.empty((len(examples), encoder.hidden_size), dtype=np.float32)
        for batch in stream.epoch(0):
            assert isinstance(batch.inputs, Tensor)
            found[batch.rows] = nn.functional.normalize(mean(batch.inputs[:, 0], batch.attention_mask), dim=-1).numpy()
        return found

    def read(name: str) -> np.ndarray:
        sides = [embed(name, side) for side in range(kinds)]
        if kinds == 1:
            return sides[0]
        return np.concatenate([*sides, np.abs(sides[0] - sides[1]), sides[0] * sides[1]], axis=1)

    def paired(last: Tensor, mask: Tensor) -> Tensor:
        """Return features of the right size to measure latency: both encodings of a pair have equally many tokens."""
        return mean(last, mask).repeat(1, 1 if kinds == 1 else 4)

    return linear(data, cell, meter, read, encoder, paired)


class EncoderAndHead(nn.Module):
    """An encoder and a head that reads some of its layers."""

    def __init__(self, encoder: Encoder, head: nn.Module, view: StateView):
        super().__init__()
        self.encoder, self.head, self.view = encoder, head, view

    def forward(self, tokens: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        """Tokens -> logits."""
        layers = {"cross_layers": self.view.cross_layers, "bi_layers": self.view.bi_layers}
        hidden = self.encoder(tokens, attention_mask, text_ids, **layers)
        return call_head(self.head, hidden, attention_mask, text_ids)


def bertvision(data: ExperimentData, cell: dict, meter: Meter) -> Outcome:
    """Fine-tune for a fraction, read all layers once, train the default head and its control."""
    config = data.config.heads[-1]
    configs = {str(each): each for each in (config, config.last_layer_only())}
    spec, control = configs
    with tempfile.TemporaryDirectory() as root:
        with meter.stage("finetune"):
            checkpoint = pipeline.open_checkpoint(data, pipeline.finetune(data, Path(root)), cell["length"])
        shape = data.shape(checkpoint.encoder, [config])
        view = required_view([config], shape)
        new = {name: new_head(data, each, shape, view) for name, each in configs.items()}
        with meter.stage("states"):
            shuffled, dtype = data.shuffled(data.config.head_training), heads.training_dtype(new.values())
            batches = {
                "validation": states(data, checkpoint, "validation", view, data.ordered(data.validation)),
                "train": states(data, checkpoint, "train", view, shuffled, dtype),
            }

        def learn(name: str) -> TrainState:
            models = {"model": new[name]}

            def validate(models: dict[str, nn.Module]) -> dict[str, tuple[float, float]]:
                found = data.predict(models, batches["validation"], data.validation, "validate")
                return {"model": validation_score(data, data.validation, found["model"])}

            configs = {"model": data.config.head_training}
            return fit(
                models, batches["train"], data.task.loss, configs, FitOptions(seed=cell["seed"], validate=validate)
            )["model"]

        with meter.stage("head"):
            train_state = learn(spec)
        with meter.stage("control"):
            only = learn(control)
        batches["dev"] = states(data, checkpoint, "dev", view, data.ordered(data.dev))
        last_layer = StateView(cross_layers=(checkpoint.encoder.num_layers - 1,))
        bert = heads.LayerSelect(checkpoint.bert_head, last_layer, view)
        models = {"model": train_state.model, "control": only.model, "bert": bert}
        found = {name: data.predict(models, batches[name], getattr(data, name), name) for name in ("validation", "dev")}
    for each in found.values():
        each["ensemble"] = combine([each["bert"], each["model"]], "mean")
    trainable = sum(p.numel() for p in train_state.model.parameters())
    kept = 4 * (sum(p.numel() for p in checkpoint.encoder.parameters()) + trainable)
    extra = {"best_epoch": train_state.best_epoch, "head": spec}
    return Outcome(
        lambda name: found[name], trainable, kept, EncoderAndHead(checkpoint.encoder, train_state.model, view), extra
    )


METHODS: dict[str, Callable[[ExperimentData, dict, Meter], Outcome]] = {
    "fine-tuning": lambda data, cell, meter: finetune(data, cell, meter, everything),
    "lora": lambda data, cell, meter: finetune(data, cell, meter, lora),
    "bitfit": lambda data, cell, meter: finetune(data, cell, meter, bitfit),
    "probe-cls": lambda data, cell, meter: probe(data, cell, meter, cls),
    "probe-mean": lambda data, cell, meter: probe(data, cell, meter, mean),
    "embedding": embedding,
    "bertvision": bertvision,
    "bertvision-run": bertvision,
}


def settings(cell: dict, data_dir: str, rows: int, dev_rows: int) -> Experiment:
    """Return the experiment of a cell. All methods use the same rows."""
    found = {"data_dir": data_dir} if data_dir and cell["task"] in ("mrpc", "stsb") else {}
    experiment = make(task=cell["task"], limit=rows, limit_dev=dev_rows, seed=cell["seed"], controls=False, **found)
    if cell["method"] == "bertvision-run":
        experiment = replace(experiment, fractions=[cell["length"]], states="store")
    if cell["method"] == "bertvision":
        warmup = 0.1 * cell["length"]
        optim = replace(experiment.finetune, learning_rate=cell["rate"], schedule="linear", warmup_epochs=warmup)
        experiment = replace(experiment, fractions=[cell["length"]], finetune=optim, states="store")
    return experiment


@torch.no_grad()
def latency(model: nn.Module, data: ExperimentData) -> float:
    """Median seconds of one answer, tokens given."""
    model.eval()
    tokens = data.ordered(data.dev)
    batches = [tokens.collate(np.array([row])) for row in range(min(LATENCY_ROWS, len(data.dev.features)))]
    seconds = []
    for batch in batches:
        began = time.perf_counter()
        call_head(model, batch.inputs, batch.attention_mask, batch.text_ids)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def run(cell: dict, cells: Cells, key: str, data_dir: str, rows: int, dev_rows: int, alone: bool) -> None:
    """Run a cell and save its results under `key`."""
    meter = Meter()
    with meter.stage("tokenize"):
        data = pipeline.prepare(settings(cell, data_dir, rows, dev_rows))
    outcome = METHODS[cell["method"]](data, cell, meter)
    task, split = data.task, data.dev
    validation = outcome.predict("validation")
    found = cell | {
        "alone": alone,
        "grade": list(validation_score(data, data.validation, validation["model"])),
        "seconds": meter.seconds,
        "total": sum(seconds for name, seconds in meter.seconds.items() if name != "control"),
    }
    if cell["tuning"]:
        cells.write(key, Finished(found))
        return
    scores, compared = {}, {}
    for name, predictions in outcome.predict("dev").items():
        chosen = task.fit_decoding(validation[name], data.validation.features, data.validation.examples)
        outcomes = task.outcomes(task.decode(predictions, split.features, chosen), split.examples)
        compared[name] = np.float32(outcomes).round(4)
        validation_scores = list(validation_score(data, data.validation, validation[name]))
        scores[name] = task.compute_metrics(outcomes) | {"grade": validation_scores}
    found |= {
        "primary": task.primary,
        "score": scores["model"][task.primary],
        "scores": scores,
        "peak_bytes": meter.peaks,
        "trainable": outcome.trainable,
        "kept_bytes": outcome.kept_bytes,
        "latency": latency(outcome.answer, data) if alone else 0.0,
        "train_rows": len(data.train.examples),
        "train_tokens": int(data.train.features.lengths.sum()),
    }
    cells.write(key, Finished(found | outcome.extra, compared))
