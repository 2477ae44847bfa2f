import logging
import sys
from importlib.util import find_spec

import pytest
from rich.console import Console

from bertvision import progress
from bertvision.cli import logs
from bertvision.threads import thread_pool


def test_silent_when_not_a_terminal(capsys):
    with progress.bar("work", total=3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


def test_rate_and_time_left_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.bar("work", total=30) as advance, progress.bar("inner", total=2) as inner:
        for _ in range(10):
            advance(1)
            inner(0)
    out, err = capsys.readouterr()
    assert out == "" and "work" in err and "/30" in err and "left" in err


def test_hidden_bars(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)

    def work(label):
        with progress.bar(label, total=3) as advance:
            advance(1)
            advance(2)

    with progress.hidden():
        work("silent")
        with thread_pool(1) as pool:
            pool.submit(work, "silent in a thread").result()
        with progress.hidden(False):
            work("shown")
    work("shown again")
    err = capsys.readouterr().err
    assert "silent" not in err and "shown" in err and "shown again" in err


@pytest.mark.parametrize(("jupyter", "ipywidgets"), [(True, True), (True, False), (False, True)])
def test_bars_in_notebooks_need_ipywidgets(monkeypatch, jupyter, ipywidgets):
    monkeypatch.setattr(progress, "find_spec", lambda name: ipywidgets or None)
    assert progress.can_show_bars(Console(stderr=True, force_jupyter=jupyter)) is (jupyter and ipywidgets)


KERNEL_CODE = """
from bertvision import progress
from bertvision.cli import logs
progress.PATIENCE = -1.0
def work(label):
    with progress.bar(label, total=3) as advance:
        for _ in range(3):
            advance(1)
work("visible work")
with progress.hidden():
    work("silent work")
"""


@pytest.mark.filterwarnings("default")  # of the kernel's client
@pytest.mark.skipif(not (find_spec("ipykernel") and find_spec("jupyter_client")), reason="ipykernel is not installed")
def test_a_notebook_shows_bars_and_hides_them():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    messages = []
    try:
        reply = client.execute_interactive(KERNEL_CODE, output_hook=messages.append, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok"
    shown = str([message["content"] for message in messages if message["msg_type"] != "execute_input"])
    assert ("visible work" in shown) is (find_spec("ipywidgets") is not None)
    assert "silent work" not in shown
    assert not [message for message in messages if message["msg_type"] in ("stream", "error")]
    displays = [message["content"]["data"] for message in messages if message["msg_type"] == "display_data"]
    assert not [data for data in displays if not data["text/plain"]]


def test_short_work_shows_no_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.bar("work", total=3) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


def test_log_messages_go_to_stderr(capsys):
    logger = logging.getLogger("bertvision")
    before = logger.level
    logs.log_to_stderr()
    try:
        logging.getLogger("bertvision.tasks").info("hello")
        assert capsys.readouterr() == ("", "hello\n")
    finally:
        logger.handlers = [each for each in logger.handlers if not isinstance(each, logs.StderrHandler)]
        logger.setLevel(before)
