"""Bi-encoding: the inputs with which an encoder reads each text of a pair separately, and how its states are put back.

Both functions return the inputs of the encoder, its attention mask, and a function that moves states (.., .., W) to
the positions of the tokens in the pair, (B, T, W). Each text is preceded by [CLS], as if it stood alone, and has the
token types of a first text. Of two separators between the texts, as RoBERTa and MPNet have, the first text is read
with one; the second has the states of the first.
"""

from collections.abc import Callable

import torch
from torch import Tensor

BiEncoding = tuple[dict[str, Tensor], Tensor, Callable[[Tensor], Tensor]]


def encode_in_one_row(tokens: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor, offset: int) -> BiEncoding:
    """Keep both texts in one row that is one [CLS] longer; a mask separates them, and positions start anew.

    For encoders that take positions and masks of pairs of tokens. `offset`: the position of the first token of a text.
    """
    (rows, length), device = attention_mask.shape, attention_mask.device
    total = attention_mask.sum(dim=1, keepdim=True)
    first_length = total - (attention_mask & (text_ids == 1)).sum(dim=1, keepdim=True)
    extra = _extra_separators(tokens["input_ids"], first_length)
    column = torch.arange(length + 1, device=device).expand(rows, -1)
    in_second = column >= first_length  # from its own [CLS] on
    source = torch.where(column == first_length, 0, column - in_second.long())
    # Padding attends to padding; a fully masked row would produce NaN.
    text = (1 + in_second.long()) * (column <= total) + 2 * (column == first_length - extra) * extra
    inputs = {name: values[:, :1].expand(-1, length + 1) for name, values in tokens.items() if name != "input_ids"}
    inputs |= {
        "input_ids": tokens["input_ids"].gather(1, source),
        "position_ids": torch.where(in_second, column - first_length, column) + offset,
    }
    pair_column = column[:, :length]
    back = pair_column + (pair_column >= first_length).long() - (pair_column == first_length - 1) * extra
    back = back.unsqueeze(-1)
    mask = text[:, None, :, None] == text[:, None, None, :]
    return inputs, mask, lambda states: states.gather(1, back.expand(-1, -1, states.shape[-1]))


def encode_in_two_rows(tokens: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor) -> BiEncoding:
    """Give each text a row of its own, padded to the longest text. For all encoders."""
    (rows, length), device = attention_mask.shape, attention_mask.device
    second_length = (attention_mask & (text_ids == 1)).sum(dim=1, keepdim=True)
    first_length = attention_mask.sum(dim=1, keepdim=True) - second_length
    extra = _extra_separators(tokens["input_ids"], first_length)
    # The sizes in an exported graph cannot depend on values. No text is longer than the pair.
    exporting = torch.compiler.is_exporting()
    longest = length if exporting else int(torch.maximum(first_length, second_length + 1).max())
    column = torch.arange(longest, device=device).expand(rows, longest)
    mask = torch.cat([column < first_length - extra, column < second_length + 1])
    source = torch.cat([column, torch.where(column > 0, first_length + column - 1, 0)]).clamp(max=length - 1)
    inputs = {name: values[:, :1].repeat(2, longest) for name, values in tokens.items() if name != "input_ids"}
    inputs |= {"input_ids": tokens["input_ids"].repeat(2, 1).gather(1, source)}
    pair_column = torch.arange(length, device=device).expand(rows, length)
    in_second = pair_column >= first_length
    row = torch.arange(rows, device=device).unsqueeze(1)
    own_column = pair_column - (pair_column == first_length - 1) * extra
    columns = torch.where(in_second, pair_column - first_length + 1, own_column).clamp(max=longest - 1)
    return inputs, mask, lambda states: states.unflatten(0, (2, -1))[in_second.long(), row, columns]


def _extra_separators(input_ids: Tensor, first_length: Tensor) -> Tensor:
    """Return 1 for rows whose first text ends with two equal tokens, which are separators, else 0. (B, 1)"""
    last, before = (input_ids.gather(1, (first_length - back).clamp(min=0)) for back in (1, 2))
    return ((last == before) & (first_length > 1)).long()
