"""Twenty trials that share their states against twenty independent runs; and whether tuning pays.

    python benchmarks/search.py --data-dir GLUE [--task mrpc] [--trials 20] [--runs 20]
    python benchmarks/search.py --data-dir GLUE --pays [--tasks mrpc,stsb] [--seeds 3]

The first prints seconds and their ratio, measured in one process in one go: a search from nothing (fine-tuning, states,
trials, final score) and `run` from nothing with the same settings, without controls; each run fine-tunes and computes
its own states. With fewer --runs than trials their time is scaled up, which it says. The second prints the tuned head
beside the default one, on validation and on dev, mean over seeds. Writes benchmarks/results/search.json.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from bertvision import heads, pipeline
from bertvision.lab import search
from bertvision.lab.searches import TrialSettings
from bertvision.pipeline.experiment import Experiment, make
from bertvision.tasks import TASKS


def race(given: argparse.Namespace) -> dict[str, Any]:
    """Time a search, then runs with what it tried."""
    base = make(task=given.task, data_dir=given.data_dir, limit=given.limit, fractions=[0.3], controls=False)
    base = replace(base, encoder=given.encoder)
    with tempfile.TemporaryDirectory(dir=given.place) as place:
        began = time.perf_counter()
        found = search(base, trials=given.trials, root=place)
        searching = time.perf_counter() - began
    tried = [TrialSettings(**row["setting"]) for row in found.history if row["state"] != "fail"]
    chosen = tried[:: max(1, len(tried) // given.runs)][: given.runs]
    began = time.perf_counter()
    for setting in chosen:
        with tempfile.TemporaryDirectory(dir=given.place) as place:
            pipeline.run(setting.experiment(replace(base, heads=[])), root=place)
    running = (time.perf_counter() - began) / len(chosen) * given.trials
    scale_loss = "" if len(chosen) == given.trials else f" (scaled up from {len(chosen)})"
    print(
        f"{given.task}: {given.trials} trials {searching:.0f} s, {given.trials} runs {running:.0f} s{scale_loss}, "
        f"ratio {searching / running:.3f}"
    )
    return {"trials": given.trials, "runs": len(chosen), "search": searching, "independent": running}


def pays(given: argparse.Namespace) -> dict[str, Any]:
    """Compare the tuned head with the default."""
    results = {}
    for task in given.tasks:
        base = make(task=task, data_dir=given.data_dir, limit=given.limit, fractions=[0.3])
        base = replace(base, encoder=given.encoder)
        found = search(base, trials=given.trials, seeds=given.seeds, root=given.root)
        default = [_default(replace(base, seed=seed), given.root) for seed in range(given.seeds)]
        checkpoints = [(run.validation_score[0], run.primary_score) for run in found.runs]
        results[task] = {"head": found.settings.describe(), "tuned": checkpoints, "default": default}
        (one, two), (three, four) = (map(mean, zip(*each, strict=True)) for each in (checkpoints, default))
        print(f"{task}: tuned {found.settings.describe()}")
        print(f"  validation {one:.2f} against {three:.2f}, dev {two:.2f} against {four:.2f} ({given.seeds} seeds)")
    return results


def _default(experiment: Experiment, root: Path) -> tuple[float, float]:
    """The default head on the same states; validation and dev."""
    default = replace(experiment, heads=[str(heads.default_head(TASKS[experiment.task].example_kind))], states="store")
    best = pipeline.run(default, root=root).best
    return best.validation_score[0], best.primary_score


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--task", default="mrpc")
    parser.add_argument("--tasks", default="mrpc,stsb", type=lambda text: text.split(","))
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--runs", type=int, default=20, help="independent runs to time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=0, help="rows of train, to try it out")
    parser.add_argument("--pays", action="store_true", help="compare the tuned head with the default")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--place", type=Path, default=None, help="where the timed runs are made")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/search.json"))
    given = parser.parse_args()
    known = json.loads(given.json.read_text()) if given.json.exists() else {}
    known["pays" if given.pays else "race"] = pays(given) if given.pays else race(given)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
