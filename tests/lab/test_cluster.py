"""A real Ray cluster on this machine, with workers killed while they work; and every mistake as one sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bertvision.errors import BertVisionError
from bertvision.lab import cluster, extraction, search
from bertvision.pipeline.experiment import make

QUICK = {
    "fractions": [0.5],
    "finetune": {"learning_rate": 1e-3},
    "controls": False,
    "store": {"shard_megabytes": 0.005},
}


def test_without_ray_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BertVisionError, match=r"Ray is not installed .*pip install 'bertvision\[ray\]'"):
        cluster.connect("auto", tmp_path)


@pytest.mark.parametrize("address", ["localhost", "http://host:1", "raymond"])
def test_no_address(address, tmp_path):
    with pytest.raises(BertVisionError, match="--cluster takes ray://HOST:PORT"):
        search(make(task="mrpc"), address=address, root=tmp_path)
    with pytest.raises(BertVisionError, match="--cluster takes ray://HOST:PORT"):
        list(extraction.extract(make(task="mrpc"), tmp_path, ["train"], address=address))


def test_workers_start_with_the_environment_of_torch():
    pytest.importorskip("ray")
    code = """
import os, ray
from bertvision.lab import cluster
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
print(cluster.map_on_cluster(os.getenv, ["GOMP_SPINCOUNT"], "probe"))
"""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "['20000']\n"


# In a process of its own: Ray starts threads and keeps sockets that outlive a test.
DRIVER = """
import json, sys
from pathlib import Path
from bertvision.lab import extraction, search, studies
from bertvision.pipeline.experiment import make
address, root, experiment = sys.argv[1], sys.argv[2], make(**json.loads(sys.argv[3]))
if sys.argv[4] == "extract":
    for store in extraction.extract(experiment, Path(root), ["train", "dev"], address=address):
        print(store.path)
elif sys.argv[4] == "study":
    options, names = studies.StudyOptions(seeds=[0, 1]), ["zoo", "ensemble"]
    if address:
        studies.run_studies_on_cluster([(experiment, options, names)], address, Path(root))
    before = sum(1 for _ in Path(root).rglob("metrics.json"))
    found = list(studies.run_studies(experiment, names, options=options, root=Path(root)))
    after = sum(1 for _ in Path(root).rglob("metrics.json"))
    plain = lambda row: {k: v for k, v in row.items() if k not in ("seconds", "runs")}
    print(json.dumps({"before": before, "after": after, "rows": [[plain(row) for row in each.rows] for each in found]}))
else:
    found = search(experiment, trials=6, trials_per_batch=3, space=["epochs=[30,60]"], address=address, root=root)
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in found.history]
    print(json.dumps({"history": history, "score": found.runs[0].metrics.scores}))
"""


FOLDER = Path(tempfile.gettempdir()) / f"bv-{uuid.uuid4().hex[:8]}"  # short: its sockets have long names


@pytest.fixture(scope="module")
def ray_cluster():
    """Two nodes of Ray, each with a CPU to give."""
    pytest.importorskip("ray")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_DISABLE_IMPORT_WARNING": "1"}
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
    common = ["--num-cpus=1", "--object-store-memory=100000000", "--node-ip-address=127.0.0.1"]
    head = ["--head", "--port=6399", "--ray-client-server-port=20099", f"--temp-dir={FOLDER}"]
    nodes = []
    try:
        for words in ([*head, "--include-dashboard=false"], ["--address=127.0.0.1:6399"]):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            nodes.append(subprocess.Popen([*ray, *words, *common], env=environment, **quiet))
            until = time.monotonic() + 120
            while sum("raylet_socket_name" in " ".join(_words(each)) for each in _family(nodes)) < len(nodes):
                assert nodes[-1].poll() is None and time.monotonic() < until, "Ray does not start"
                time.sleep(0.2)
        time.sleep(5)  # the node has to introduce itself
        yield "ray://127.0.0.1:20099"
    finally:
        family = _family(nodes)
        for each in [*family, *nodes]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        for node in nodes:
            node.wait()
        shutil.rmtree(FOLDER, ignore_errors=True)


def _family(nodes: list[subprocess.Popen]) -> list[psutil.Process]:
    """Every process that a node has started."""
    found = []
    for node in nodes:
        with suppress(psutil.NoSuchProcess):
            found += psutil.Process(node.pid).children(recursive=True)
    return found


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def at_work(task: str) -> list[psutil.Process]:
    """Our workers that are at a task."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if any(f"ray::{task}" in word for word in _words(each)):
                found += [each] * any(str(FOLDER) in " ".join(_words(parent)) for parent in each.parents())
    return found


def drive(address: str, root: Path, experiment: dict, what: str, kill: str = "") -> tuple[str, int]:
    """Run the driver; kill the first worker that is seen at the task `kill`, with SIGKILL. Returns stdout and kills."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", DRIVER, address, str(root), json.dumps(experiment), what]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    killed, ended = [], threading.Event()

    def murder() -> None:
        while kill and not killed and not ended.is_set():
            for each in at_work(kill)[:1]:
                each.send_signal(signal.SIGKILL)
                killed.append(each.pid)
            time.sleep(0.02)

    thread = threading.Thread(target=murder)
    thread.start()
    out, err = process.communicate(timeout=1200)
    ended.set()
    thread.join()
    assert process.returncode == 0, err
    return out, len(killed)


@pytest.mark.slow
def test_extraction_with_a_killed_worker_is_the_same_to_the_byte(ray_cluster, tiny, reviews, tmp_path):
    experiment = {"train_file": str(reviews), "encoder": str(tiny), "fractions": [0.5], **QUICK}
    here, _ = drive("", tmp_path / "here", experiment, "extract")
    there, kills = drive(ray_cluster, tmp_path / "there", experiment, "extract", kill="write_shard")
    assert kills == 1
    for one, two in zip(here.split(), there.split(), strict=True):
        files = [sorted(path.name for path in Path(place).iterdir()) for place in (one, two)]
        assert files[0] == files[1] and sum(name.endswith(".states") for name in files[0]) > 4
        for name in files[0]:
            assert (Path(one) / name).read_bytes() == (Path(two) / name).read_bytes(), name


@pytest.mark.slow
def test_a_search_with_a_killed_worker_finds_the_same(ray_cluster, tiny, reviews, tmp_path):
    experiment = {"train_file": str(reviews), "encoder": str(tiny), "heads": ["learned", "adapter"], **QUICK}
    here, _ = drive("", tmp_path / "here", experiment, "search")
    there, kills = drive(ray_cluster, tmp_path / "there", experiment, "search", kill="train_trial")
    assert kills == 1 and json.loads(here) == json.loads(there)


@pytest.mark.slow
def test_studies_with_a_killed_worker_find_the_same(ray_cluster, tiny, reviews, tmp_path):
    experiment = {"train_file": str(reviews), "encoder": str(tiny), "heads": ["learned", "adapter"], **QUICK}
    here, _ = drive("", tmp_path / "here", experiment, "study")
    there, kills = drive(ray_cluster, tmp_path / "there", experiment, "study", kill="run_seed")
    here, there = json.loads(here), json.loads(there)
    assert kills == 1 and there["rows"] == here["rows"]
    assert there["before"] == there["after"] == here["after"] > here["before"] == 0  # all was made on the cluster


@pytest.mark.slow
def test_an_interrupted_search_cancels_its_tasks_and_goes_on_without_the_cluster(ray_cluster, tiny, reviews, tmp_path):
    experiment = {"train_file": str(reviews), "encoder": str(tiny), "heads": ["learned", "adapter"], **QUICK}
    words = [sys.executable, "-c", DRIVER, ray_cluster, str(tmp_path / "there"), json.dumps(experiment), "search"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 200
    while not at_work("train_trial"):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert "KeyboardInterrupt" in err
    until = time.monotonic() + 60
    while at_work("train_trial"):
        assert time.monotonic() < until, "still at work"
        time.sleep(0.1)
    here, _ = drive("", tmp_path / "here", experiment, "search")
    rest, _ = drive("", tmp_path / "there", experiment, "search")
    by_params = [
        sorted(json.dumps([row["params"], row["by_epoch"]]) for row in json.loads(out)["history"])
        for out in (here, rest)
    ]
    assert by_params[0] == by_params[1] and json.loads(here)["score"] == json.loads(rest)["score"]


@pytest.mark.slow
def test_a_directory_that_is_not_shared(ray_cluster, tmp_path):
    """The driver has another disk mounted there."""
    mount = f"mount -t tmpfs none {tmp_path}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("may not mount")
    code = f"from bertvision.lab.cluster import *; connect({ray_cluster!r}, Path({str(tmp_path)!r}))"
    words = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250)
    assert "is not shared: " in done.stderr and "cannot read files that are written here" in done.stderr


@pytest.mark.slow
def test_a_cluster_that_does_not_answer(tmp_path):
    code = f"from bertvision.lab.cluster import *; connect('ray://127.0.0.1:1', Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "BertVisionError: No Ray cluster answers at 'ray://127.0.0.1:1'" in done.stderr
