"""Time limits on the command line: `bertvision run --time-limit`, `bertvision plan`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli import output

if TYPE_CHECKING:
    from bertvision.pipeline import ExperimentResult
    from bertvision.pipeline.experiment import Experiment
    from bertvision.time_limits import Plan, RunRequest

PANEL = "Limits"
TimeLimit = Annotated[
    str,
    typer.Option(
        "--time-limit", help="Time for everything, e.g. 90, 5m or 1h.", rich_help_panel=PANEL, show_default=False
    ),
]
MemoryLimit = Annotated[
    str,
    typer.Option("--memory-limit", help="Memory of the process, e.g. 4GB.", rich_help_panel=PANEL, show_default=False),
]
DiskLimit = Annotated[
    str,
    typer.Option("--disk-limit", help="Disk for the models, e.g. 1GB.", rich_help_panel=PANEL, show_default=False),
]
OTHER_LIMITS = (15.0, 60.0, 300.0, 1800.0)
"""Limits that `bertvision plan` compares, in seconds."""


@dataclass(frozen=True)
class LimitFlags:
    """The values of the flags."""

    time: str
    memory: str = ""
    disk: str = ""


def plan(
    experiment: "Experiment",
    time_limit: TimeLimit = "5m",
    memory_limit: MemoryLimit = "",
    disk_limit: DiskLimit = "",
    root: Annotated[Path, typer.Option("--runs", help="Directory of runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a run with a time limit would do on this machine, and what other limits would buy. Nothing is trained.

    Example: bertvision plan --task mrpc --time-limit 2m
    """
    print_plan(experiment, LimitFlags(time_limit, memory_limit, disk_limit), root, as_json)


def run_within(experiment: "Experiment", limits: LimitFlags, root: Path, silent: bool) -> "ExperimentResult":
    """Run an experiment within the limits."""
    from bertvision.time_limits import LiveView, TimedRun

    request = _request(experiment, limits, root)
    return TimedRun(request, LiveView(request.clock, silent=silent)).run()


def print_plan(experiment: "Experiment", limits: LimitFlags, root: Path, as_json: bool) -> None:
    """Measure and plan, and print the plan."""
    import tempfile

    from bertvision.time_limits import LiveView, TimedRun

    request = _request(experiment, limits, root)
    with tempfile.TemporaryDirectory() as folder:
        run = TimedRun(request, LiveView(request.clock, silent=True))
        run.directory = Path(folder)
        forecast = run.forecast()
        others = {seconds: run.plan_for(seconds) for seconds in sorted({*OTHER_LIMITS, request.clock.seconds})}
    if as_json:
        values = {"data": asdict(forecast.size), "unit_costs": asdict(forecast.costs), "plan": _to_json(forecast.plan)}
        others_json = {f"{seconds:g}": _to_json(other) for seconds, other in others.items()}
        output.as_json(values | {"measured_in": forecast.seconds, "other_limits": others_json})
        return
    size, costs = forecast.size, forecast.costs
    print(
        f"{size.rows:,} rows to train on, {size.validation_rows:,} to choose on, {size.scored_rows:,} to score, "
        f"{size.row_tokens:.0f} tokens each."
    )
    print(
        f"Measured in {forecast.seconds:.1f} s: {costs.forward:,.0f} tokens/s read, {costs.training:,.0f} fine-tuned, "
        f"{costs.head:,.0f} in heads.\n"
    )
    output.table(_stages(forecast.plan), f"Limit {request.clock.seconds:g} s", numbers=["seconds", "memory", "disk"])
    for note in forecast.plan.notes:
        print(f"Note: {note}.")
    print()
    output.table(_comparison(others), "Other limits", numbers=["limit"])


def _request(experiment: "Experiment", limits: LimitFlags, root: Path) -> "RunRequest":
    from bertvision.time_limits import Clock, parse_bytes, parse_seconds, process_start, request_of

    clock = Clock(parse_seconds(limits.time), process_start())
    memory = parse_bytes(limits.memory, "--memory-limit") if limits.memory else 0
    disk = parse_bytes(limits.disk, "--disk-limit") if limits.disk else 0
    return request_of(experiment, root, clock, memory_limit=memory, disk_limit=disk)


def _stages(plan: "Plan") -> list[dict[str, Any]]:
    return [
        {
            "stage": stage.describe(),
            "seconds": f"{stage.seconds:.1f}",
            "memory": output.size(stage.memory),
            "disk": output.size(stage.disk),
        }
        for stage in plan.stages
    ]


def _comparison(plans: "dict[float, Plan]") -> list[dict[str, Any]]:
    return [
        {
            "limit": f"{seconds:g} s",
            "stages": "; ".join(stage.describe() for stage in plan.stages),
            "uses": f"{plan.seconds:.0f} s",
        }
        for seconds, plan in plans.items()
    ]


def _to_json(plan: "Plan") -> list[dict[str, Any]]:
    return [asdict(stage) | {"what": stage.describe()} for stage in plan.stages]
