"""The format's own page, taken at its word: its example reads a real store."""

import re
from pathlib import Path

import numpy as np
from test_state_requests import want

from bertvision.states import BatchPlan, StoredStates

PAGE = (Path(__file__).parents[2] / "docs" / "store-format.md").read_text()


def test_the_example_reads_what_bertvision_reads(tiny, tmp_path):
    wanted, _ = want(tiny, tmp_path)
    store = wanted.store()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    for row in range(store.rows):
        names: dict = {}
        named = code.replace("train-int8-6463d630", str(store.path))
        exec(compile(re.sub(r", 17\n", f", {row}\n", named), "store-format.md", "exec"), names)
        (batch,) = StoredStates(store, BatchPlan(store.row_table.lengths, 1)).read([np.array([row])])
        np.testing.assert_array_equal(names["hidden"], batch.inputs[0].numpy())


def test_every_name_in_the_manifest_is_explained(tiny, tmp_path):
    manifest = want(tiny, tmp_path)[0].store().manifest
    for name in [*manifest, *manifest["layout"], *manifest["rows"], *manifest["shards"][0]]:
        assert f"`{name}`" in PAGE, name
