from dataclasses import replace

import pytest
import torch

from bertvision.heads import build_head, train_in
from bertvision.types import Shape

SENTENCE = Shape(layers=3, tokens=8, width=16, outputs=2, per_token=False)
SPECS = {
    "adapter:copies=3,gather=max+compare+align,size=4,start=0.5": True,
    "adapter:copies=2,gather=mean,size=4,start=0.5": True,
    "adapter:copies=2,gather=attention,size=4,start=0.5": False,
    "adapter:copies=2,gather=max,size=4,start=0.5,norm=true": False,
    "adapter-independent:copies=2,gather=max,size=4,start=0.5": False,
    "adapter-skip:copies=2,gather=max,size=4,start=0.5": False,
    "adapter:copies=2,gather=max,dropout=0.5,size=4,start=0.5": False,
    "adapter:copies=2,size=4,start=0.5": False,
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_merged_copies_find_and_learn_what_they_would_one_by_one(spec, precision):
    torch.manual_seed(0)
    head = train_in(precision, build_head(spec, SENTENCE))
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
    head = build_head("adapter:copies=2,size=4,start=0.5", replace(SENTENCE, per_token=True)).eval()
    assert head.merges
    hidden, mask = torch.randn(2, 3, 5, 16), torch.ones(2, 5)
    merged = head(hidden, mask)
    head.merges = False
    assert merged.shape == (2, 5, 2)
    torch.testing.assert_close(merged, head(hidden, mask))
