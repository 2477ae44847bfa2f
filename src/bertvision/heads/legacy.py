"""Names of the previous version: options in head specifications, and keys of saved weights."""

from collections.abc import Container, Mapping
from typing import TypeVar

from torch import Tensor, nn

from bertvision.errors import BertVisionError

T = TypeVar("T")

HEADS = {"last": "bert-head"}
OPTIONS = {
    "gather": "token_pooling",
    "copies": "members",
    "texts": "encoding",
    "pooled": "pooler_output",
    "start": "init_std",
}
VALUES = {"token_pooling": {"all": "flatten"}, "encoding": {"together": "cross", "apart": "bi"}}
WEIGHTS = {
    "adapt": "adapter",
    "pool": "layer_pooling",
    "gather": "token_pooling",
    "gathers": "poolings",
    "read": "classifier",
    "copies": "members",
}


def upgrade_option(option: str, value: str) -> tuple[str, str]:
    """Return an option and its value under their current names."""
    option = OPTIONS.get(option, option)
    values = VALUES.get(option, {})
    return option, "+".join(values.get(part, part) for part in value.split("+"))


def upgrade_state_dict(weights: Mapping[str, T], expected: Container[str] = ()) -> dict[str, T]:
    """Return saved weights under the current names of a head's parts.

    Weights whose keys are all `expected`, the keys of the head that they are loaded into, are returned unchanged: a
    head of the user may have parts that are called like parts of the previous version.
    """
    if all(key in expected for key in weights):
        return dict(weights)
    return {".".join(WEIGHTS.get(part, part) for part in key.split(".")): value for key, value in weights.items()}


def load_head_weights(head: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load saved weights into a head; those of the previous version too."""
    try:
        head.load_state_dict(upgrade_state_dict(weights, head.state_dict()))
    except RuntimeError as error:
        raise BertVisionError(f"The saved weights are not those of this head: {error}") from error
