"""Start Python processes in milliseconds: one process imports the libraries, and the others are forks of it.

The processes are real ones: they have their own memory, can be killed, and share nothing but what was imported. The
process that is forked computes nothing, so that no fork lacks threads that torch believes to have.
"""

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ENCODER = ("torch", "transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert")
WIDTH = 12
"""The bytes of each number that a monitor writes."""


class ForkedProcess:
    """A running process, with the methods of `subprocess.Popen` that tests need. Its output goes to files."""

    def __init__(
        self,
        code: str,
        arguments: Sequence[str],
        modules: Sequence[str],
        out: Path,
        err: Path,
        environment: Mapping[str, str] | None = None,
    ):
        """Run `code` with `arguments` after its `modules` were imported. `environment`: variables to add."""
        self.out, self.err = out, err
        self.returncode: int | None = None
        order = {"code": code, "arguments": [*arguments], "modules": [*ENCODER, *modules], "cwd": os.getcwd()}
        order |= {"environment": {**os.environ, **(environment or {})}}
        self._status, theirs = os.pipe()
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            data = json.dumps(order).encode()
            files = [stdout.fileno(), stderr.fileno(), theirs]
            connection = _server()
            socket.send_fds(connection, [len(data).to_bytes(4, "big")], files)
            connection.sendall(data)
        os.close(theirs)
        self.pid = int(self._line(120))

    def _line(self, timeout: float | None) -> bytes:
        """Return what the monitor wrote: first the process id, then the exit status."""
        if not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(["forked process"], timeout or 0.0)
        return os.read(self._status, WIDTH)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative after a signal, as `subprocess.Popen.wait` does."""
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _server() -> socket.socket:
    """Start the process that is forked, once for each process of pytest; it ends with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        words = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    @atexit.register
    def stop() -> None:
        ours.close()
        process.wait()

    return ours


def serve(connection: socket.socket) -> None:
    """Fork for every order until the connection is closed."""
    from bertvision.cpu_optimizations import set_environment

    set_environment()  # before torch is imported, as the command line does
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for monitors
    while True:
        head, files, _, _ = socket.recv_fds(connection, 4, 3)
        if not head:
            return
        order = json.loads(_read(connection, int.from_bytes(head, "big")))
        for module in order["modules"]:
            importlib.import_module(module)
        if not os.fork():
            connection.close()
            _monitor(order, *files)
        for file in files:
            os.close(file)


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += connection.recv(size - len(found))
    return found


def _monitor(order: dict, stdout: int, stderr: int, status: int) -> None:
    """Fork the process, and report its id and its exit status."""
    import torch

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    threads = int(order["environment"].get("OMP_NUM_THREADS", torch.get_num_threads()))
    child = os.fork()
    if not child:
        os.close(status)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        torch.set_num_threads(threads)  # a fork of this package uses a single thread
        os._exit(_run(order))
    os.write(status, f"{child:{WIDTH}}".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(status, f"{code:{WIDTH}}".encode())
    os._exit(0)


def _run(order: dict) -> int:
    """Run the code of an order as a script; return its exit status."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["-c", *order["arguments"]]
    try:
        exec(compile(order["code"], "<forked>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        if isinstance(stopped.code, str):
            print(stopped.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
