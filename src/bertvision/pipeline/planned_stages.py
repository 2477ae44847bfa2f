"""The stages of an experiment, for the view that follows it: their titles, and how much there is to do in each."""

from dataclasses import dataclass

from bertvision.pipeline.config import PipelineConfig, heads_and_controls
from bertvision.pipeline.experiment import Experiment
from bertvision.run_stages import ExpectedStage

READ_ROWS = "read the rows"
TRAINING_WORK = 3.5
"""A step of fine-tuning on a token, as a multiple of reading it; with the auxiliary head."""
HEAD_WORK = 0.03
"""A step of a head on a token, as a multiple of reading the token with the encoder."""


@dataclass(frozen=True, kw_only=True)
class StageTitles:
    """The titles of the stages at a fraction."""

    reading: str
    training: str
    predicting: str
    scoring: str
    combining: str


def finetuning_title(experiment: Experiment, tasks: int = 1) -> str:
    """Return the title of fine-tuning."""
    tasks_text = f" on {tasks} tasks" if tasks > 1 else ""
    if experiment.checkpoints_given:
        return "copy the checkpoints"
    return f"fine-tune {_short(experiment.encoder)}{tasks_text} for {_epochs(max(experiment.fractions))}"


def stage_titles(fraction: float, heads: int = 0) -> StageTitles:
    """Return the titles of the stages at a fraction, where so many heads and controls are trained."""
    where = f"after {_epochs(fraction)}" if fraction else "without fine-tuning"
    return StageTitles(
        reading=f"read hidden states {where}",
        training=f"train {f'{heads} heads and controls' if heads > 1 else 'the head'} {where}",
        predicting=f"predict {where}",
        scoring=f"score {where}",
        combining=f"combine models {where}",
    )


def planned_stages(
    config: PipelineConfig, tokens: tuple[int, int] = (0, 0), epochs: float = 0.0
) -> list[ExpectedStage]:
    """Return the stages of an experiment after the rows have been read.

    Args:
        config: The configuration.
        tokens: The tokens of the training rows, and of the validation and scored rows.
        epochs: The most epochs that heads are trained for.
    """
    experiment, (train, held_out) = config.experiment, tokens
    stages = []
    if max(experiment.fractions) > 0 or experiment.checkpoints_given:
        work = 0.0 if experiment.checkpoints_given else TRAINING_WORK * max(experiment.fractions) * train
        stages.append(ExpectedStage(title=finetuning_title(experiment), work=work))
    heads = len(heads_and_controls(config))
    for fraction in experiment.fractions:
        titles = stage_titles(fraction, heads)
        if fraction not in experiment.head_fractions:
            stages.append(ExpectedStage(title=titles.scoring, work=held_out))
            continue
        stages += [
            ExpectedStage(title=titles.reading, work=train + held_out / 2),
            ExpectedStage(title=titles.training, work=HEAD_WORK * heads * epochs * (train + held_out / 2)),
            ExpectedStage(title=titles.predicting, work=held_out / 2),
            ExpectedStage(title=titles.scoring),
            ExpectedStage(title=titles.combining),
        ]
    return stages


def _epochs(fraction: float) -> str:
    return f"{fraction:g} epoch" if fraction == 1 else f"{fraction:g} epochs"


def _short(encoder: str) -> str:
    return encoder.rstrip("/").rpartition("/")[2] or encoder
