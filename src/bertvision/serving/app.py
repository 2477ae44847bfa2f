"""The FastAPI application: routes, health checks and the demo page."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi_offline import FastAPIOffline

from bertvision.errors import BertVisionError
from bertvision.serving import hugging_face, kserve
from bertvision.serving.admission import Admission
from bertvision.serving.batching import Batcher
from bertvision.serving.connections import Connections
from bertvision.serving.handlers import PredictionHandler, ServerState
from bertvision.serving.logs import JsonLogger, RequestLog
from bertvision.serving.metrics import ServerMetrics
from bertvision.serving.middleware import RequestMiddleware
from bertvision.serving.responses import ERROR_RESPONSES, add_error_handlers, json_response
from bertvision.serving.schema import Answers, Models, PredictRequest, State
from bertvision.serving.service import AnswerOptions, InferenceService
from bertvision.serving.settings import ServerSettings
from bertvision.trained_model import TrainedModel

PAGE_FILES = {"index.html": "text/html; charset=utf-8", "style.css": "text/css", "app.js": "text/javascript"}
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
    ),
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Application:
    """The ASGI application, with the objects that the server process needs."""

    middleware: RequestMiddleware
    connections: Connections
    request_log: RequestLog
    state: ServerState
    service: InferenceService


def create_app(
    trained_models: Sequence[TrainedModel], settings: ServerSettings, log: JsonLogger | None = None
) -> Application:
    """Build the application that serves these models."""
    request_log, metrics, state = RequestLog(log or JsonLogger()), ServerMetrics(), ServerState()
    batcher = Batcher(settings, metrics.record_batch)
    service = InferenceService(trained_models, batcher, settings)
    admission = Admission(settings, lambda: batcher.retry_after, lambda: batcher.is_full(settings.request_timeout))

    def record_refusal(status: int) -> None:
        metrics.refusals.labels(str(status)).inc()
        request_log.refused(status)

    connections = Connections(settings, admission, record_refusal)
    metrics.set_sources(
        lambda: batcher.queued_tokens, lambda: float(state.accepting), lambda: float(len(connections.open))
    )
    app = FastAPIOffline(
        title="bertvision",
        description="Predictions of heads on the hidden states of fine-tuned encoders. " + service.description["note"],
        lifespan=_lifespan(service, state),
        redoc_url=None,
        redirect_slashes=False,  # the redirect would contain the client's Host header
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    add_error_handlers(app)
    handler = PredictionHandler(service, state, metrics)
    add_prediction_routes(app, handler)
    add_health_routes(app, state, metrics)
    kserve.add_routes(app, handler)
    hugging_face.add_routes(app, handler)
    add_page(app)
    middleware = RequestMiddleware(app, settings, request_log, metrics)
    return Application(middleware, connections, request_log, state, service)


def _lifespan(service: InferenceService, state: ServerState) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return the function that starts the batcher, warms up the models and shuts down."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        await service.warm_up()
        state.ready = True
        yield
        state.ready = False
        service.batcher.close()
        service.cpu_pool.shutdown()

    return lifespan


def add_prediction_routes(app: FastAPI, handler: PredictionHandler) -> None:
    """Add /v1/predict and /v1/models."""
    service = handler.service

    @app.post("/v1/predict", responses={200: {"model": Answers}, **ERROR_RESPONSES}, tags=["answers"])
    async def predict(body: PredictRequest, request: Request) -> Response:
        """Answer one or more items with one or more models.

        Models on the same encoder share its forward pass.
        """
        items: Any = body.items
        if body.ids is not None and len(body.ids) != len(items):
            raise BertVisionError(f"The request has {len(items)} items and {len(body.ids)} ids; give an id for each.")
        models = service.select_models(body.models, items)
        options = AnswerOptions(nbest=body.nbest, bert=body.bert, top_k=body.top_k)
        result = await handler(request, models, items, options, body.timeout)
        if body.ids is not None:
            for answers in result["answers"].values():
                for id, answer in zip(body.ids, answers, strict=True):
                    answer["id"] = id
        return json_response(result)

    @app.get("/v1/models", response_model=Models, responses={401: ERROR_RESPONSES[401]}, tags=["answers"])
    async def models() -> Any:
        """List the models, and which of them share an encoder."""
        return service.description


def add_health_routes(app: FastAPI, state: ServerState, metrics: ServerMetrics) -> None:
    """Add /livez, /readyz and /metrics."""

    @app.head("/livez", include_in_schema=False)
    @app.get("/livez", tags=["health"])
    async def livez() -> State:
        """Return 200 while the process responds."""
        return State(status="alive")

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", responses={200: {"model": State}, 503: {"model": State}}, tags=["health"])
    async def readyz() -> Response:
        """Return 200 while the server accepts requests, 503 during startup and after SIGTERM."""
        return json_response({"status": state.status}, 200 if state.accepting else 503)

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, 401: ERROR_RESPONSES[401]}, tags=["health"])
    async def figures() -> Response:
        """Return metrics in the Prometheus text format."""
        return Response(metrics.render(), media_type="text/plain; version=0.0.4")


def add_page(app: FastAPI) -> None:
    """Serve the demo page, which consists of three files of the package."""
    folder = files("bertvision.serving") / "page"
    content = {name: (folder / name).read_bytes() for name in PAGE_FILES}

    def route_for(name: str) -> Any:
        async def page() -> Response:
            return Response(content[name], media_type=PAGE_FILES[name], headers=PAGE_HEADERS)

        return page

    for name in PAGE_FILES:
        path = "/" if name == "index.html" else f"/page/{name}"
        app.add_api_route(path, route_for(name), include_in_schema=False)
