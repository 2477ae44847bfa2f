"""Choose defaults of heads: lengths of training, convex heads and their combination, on rows of train only.

    python benchmarks/defaults.py --data-dir GLUE --other-dir OTHER [--tasks trec:500] [--fractions 0]
    python benchmarks/defaults.py ... --json benchmarks/results/defaults.json

A number of training rows is drawn from the training file, and up to 3,000 of the others are scored. The dev split is
not read. Each task is run with the default heads at several lengths of head training, and with their combination.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer.data import COLUMNS, Directories, load_rows

from bertvision.encoders import load_encoder_info
from bertvision.files import write_json
from bertvision.pipeline import load_data, resolve, run_data
from bertvision.pipeline.experiment import make
from bertvision.tasks import DataSplits

TASKS = "banking77:2000,banking77:500,trec:3000,trec:500,rotten-tomatoes:3000,ag_news:500,mrpc:2500,stsb:1500"
EPOCHS = (3.0, 0.0)
"""Lengths of head training. 0: the default."""
SCORED_ROWS = 3000


def run_task(name: str, rows: int, fraction: float, epochs: float, directories: Directories) -> list[dict[str, Any]]:
    """Train the default heads on some rows of train, and score them on others."""
    given = load_rows(replace(COLUMNS[name], rows=0), directories, seed=0)
    examples = given.task.sample([*given.train, *given.validation], 0, 0)
    train = given.task.sample(examples, rows, 1)
    drawn = {example.id for example in train}
    scored = given.task.sample([row for row in examples if row.id not in drawn], SCORED_ROWS, 1)
    experiment = make(task=name, fractions=[fraction], controls=False, split="texts", train={"epochs": epochs})
    data = load_data(
        resolve(experiment, given.task, load_encoder_info("minilm")),
        DataSplits(train=train, validation=None, dev=scored),
    )
    with tempfile.TemporaryDirectory() as root:
        result = run_data(data, Path(root))
        return [
            {
                "task": f"{name}, {rows:,} rows",
                "fraction": fraction,
                "epochs": data.head_training.epochs,
                "model": run.name,
                "score": round(run.metrics.primary_score, 2),
                "validation": round(run.validation_score[0], 2),
                "chosen": run.directory == result.best.directory,
            }
            for run in result.runs
            if run.kind != "bert" and not run.name.startswith("BERT")
        ]


def main() -> None:
    """Run the tasks one after the other, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="the official GLUE files")
    parser.add_argument("--other-dir", default="", help="the directories banking77, trec and ag_news")
    parser.add_argument("--tasks", default=TASKS, help="tasks with their numbers of training rows")
    parser.add_argument("--fractions", default="0.3", help="epochs of fine-tuning")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for task in options.tasks.split(","):
        name, _, count = task.partition(":")
        for fraction in map(float, options.fractions.split(",")):
            for epochs in EPOCHS:
                directories = Directories(glue=options.data_dir, other=options.other_dir)
                for row in run_task(name, int(count), fraction, epochs, directories):
                    print(json.dumps(row), flush=True)
                    rows.append(row)
    if options.json:
        write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
