"""The server process: socket, signals and graceful shutdown."""

import asyncio
import gc
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import cast

import uvicorn

from bertvision.errors import BertVisionError
from bertvision.serving.app import Application, create_app
from bertvision.serving.connections import KEEP_ALIVE_SECONDS, Connection
from bertvision.serving.handlers import ServerState
from bertvision.serving.logs import JsonLogger, redirect_library_logs
from bertvision.serving.settings import ServerSettings
from bertvision.trained_model import TrainedModel

SPARE_DESCRIPTORS = 256
"""Files that the process may open besides its connections."""
SWITCH_INTERVAL = 0.0005
"""Seconds a thread may hold the GIL. With Python's default of 5 ms, event loop and batch threads delay each other."""


class Server(uvicorn.Server):
    """A uvicorn server with a graceful shutdown.

    After SIGTERM, /readyz fails at once. After `drain_seconds`, new connections are refused, requests in progress are
    answered, and the process ends.
    """

    def __init__(self, config: uvicorn.Config, app: Application, log: JsonLogger, drain_seconds: float):
        super().__init__(config)
        self.app = app
        self.state: ServerState = app.state
        self.log = log
        self.drain_seconds = drain_seconds
        self._exit_at = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain. A second signal ends the process immediately."""
        if self.state.draining:
            self.should_exit = self.force_exit = True
            return
        self.state.draining = True
        self._exit_at = time.monotonic() + self.drain_seconds
        self.log("draining", signal=signal.Signals(sig).name)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: close expired connections, log refusals, and stop when the drain is over."""
        self.app.connections.close_expired()
        self.app.request_log.summarize()
        if time.monotonic() >= self._exit_at:
            self.should_exit: bool = True
        return await super().on_tick(counter)


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket to the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BertVisionError(f"Cannot listen on {host}, port {port}: {reason}. Choose another with --port.") from error


def allow_descriptors(number: int) -> None:
    """Raise the limit of open files of this process, as far as the system allows it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= number:
        return
    allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < number:
        raise BertVisionError(
            f"This process may open {allowed:,} files, and the server needs {number:,}. "
            "Raise the limit with ulimit -n, or lower --max-connections."
        )


def serve(
    trained_models: Sequence[TrainedModel],
    settings: ServerSettings,
    host: str,
    port: int,
    on_listening: Callable[[str, str], None] = lambda url, note: None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        trained_models: The models to serve.
        settings: Limits and timeouts.
        host: Address to listen on.
        port: Port to listen on; 0 chooses a free one.
        on_listening: Called with the URL of the server and a note about shared encoders once the port is bound.
    """
    log = JsonLogger()
    sock = listen(host, port)
    allow_descriptors(settings.max_connections + SPARE_DESCRIPTORS)
    app = create_app(trained_models, settings, log)
    redirect_library_logs(log)
    config = uvicorn.Config(
        app.middleware,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=cast("type[Connection]", partial(Connection, connections=app.connections)),
        lifespan="on",
        timeout_keep_alive=round(KEEP_ALIVE_SECONDS),
        timeout_graceful_shutdown=round(settings.request_timeout) + 5,
    )
    server = Server(config, app, log, settings.drain_seconds)
    url = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}/"
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()  # later collections leave out models and modules, which would stop the event loop for half a second
    note = app.service.description["note"]
    on_listening(url, note)
    log("serving", url=url, models=list(app.service.models), note=note)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[sock]))
    app.request_log.summarize(now=True)
    log("stopped")
