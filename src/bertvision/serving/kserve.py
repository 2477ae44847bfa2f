"""The Open Inference Protocol (KServe v2) beside our own routes: health, metadata, infer."""

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from bertvision.errors import BertVisionError
from bertvision.serving.responses import PROBLEMS, as_json, problem, shutting_down
from bertvision.serving.service import InferenceService
from bertvision.serving.settings import MOST_TEXTS
from bertvision.trained_model import TrainedModel

Size = Annotated[int, Field(ge=0, le=2**31)]


class Tensor(BaseModel):
    """One column of texts."""

    model_config = ConfigDict(strict=True, extra="ignore")
    name: Annotated[str, Field(max_length=200)]
    shape: Annotated[list[Size], Field(min_length=1, max_length=2)]
    datatype: Literal["BYTES"]
    data: Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]


class Infer(BaseModel):
    """A request: a tensor per text of an item, named as the model's inputs."""

    model_config = ConfigDict(strict=True, extra="ignore")
    id: Annotated[str, Field(max_length=200)] = ""
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=8)]


class Output(BaseModel):
    """One column of the answers."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class Inferred(BaseModel):
    """The answers, column by column."""

    model_name: str
    id: str
    outputs: list[Output]


class Live(BaseModel):
    """Alive or ready."""

    live: bool | None = None
    ready: bool | None = None


class Metadata(BaseModel):
    """What a model reads and answers."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]


TYPES = {str: "BYTES", float: "FP64", int: "INT64"}


def items_of(infer: Infer, predictor: TrainedModel) -> list[Any]:
    """Turn columns into items."""
    columns = {tensor.name: tensor.data for tensor in infer.inputs}
    wanted = predictor.task.text_names
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise BertVisionError(f"The request lacks the input {missing[0]!r}; the model reads {', '.join(wanted)}.")
    lengths = {len(columns[name]) for name in wanted}
    if len(lengths) > 1:
        raise BertVisionError("The inputs have different lengths; each item needs one text of each.")
    return list(zip(*(columns[name] for name in wanted), strict=True))


def columns_of(answers: list[dict[str, Any]]) -> list[Output]:
    """Turn answers into columns of plain values; probabilities get one column per class."""
    flat = []
    for answer in answers:
        plain = {key: value for key, value in answer.items() if isinstance(value, str | int | float)}
        flat.append(plain | {f"probability_{key}": value for key, value in answer.get("probabilities", {}).items()})
    names = list(flat[0])
    return [
        Output(name=name, shape=[len(flat)], datatype=TYPES[type(flat[0][name])], data=[row.get(name) for row in flat])
        for name in names
    ]


def add_routes(app: FastAPI, served: InferenceService, running: Any) -> None:
    """Add the protocol's routes to `app`."""
    missing: dict[int | str, dict[str, Any]] = {
        404: PROBLEMS[422] | {"description": "No such model."},
        401: PROBLEMS[401],
        422: PROBLEMS[422],
    }

    def find(name: str) -> TrainedModel | None:
        return served.models.get(name)

    def unknown() -> Response:
        return problem(404, f"No such model. Known: {', '.join(served.models)}.")

    @app.get("/v2/health/live", response_model_exclude_none=True, tags=["KServe v2"])
    async def live() -> Live:
        """Tell that the process answers."""
        return Live(live=True)

    @app.get("/v2/health/ready", responses={503: {"model": Live}}, tags=["KServe v2"])
    async def ready() -> Response:
        """Tell whether requests are taken."""
        return as_json({"ready": running.taking}, 200 if running.taking else 503)

    @app.get("/v2/models/{name}", response_model=Metadata, responses=missing, tags=["KServe v2"])
    async def metadata(name: str) -> Any:
        """Tell what a model reads."""
        predictor = find(name)
        if predictor is None:
            return unknown()
        inputs = [{"name": each, "datatype": "BYTES", "shape": [-1]} for each in predictor.task.text_names]
        kind = next(each["answers"] for each in served.description["models"] if each["name"] == name)
        main = {"span": ("answer", "BYTES"), "class": ("label", "BYTES"), "score": ("score", "FP64")}[kind]
        outputs = [{"name": main[0], "datatype": main[1], "shape": [-1]}]
        return Metadata(name=name, versions=["1"], platform="bertvision", inputs=inputs, outputs=outputs)

    @app.get("/v2/models/{name}/ready", response_model=Live, responses=missing, tags=["KServe v2"])
    async def model_ready(name: str) -> Any:
        """Tell whether a model takes requests."""
        return Live(ready=running.taking) if find(name) else unknown()

    @app.post(
        "/v2/models/{name}/infer", responses={200: {"model": Inferred}, **PROBLEMS, **missing}, tags=["KServe v2"]
    )
    async def infer(name: str, infer: Infer, request: Request) -> Response:
        """Answer columns of texts with columns of answers."""
        predictor = find(name)
        if predictor is None:
            return unknown()
        if running.draining:
            return shutting_down()
        items = items_of(infer, predictor)
        found = await served.answer({name: predictor}, items, nbest=1, bert=False, timeout=None)
        request.state.note.update(items=len(items), models=1, tokens=found["tokens"])
        outputs = [each.model_dump() for each in columns_of(found["answers"][name])]
        return as_json({"model_name": name, "id": infer.id, "outputs": outputs})
