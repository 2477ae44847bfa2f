"""What estimators cost: cross-validation against one fit, and `TextClassifier` against `bertvision run`.

    python benchmarks/estimators.py [--repeats 3] [--rows 3000]

Both measurements are ratios in one process, alternating, on rotten-tomatoes with MiniLM. Nothing is reused from one
measurement to the next: each has a cache directory of its own, and the cache in memory is emptied before it. The
results are written to benchmarks/results/estimators.json.
"""

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sklearn.model_selection import cross_val_score

from bertvision import TextClassifier, run
from bertvision.estimators import cached_states
from bertvision.tasks import TASKS, DataRequest, Example

RESULTS = Path(__file__).parent / "results" / "estimators.json"


def timed(action: Callable[[Path], Any]) -> tuple[float, Any]:
    """Return the seconds that an action takes with empty caches, and its result."""
    cached_states.CACHE.clear()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = action(Path(folder))
        return time.perf_counter() - began, result


def cross_validation(examples: Sequence[Example], repeats: int, *, controls: bool) -> dict[str, Any]:
    """Compare three-fold cross-validation of a frozen encoder with one fit, with or without control heads."""
    texts, labels = [example.texts[0] for example in examples], [example.label for example in examples]

    def fit(folder: Path) -> TextClassifier:
        return TextClassifier(fraction=0, controls=controls, verbose=0, cache_dir=folder).fit(texts, labels)

    def validate(folder: Path) -> list[float]:
        classifier = TextClassifier(fraction=0, controls=controls, verbose=0, cache_dir=folder)
        return cross_val_score(classifier, texts, labels, cv=3).tolist()

    timed(fit)  # warms up
    one, folds, scores = [], [], []
    for _ in range(repeats):
        one.append(timed(fit)[0])
        seconds, scores = timed(validate)
        folds.append(seconds)
    ratio = statistics.median(folds) / statistics.median(one)
    return {"rows": len(texts), "one_fit": one, "cross_val_score": folds, "ratio": ratio, "scores": scores}


def against_run(train: Sequence[Example], dev: Sequence[Example], repeats: int) -> dict[str, Any]:
    """Compare `TextClassifier` with `bertvision.run` on the same files and settings."""
    with tempfile.TemporaryDirectory() as data:
        files = {"train": Path(data) / "train.csv", "dev": Path(data) / "dev.csv"}
        for name, examples in (("train", train), ("dev", dev)):
            with files[name].open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerows([("text", "label"), *((example.texts[0], example.label) for example in examples)])

        def estimator(folder: Path) -> float:
            classifier = TextClassifier(fraction=0.3, verbose=0, cache_dir=folder).fit(files["train"])
            return 100 * classifier.score(files["dev"])

        def experiment(folder: Path) -> float:
            result = run(
                train_file=str(files["train"]), dev_file=str(files["dev"]), fractions=[0.3], task="reviews", root=folder
            )
            return result.best.primary_score

        timed(experiment)  # warms up
        seconds: dict[str, list[float]] = {"TextClassifier": [], "run": []}
        scores: dict[str, float] = {}
        for _ in range(repeats):
            for name, action in (("TextClassifier", estimator), ("run", experiment)):
                took, scores[name] = timed(action)
                seconds[name].append(took)
    ratio = statistics.median(seconds["TextClassifier"]) / statistics.median(seconds["run"])
    return {"rows": len(train), "seconds": seconds, "ratio": ratio, "scores": scores}


def main() -> None:
    """Measure both, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3000)
    arguments = parser.parse_args()
    task = TASKS["rotten-tomatoes"]
    splits = task.load(DataRequest(source="registry"))
    few = task.sample(splits.train, 600, 0)
    results = {
        "cross_validation": cross_validation(few, arguments.repeats, controls=False),
        "cross_validation_with_controls": cross_validation(few, arguments.repeats, controls=True),
        "against_run": against_run(task.sample(splits.train, arguments.rows, 0), splits.dev, arguments.repeats),
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for name, values in results.items():
        print(f"{name}: ratio {values['ratio']:.2f}, scores {values['scores']}")


if __name__ == "__main__":
    main()
