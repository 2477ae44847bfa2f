from dataclasses import replace

import pytest
import torch

from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.heads import build_head, set_training_precision
from bertvision.types import HeadShape

SENTENCE = HeadShape(num_layers=3, max_tokens=8, hidden_size=16, num_outputs=2, per_token=False)
SPECS = {
    "adapter:members=3,size=4,init_std=0.5,token_pooling=max+compare+align": True,
    "adapter:members=2,size=4,init_std=0.5,token_pooling=mean": True,
    "adapter:members=2,size=4,init_std=0.5,token_pooling=attention": False,
    "adapter:members=2,norm=true,size=4,init_std=0.5,token_pooling=max": False,
    "adapter-independent:members=2,size=4,init_std=0.5,token_pooling=max": False,
    "adapter-skip:members=2,size=4,init_std=0.5,token_pooling=max": False,
    "adapter:dropout=0.5,members=2,size=4,init_std=0.5,token_pooling=max": False,
    "adapter:members=2,size=4,init_std=0.5": False,
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_merged_members_equal_members_computed_one_by_one(spec, precision):
    torch.manual_seed(0)
    head = set_training_precision(precision, build_head(spec, SENTENCE))
    assert head.can_merge is SPECS[spec]
    hidden = torch.randn(4, 3, 7, 16)
    texts = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0], [1, 2, 2, 2, 2, 2, 0]])

    mask, text_ids = texts > 0, texts == 2

    def train(enabled):
        head.zero_grad()
        torch.manual_seed(1)
        with use_cpu_optimizations(enabled):
            logits = head.train()(hidden, mask, text_ids)
            torch.stack(logits).square().sum().backward()
            return [*logits, head.eval()(hidden, mask, text_ids), *(p.grad for p in head.parameters())]

    merged, single = train(True), train(False)
    close = {"atol": 1e-5, "rtol": 1e-4} if precision == "float32" else {"atol": 2e-2, "rtol": 2e-2}
    for a, b in zip(merged, single, strict=True):
        torch.testing.assert_close(a, b, **close)


def test_members_for_every_token_are_merged_too():
    head = build_head("adapter:members=2,size=4,init_std=0.5", replace(SENTENCE, per_token=True)).eval()
    assert head.can_merge
    hidden, mask = torch.randn(2, 3, 5, 16), torch.ones(2, 5, dtype=torch.bool)
    merged = head(hidden, mask)
    assert merged.shape == (2, 5, 2)
    with use_cpu_optimizations(False):
        torch.testing.assert_close(merged, head(hidden, mask))
