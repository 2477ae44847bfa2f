"""Wide adapters and convolutional heads of the published study. The entry point "paper" adds them to the heads."""

from bertvision.lab.heads.table import PAPER_HEADS

__all__ = ["PAPER_HEADS"]
