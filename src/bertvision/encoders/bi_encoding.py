"""The texts of a pair, each to be read by itself: what the encoder is given, and how its states come back.

Both ways return the tokens, who sees whom, and a function that puts states, (.., .., W), where the pair's tokens stand:
(B, T, W). [CLS] stands before each text, as if it were alone; a second text takes the place of a first one, also in its
kind of token.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Apart = tuple[dict[str, Tensor], Tensor, Callable[[Tensor], Tensor]]


def encode_in_one_row(tokens: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor, offset: int) -> Apart:
    """Leave them in one row, blind to one another, positions counted anew: no longer than the pair, but by a [CLS].

    For encoders that take positions and see what the mask says. `offset`: the position of a first token.
    """
    (rows, columns), device = attention_mask.shape, attention_mask.device
    total = attention_mask.sum(dim=1, keepdim=True)
    first = total - (attention_mask & (text_ids == 1)).sum(dim=1, keepdim=True)
    place = torch.arange(columns + 1, device=device).expand(rows, -1)
    second = place >= first  # from its own [CLS] on
    source = torch.where(place == first, 0, place - second.long())
    text = (1 + second.long()) * (place <= total)  # padding sees padding: who sees nothing is not a number
    inputs = {name: each[:, :1].expand(-1, columns + 1) for name, each in tokens.items() if name != "input_ids"}
    inputs |= {
        "input_ids": tokens["input_ids"].gather(1, source),
        "position_ids": torch.where(second, place - first, place) + offset,
    }
    here = place[:, :columns]
    back = (here + (here >= first).long()).unsqueeze(-1)
    seen = text[:, None, :, None] == text[:, None, None, :]
    return inputs, seen, lambda states: states.gather(1, back.expand(-1, -1, states.shape[-1]))


def encode_in_two_rows(tokens: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor) -> Apart:
    """Give each a row of its own, for any encoder; what is shorter than the longest of them all is padded."""
    size, device = attention_mask.shape, attention_mask.device
    second = (attention_mask & (text_ids == 1)).sum(dim=1, keepdim=True)
    first = attention_mask.sum(dim=1, keepdim=True) - second
    # A graph has no sizes that depend on what is read; neither text is longer than the pair.
    longest = size[1] if torch.compiler.is_exporting() else int(torch.maximum(first, second + 1).max())
    place = torch.arange(longest, device=device).expand(size[0], longest)
    there = torch.cat([place < first, place < second + 1])
    source = torch.cat([place, torch.where(place > 0, first + place - 1, 0)]).clamp(max=size[1] - 1)
    inputs = {name: each[:, :1].repeat(2, longest) for name, each in tokens.items() if name != "input_ids"}
    inputs |= {"input_ids": tokens["input_ids"].repeat(2, 1).gather(1, source)}
    place = torch.arange(size[1], device=device).expand(size)
    later = place >= first
    rows = torch.arange(size[0], device=device).unsqueeze(1)
    columns = torch.where(later, place - first + 1, place).clamp(max=longest - 1)
    return inputs, there, lambda states: states.unflatten(0, (2, -1))[later.long(), rows, columns]
