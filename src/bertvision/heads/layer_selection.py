"""Selection of encoder layers by name."""

import re

from bertvision.errors import BertVisionError


def select_layers(text: str, layers: int) -> list[int]:
    """Return the numbers of the layers that a text selects, in rising order. Layer 0 is the embedding output.

    Examples: "all", "last", "last4", "every2" (the last layer and every second one below it), "0,6,12", "2-5".
    """
    if text == "all":
        return list(range(layers))
    tail, step = re.fullmatch(r"last(\d*)", text), re.fullmatch(r"every([1-9]\d*)", text)
    if step:
        chosen = list(range((layers - 1) % int(step[1]), layers, int(step[1])))
    elif tail:
        count = int(tail[1] or 1)
        chosen = list(range(layers - count, layers))
    else:
        chosen = []
        for piece in text.split(","):
            ends = re.fullmatch(r"(\d+)(?:-(\d+))?", piece.strip())
            if not ends:
                raise BertVisionError(
                    f"layers={text!r} is not understood; use all, last, last4, every2, 0,6,12 or 2-5."
                )
            chosen += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    if not chosen or min(chosen) < 0 or max(chosen) >= layers:
        raise BertVisionError(f"layers={text!r} selects layers that do not exist: there are layers 0 to {layers - 1}.")
    return sorted(set(chosen))
