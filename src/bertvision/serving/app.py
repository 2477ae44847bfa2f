"""The routes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi_offline import FastAPIOffline

from bertvision.serving import kserve
from bertvision.serving.batching import Batcher
from bertvision.serving.logs import Log
from bertvision.serving.metrics import ServerMetrics
from bertvision.serving.middleware import RequestMiddleware
from bertvision.serving.responses import PROBLEMS, add_problems, as_json, shutting_down
from bertvision.serving.schema import Answers, Models, PredictRequest, State
from bertvision.serving.service import InferenceService
from bertvision.serving.settings import ServerSettings
from bertvision.trained_model import TrainedModel

PAGE = {"index.html": "text/html; charset=utf-8", "style.css": "text/css", "app.js": "text/javascript"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"


class Running:
    """Whether requests are taken."""

    def __init__(self) -> None:
        self.ready = False
        self.draining = False

    @property
    def taking(self) -> bool:
        """True from the first pass until SIGTERM."""
        return self.ready and not self.draining

    @property
    def status(self) -> str:
        """In a word."""
        return "draining" if self.draining else "ready" if self.ready else "starting"


@dataclass(frozen=True)
class Application:
    """The guarded routes, with what a server must know of them."""

    guard: RequestMiddleware
    running: Running
    served: InferenceService


def create_app(trained_models: Sequence[TrainedModel], settings: ServerSettings, log: Log | None = None) -> Application:
    """Build the application around these models."""
    log, metrics, running = log or Log(), ServerMetrics(), Running()
    batcher = Batcher(settings, metrics.batch)
    served = InferenceService(trained_models, batcher, settings)
    metrics.follow(lambda: batcher.waiting, lambda: float(running.taking))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        for name, each in served.models.items():  # the first pass allocates; nobody should wait for that
            item: Any = ("warm up",) * len(each.task.text_names)
            await served.answer({name: each}, [item], nbest=1, bert=True, timeout=None)
        running.ready = True
        yield
        running.ready = False
        batcher.close()
        served.cpu_pool.shutdown()

    app = FastAPIOffline(
        title="bertvision",
        description="Answers of runs: heads that read all layers of fine-tuned encoders. " + served.description["note"],
        lifespan=lifespan,
        redoc_url=None,
    )
    if settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    add_problems(app)

    @app.post("/v1/predict", responses={200: {"model": Answers}, **PROBLEMS}, tags=["answers"])
    async def predict(ask: PredictRequest, request: Request) -> Response:
        """Answer one or many items with one or many models; a text is read once per backbone."""
        if running.draining:
            return shutting_down()
        items: Any = ask.items
        models = served.choose(ask.models, items)
        found = await served.answer(models, items, nbest=ask.nbest, bert=ask.bert, timeout=ask.timeout)
        for name in models:
            metrics.items.labels(name).inc(len(items))
        request.state.note.update(items=len(items), models=len(models), tokens=found["tokens"])
        return as_json(found)

    @app.get("/v1/models", response_model=Models, responses={401: PROBLEMS[401]}, tags=["answers"])
    async def models() -> Any:
        """List what is served, and which models share a forward pass."""
        return served.description

    @app.get("/livez", tags=["health"])
    async def livez() -> State:
        """Tell that the process answers at all."""
        return State(status="alive")

    @app.get("/readyz", responses={200: {"model": State}, 503: {"model": State}}, tags=["health"])
    async def readyz() -> Response:
        """Tell whether requests are taken; not while starting, nor from SIGTERM on."""
        return as_json({"status": running.status}, 200 if running.taking else 503)

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, 401: PROBLEMS[401]}, tags=["health"])
    async def figures() -> Response:
        """Return figures for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    kserve.add_routes(app, served, running)
    add_page(app)
    guard = RequestMiddleware(app, settings, log, metrics, lambda: batcher.retry_after)
    return Application(guard, running, served)


def add_page(app: FastAPI) -> None:
    """Serve the page: three files of the package."""
    folder = files("bertvision.serving") / "page"
    content = {name: (folder / name).read_bytes() for name in PAGE}

    def serve(name: str) -> Any:
        async def page() -> Response:
            headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
            return Response(content[name], media_type=PAGE[name], headers=headers)

        return page

    for name in PAGE:
        path = "/" if name == "index.html" else f"/page/{name}"
        app.add_api_route(path, serve(name), include_in_schema=False)
