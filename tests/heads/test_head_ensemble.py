from dataclasses import replace

import pytest
import torch

from bertvision.heads import build_head, set_training_precision
from bertvision.types import HeadShape

SENTENCE = HeadShape(layers=3, tokens=8, width=16, outputs=2, per_token=False)
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
def test_merged_copies_find_and_learn_what_they_would_one_by_one(spec, precision):
    torch.manual_seed(0)
    head = set_training_precision(precision, build_head(spec, SENTENCE))
    assert head.merges is SPECS[spec]
    hidden = torch.randn(4, 3, 7, 16)
    mask = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0], [1, 2, 2, 2, 2, 2, 0]])

    def learn(merges):
        head.merges = merges
        head.zero_grad()
        torch.manual_seed(1)
        found = head.train()(hidden, mask)
        torch.stack(found).square().sum().backward()
        return [*found, head.eval()(hidden, mask), *(p.grad for p in head.parameters())]

    merged, single = learn(head.merges), learn(False)
    close = {"atol": 1e-5, "rtol": 1e-4} if precision == "float32" else {"atol": 2e-2, "rtol": 2e-2}
    for a, b in zip(merged, single, strict=True):
        torch.testing.assert_close(a, b, **close)


def test_copies_for_every_token_merge_too():
    head = build_head("adapter:members=2,size=4,init_std=0.5", replace(SENTENCE, per_token=True)).eval()
    assert head.merges
    hidden, mask = torch.randn(2, 3, 5, 16), torch.ones(2, 5)
    merged = head(hidden, mask)
    head.merges = False
    assert merged.shape == (2, 5, 2)
    torch.testing.assert_close(merged, head(hidden, mask))
