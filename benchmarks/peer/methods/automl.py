"""AutoGluon in an environment of its own: it does not install beside the versions that the package is tested with.

The variable AUTOGLUON_PYTHON names the interpreter of that environment, in which autogluon.multimodal is installed.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.encoders import load_encoder
from bertvision.errors import BertVisionError
from bertvision.tasks import Example
from peer.data import CellData
from peer.meter import Meter
from peer.methods.base import Outcome, Train, labels_of
from peer.plan import Job

VARIABLE = "AUTOGLUON_PYTHON"

WORKER = """
import json, sys, time
import pandas
from autogluon.multimodal import MultiModalPredictor
request = json.load(open(sys.argv[1]))
train, validation = (pandas.DataFrame(request[name]) for name in ("train", "validation"))
began = time.perf_counter()
predictor = MultiModalPredictor(
    label="label", problem_type=request["problem"], path=request["path"], verbosity=0)
predictor.fit(train, tuning_data=validation, time_limit=request["seconds"], seed=request["seed"], hyperparameters={
    "model.names": ["hf_text"], "model.hf_text.checkpoint_name": request["encoder"],
    "model.hf_text.max_text_len": request["max_tokens"], "env.num_gpus": 0, "env.num_workers": 0})
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds}), flush=True)
for line in sys.stdin:
    table = pandas.DataFrame(json.loads(line))
    if request["problem"] == "regression":
        values = predictor.predict(table).to_numpy()[:, None].tolist()
    else:
        found = predictor.predict_proba(table)
        values = found[sorted(found.columns)].to_numpy().tolist()
    print(json.dumps({"values": values}), flush=True)
"""


def autogluon(cell: CellData, job: Job, meter: Meter) -> Outcome:
    """Train a MultiModalPredictor within a time limit. The seconds are those of its `fit`, as its process measured."""
    interpreter = os.environ.get(VARIABLE, "")
    if not interpreter:
        raise BertVisionError(f"AutoGluon needs an environment of its own; {VARIABLE} must name its interpreter.")
    directory = tempfile.TemporaryDirectory()
    root = Path(directory.name)
    load_encoder(cell.experiment.encoder).encoder.save_pretrained(root / "encoder")
    request = {
        "train": _table(cell.train, labelled=True),
        "validation": _table(cell.validation, labelled=True),
        "problem": "regression" if not cell.task.classes else "multiclass" if len(cell.task.classes) > 2 else "binary",
        "path": str(root / "model"),
        "encoder": str(root / "encoder"),
        "seconds": job.length,
        "seed": job.seed,
        "max_tokens": cell.task.max_tokens,
    }
    (root / "request.json").write_text(json.dumps(request))
    (root / "worker.py").write_text(WORKER)
    command = [interpreter, str(root / "worker.py"), str(root / "request.json")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    began = time.perf_counter()
    meter.add("train", _answer(process)["seconds"])
    meter.add("prepare", max(0.0, time.perf_counter() - began - meter.seconds["train"]))

    def predict(examples: Sequence[Example], held: object = directory) -> dict[str, np.ndarray]:
        assert process.stdin is not None
        process.stdin.write(json.dumps(_table(examples, labelled=False)) + "\n")
        process.stdin.flush()
        values = np.array(_answer(process)["values"], dtype=np.float32)
        return {"model": np.log(np.maximum(values, 1e-20)) if cell.task.classes else values}

    parameters = sum(p.numel() for p in load_encoder(cell.experiment.encoder).encoder.parameters())
    return Outcome(predict, parameters, 4 * parameters)


def _table(examples: Sequence[Example], *, labelled: bool) -> dict[str, list[Any]]:
    columns = {f"text{side}": [e.texts[side] for e in examples] for side in range(len(examples[0].texts))}
    return columns | ({"label": labels_of(examples).tolist()} if labelled else {})


def _answer(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return the next line of JSON that the process prints; other lines are of its libraries."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise BertVisionError(f"AutoGluon ended with code {process.wait()}; its messages are above.")


METHODS: dict[str, Train] = {"autogluon": autogluon}
