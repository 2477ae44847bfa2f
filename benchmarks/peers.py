"""BERTVision beside full fine-tuning, LoRA, BitFit, SetFit, model2vec, AutoGluon and linear models.

    pip install 'bertvision[bench]'
    python benchmarks/peers.py --data-dir GLUE --other-dir OTHER [--alone] [--columns mrpc,trec] [--methods tf-idf]
    python benchmarks/peers.py --report

A cell is a method, a length, a setting, a data set and a seed. Each runs in its own process, and what is finished is
skipped, so the whole may be spread over days. With the first seed, settings (learning rate, layer-wise decay) are tried
at one length, then every length is run; validation chooses. The other seeds run the chosen length, or with
--every-length all of them. A cell whose version differs (other defaults of ours, another protocol) is run again.

Seconds and memory count only in cells of the first seed that ran with --alone: nothing else may run on the machine
then. The report gives the seconds of one machine, the one with the most timed cells. AutoGluon runs in an environment
of its own, whose interpreter AUTOGLUON_PYTHON names.

Packs the cells into benchmarks/results/peers.parquet, and writes docs/peers.md, its charts and
benchmarks/results/peers.json; while cells are missing or not timed, docs/peers-progress.md instead.
"""

import argparse
import importlib.util
import multiprocessing
import sys
from collections.abc import Callable, Sequence

from cells import Cells
from peer import report
from peer.data import CLAIMED, COLUMNS, Directories, missing_data
from peer.meter import machine, machine_name
from peer.plan import METHODS, OPTIONAL, SEEDS, Job, Results, plan

from bertvision.errors import lookup


def available(given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the columns whose data and the methods whose packages are here; print what is left out, and why."""
    directories, columns, methods = Directories(glue=given.data_dir, other=given.other_dir), [], []
    for column in given.columns:
        why = missing_data(lookup(COLUMNS, column, "column"), directories)
        print(f"{column} is left out: {why}", flush=True) if why else columns.append(column)
    for method in given.methods:
        package = lookup(METHODS, method, "method").package
        missing = package and importlib.util.find_spec(package) is None
        print(f"{method} is left out: {package} is not installed.", flush=True) if missing else methods.append(method)
    return columns, methods


def collect(given: argparse.Namespace, cells: Cells) -> None:
    """Run the cells that are missing, stale, or to be timed; at most `given.most` of them."""
    columns, methods = available(given)
    results = Results(cells)
    directories = Directories(glue=given.data_dir, other=given.other_dir)
    left = given.most or sys.maxsize
    for job in plan(results, columns, given.seeds, methods, every_length=given.every_length):
        timed = given.alone and job.seed == SEEDS[0]
        if is_finished(results, job, timed):
            continue
        if not left:
            return
        left -= 1
        run_apart(cells, job, directories, timed)
        record = results.record(job)
        assert record is not None
        print(f"{job.key:60} {record['grade'][0]:6.2f} {record['total']:7.1f} s", flush=True)


def is_finished(results: Results, job: Job, timed: bool) -> bool:
    """Whether a cell need not be run: it is finished and, where seconds are wanted, was timed on this machine."""
    record = results.record(job)
    if record is None or not timed:
        return record is not None
    return record["alone"] and machine_name(record) == machine_name({"machine": machine()})


def run_apart(cells: Cells, job: Job, directories: Directories, alone: bool) -> None:
    """Run a cell in a process of its own."""
    from peer.run import run  # here: who only reports need not install every peer

    apart = multiprocessing.get_context("fork")  # with everything imported, and nothing computed yet
    process = apart.Process(target=run, args=(cells, job, directories, alone))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{job.key} failed.")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split: Callable[[str], list[str]] = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--data-dir", default="", help="official GLUE files; without them, the Hub or the registry")
    parser.add_argument("--other-dir", default="", help="directory with banking77, trec and ag_news")
    parser.add_argument("--columns", default=list(COLUMNS), type=split, help=f"default: all; claims: {CLAIMED}")
    parser.add_argument("--methods", default=[name for name in METHODS if name not in OPTIONAL], type=split)
    parser.add_argument("--seeds", default=SEEDS, type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--every-length", action="store_true", help="run all lengths with every seed")
    parser.add_argument("--alone", action="store_true", help="nothing else runs here: seconds and memory count")
    parser.add_argument("--most", default=0, type=int, help="run at most so many cells; 0: all, then report")
    parser.add_argument("--report", action="store_true", help="write the report of what there is, run nothing")
    parser.add_argument("--prune", action="store_true", help="drop stale cells from the packed file")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Collect and report."""
    given, cells = parse(words), Cells.of("peers")
    if not given.report:
        collect(given, cells)
    if given.report or not given.most:
        is_current = report.current_keys(Results(cells)).__contains__ if given.prune else None
        cells.pack(is_current)
        print(report.write(Results(cells), given.columns, given.methods, given.seeds, given.every_length))


if __name__ == "__main__":
    main()
