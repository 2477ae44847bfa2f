"""The process: a socket, signals, and an end that loses nobody's answer."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn

from bertvision.errors import BertVisionError
from bertvision.serving.app import Running, create_app
from bertvision.serving.logs import Log, catch_library_logs
from bertvision.serving.settings import ServerSettings
from bertvision.trained_model import TrainedModel

SWITCH = 0.0005
"""Seconds a thread may keep Python to itself; with the usual 5 ms, event loop and forward pass wait for one another."""


class Server(uvicorn.Server):
    """On SIGTERM: first not ready any more, then no new connections, then the answers under way, then the end."""

    def __init__(self, config: uvicorn.Config, running: Running, log: Log, drain: float):
        super().__init__(config)
        self.running = running
        self.log = log
        self.drain = drain
        self._exit_at = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second signal ends it at once."""
        if self.running.draining:
            self.should_exit = self.force_exit = True
            return
        self.running.draining = True
        self._exit_at = time.monotonic() + self.drain
        self.log("draining", signal=signal.Signals(sig).name)

    async def on_tick(self, counter: int) -> bool:
        """Stop accepting when readiness has been down for long enough."""
        if time.monotonic() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)


def listen(host: str, port: int) -> socket.socket:
    """Bind the port, or say why not."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BertVisionError(f"Cannot listen on {host}, port {port}: {reason}. Choose another with --port.") from error


def serve(
    trained_models: Sequence[TrainedModel],
    settings: ServerSettings,
    host: str,
    port: int,
    ready: Callable[[str, str], None] = lambda url, note: None,
) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is told the address once the port is bound."""
    log = Log()
    sock = listen(host, port)
    app = create_app(trained_models, settings, log)
    catch_library_logs(log)
    config = uvicorn.Config(
        app.guard,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=round(settings.timeout) + 5,
    )
    server = Server(config, app.running, log, settings.drain)
    url = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}/"
    sys.setswitchinterval(SWITCH)
    note = app.served.description["note"]
    ready(url, note)
    log("serving", url=url, models=list(app.served.models), note=note)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[sock]))
    log("stopped")
