"""Experiment files."""

import tomli_w

from bertvision.pipeline.experiment import Experiment


def to_toml(experiment: Experiment) -> str:
    """Return an experiment as a TOML file with every setting, so that later defaults do not change it."""
    return tomli_w.dumps(experiment.to_dict())
