"""Searches: hyperparameter optimisation on the validation split, with Optuna."""

from bertvision.lab.searches.runner import SearchResult, run_search
from bertvision.lab.searches.space import BertSpace, Space, TrialSettings

__all__ = ["BertSpace", "SearchResult", "Space", "TrialSettings", "run_search"]
