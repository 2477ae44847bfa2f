"""Convolutional heads of the published study. The entry point "convolutional" adds them to the table of heads."""

from bertvision.lab.heads.table import CONVOLUTIONAL_HEADS

__all__ = ["CONVOLUTIONAL_HEADS"]
