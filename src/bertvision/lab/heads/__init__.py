"""Wide adapters and convolutional heads of the published study. The entry point "paper" adds them to the heads."""

from bertvision.lab.heads.table import PAPER_HEADS

CONVOLUTIONAL_HEADS = PAPER_HEADS  # the name in the entry points of installations of earlier versions

__all__ = ["CONVOLUTIONAL_HEADS", "PAPER_HEADS"]
