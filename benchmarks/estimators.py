"""What estimators cost: cross-validation against one fit, and `TextClassifier` against `bertvision run`.

    python benchmarks/estimators.py [--repeats 3] [--rows 3000] [--only against_run]

All measurements are ratios in one process, alternating, on rotten-tomatoes with MiniLM, with the same settings on both
sides. Nothing is reused from one measurement to the next: each has a cache directory of its own, and the cache in
memory is emptied before it. Each ratio is that of the fastest repetitions, because other work on the machine can only
add time; the ratio of the processor's seconds is beside it. The results are in benchmarks/results/estimators.json.
"""

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sklearn.model_selection import cross_val_score

from bertvision import TextClassifier, run
from bertvision.estimators import cached_states
from bertvision.tasks import TASKS, DataRequest, Example

RESULTS = Path(__file__).parent / "results" / "estimators.json"


class Seconds(NamedTuple):
    """What a clock on the wall showed, and what the processor worked, on all cores together."""

    wall: float
    processor: float


def timed(action: Callable[[Path], Any]) -> tuple[Seconds, Any]:
    """Return the seconds that an action takes with empty caches, and its result."""
    cached_states.CACHE.clear()
    with tempfile.TemporaryDirectory() as folder:
        began, began_cpu = time.perf_counter(), time.process_time()
        result = action(Path(folder))
        return Seconds(time.perf_counter() - began, time.process_time() - began_cpu), result


def measure(actions: dict[str, Callable[[Path], Any]], repeats: int) -> dict[str, Any]:
    """Time two actions in turn; return their seconds and results, and the ratio of the first to the second."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in actions}
    results: dict[str, Any] = {}
    timed(next(iter(actions.values())))  # warms up
    for _ in range(repeats):
        for name, action in actions.items():
            took, results[name] = timed(action)
            seconds[name].append(took)
    first, second = seconds.values()
    return {
        "ratio": min(wall for wall, _ in first) / min(wall for wall, _ in second),
        "processor_ratio": min(cpu for _, cpu in first) / min(cpu for _, cpu in second),
        "seconds": {name: [round(wall, 2) for wall, _ in values] for name, values in seconds.items()},
        "processor_seconds": {name: [round(cpu, 2) for _, cpu in values] for name, values in seconds.items()},
        "scores": results,
    }


def cross_validation(examples: Sequence[Example], repeats: int, *, controls: bool) -> dict[str, Any]:
    """Compare three-fold cross-validation of a frozen encoder with one fit, with or without control heads."""
    texts, labels = [example.texts[0] for example in examples], [example.label for example in examples]

    def fit(folder: Path) -> float:
        classifier = TextClassifier(fraction=0, controls=controls, verbose=0, cache_dir=folder).fit(texts, labels)
        return classifier.run_.validation_score[0]

    def validate(folder: Path) -> list[float]:
        classifier = TextClassifier(fraction=0, controls=controls, verbose=0, cache_dir=folder)
        return cross_val_score(classifier, texts, labels, cv=3).tolist()

    return {"rows": len(texts)} | measure({"cross_val_score": validate, "one fit": fit}, repeats)


def against_run(train: Sequence[Example], dev: Sequence[Example], repeats: int) -> dict[str, Any]:
    """Compare `TextClassifier` with `bertvision.run` on the same files and settings."""
    with tempfile.TemporaryDirectory() as data:
        files = {"train": Path(data) / "train.csv", "dev": Path(data) / "dev.csv"}
        for name, examples in (("train", train), ("dev", dev)):
            with files[name].open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerows([("text", "label"), *((example.texts[0], example.label) for example in examples)])

        def estimator(folder: Path) -> float:
            classifier = TextClassifier(fraction=0.3, controls=False, verbose=0, cache_dir=folder).fit(files["train"])
            return 100 * classifier.score(files["dev"])

        def experiment(folder: Path) -> float:
            result = run(
                train_file=str(files["train"]), dev_file=str(files["dev"]), fractions=[0.3], controls=False,
                task="reviews", root=folder,
            )  # fmt: skip
            return result.best.primary_score

        measured = measure({"TextClassifier": estimator, "run": experiment}, repeats)
    return {"rows": len(train)} | measured


def main() -> None:
    """Measure both, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3000, help="rows of the comparison with `bertvision run`")
    parser.add_argument(
        "--only", nargs="*", choices=["cross_validation", "cross_validation_with_controls", "against_run"]
    )
    arguments = parser.parse_args()
    task = TASKS["rotten-tomatoes"]
    splits = task.load(DataRequest(source="registry"))
    few = task.sample(splits.train, 600, 0)
    train = task.sample(splits.train, arguments.rows, 0)
    measurements: dict[str, Callable[[], dict[str, Any]]] = {
        "cross_validation": lambda: cross_validation(few, arguments.repeats, controls=False),
        "cross_validation_with_controls": lambda: cross_validation(few, arguments.repeats, controls=True),
        "against_run": lambda: against_run(train, splits.dev, arguments.repeats),
    }
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in arguments.only or measurements:
        results[name] = values = measurements[name]()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(
            f"{name}: ratio {values['ratio']:.2f} (processor {values['processor_ratio']:.2f}), "
            f"{values['seconds']}, scores {values['scores']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
