"""Notices about the data that are logged once for a call: texts that are cut."""

import logging
from collections.abc import Mapping

from bertvision.types import Features

logger: logging.Logger = logging.getLogger(__name__)


def count_truncated(features: Features) -> int:
    """Return the number of examples whose text was cut."""
    if features.truncated is None:
        return 0
    return len({id for id, cut in zip(features.example_ids, features.truncated, strict=True) if cut})


def warn_truncated(splits: Mapping[str, Features], max_tokens: int, advice: str = "") -> None:
    """Log how many texts of each split are longer than `max_tokens` and are cut."""
    counts = {name: (count_truncated(features), len(set(features.example_ids))) for name, features in splits.items()}
    cut = [f"{count:,} of {total:,} {name} texts" for name, (count, total) in counts.items() if count]
    if cut:
        are = "is" if sum(count for count, _ in counts.values()) == 1 else "are"
        logger.warning(f"{', '.join(cut)} {are} longer than {max_tokens} tokens and cut there. {advice}".strip())
