"""Routes of the Open Inference Protocol (KServe v2): health, metadata and inference."""

import json
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

import bertvision
from bertvision.errors import BertVisionError
from bertvision.serving.handlers import PredictionHandler, ServerState
from bertvision.serving.responses import ERROR_RESPONSES, error_response, json_response
from bertvision.serving.service import AnswerOptions
from bertvision.serving.settings import MAX_ITEMS_PER_REQUEST
from bertvision.trained_model import TrainedModel

Size = Annotated[int, Field(ge=0, le=2**31)]


class Tensor(BaseModel):
    """An input tensor: one text per item."""

    model_config = ConfigDict(strict=True, extra="ignore")
    name: Annotated[str, Field(max_length=200)]
    shape: Annotated[list[Size], Field(min_length=1, max_length=2)]
    datatype: Literal["BYTES"]
    data: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS_PER_REQUEST)]


class Infer(BaseModel):
    """An inference request, with one tensor for each input of the model."""

    model_config = ConfigDict(strict=True, extra="ignore")
    id: Annotated[str, Field(max_length=200)] = ""
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=8)]


class Output(BaseModel):
    """An output tensor: one value per item."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]
    parameters: dict[str, list[str]] | None = Field(default=None, description="The classes of the columns.")


class Inferred(BaseModel):
    """An inference response."""

    model_name: str
    id: str
    outputs: list[Output]


class Live(BaseModel):
    """Health of the server or of a model."""

    live: bool | None = None
    ready: bool | None = None


class ServerMetadata(BaseModel):
    """Name and version of the server."""

    name: str
    version: str
    extensions: list[str]


class Metadata(BaseModel):
    """Inputs and outputs of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]


DATATYPES = {str: "BYTES", float: "FP64", int: "INT64"}
MAIN_OUTPUTS = {
    "span": ("answer", "BYTES"),
    "class": ("label", "BYTES"),
    "labels": ("labels", "BYTES"),
    "score": ("score", "FP64"),
    "entities": ("entities", "BYTES"),
}


def items_from_tensors(request: Infer, model: TrainedModel) -> list[Any]:
    """Convert the input tensors of a request to items."""
    columns = {tensor.name: tensor.data for tensor in request.inputs}
    inputs = model.task.text_names
    if len(columns) < len(request.inputs):
        raise BertVisionError("The request has two inputs of the same name.")
    for tensor in request.inputs:
        if tensor.shape not in ([len(tensor.data)], [len(tensor.data), 1]):
            raise BertVisionError(f"The shape of an input of {len(tensor.data)} texts is [{len(tensor.data)}].")
    missing = [name for name in inputs if name not in columns]
    if missing:
        raise BertVisionError(f"The request lacks the input {missing[0]!r}; the model takes {', '.join(inputs)}.")
    lengths = {len(columns[name]) for name in inputs}
    if len(lengths) > 1:
        raise BertVisionError("The inputs have different lengths; every item needs one text for each input.")
    return list(zip(*(columns[name] for name in inputs), strict=True))


def tensors_from_answers(answers: list[dict[str, Any]]) -> list[Output]:
    """Convert answers to output tensors. The probabilities of all classes are one tensor; labels, entities are JSON."""
    outputs = []
    for name, first in answers[0].items():
        if name == "truncated":
            continue  # not every answer has this key
        values = [answer[name] for answer in answers]
        if name == "probabilities":
            classes = list(first)
            data = [value for row in values for value in row.values()]
            shape, parameters = [len(answers), len(classes)], {"classes": classes}
            outputs.append(Output(name=name, shape=shape, datatype="FP64", data=data, parameters=parameters))
        elif name in ("entities", "labels"):
            data = [json.dumps(value, ensure_ascii=False) for value in values]
            outputs.append(Output(name=name, shape=[len(answers)], datatype="BYTES", data=data))
        elif isinstance(first, str | int | float):
            outputs.append(Output(name=name, shape=[len(answers)], datatype=DATATYPES[type(first)], data=values))
    return outputs


def add_routes(app: FastAPI, handler: PredictionHandler) -> None:
    """Add the routes of the protocol to `app`."""
    _add_server_routes(app, handler.state)
    _add_model_routes(app, handler)


def _add_server_routes(app: FastAPI, state: ServerState) -> None:
    @app.get("/v2", tags=["KServe v2"])
    async def server() -> ServerMetadata:
        """Return the name and the version of the server."""
        return ServerMetadata(name="bertvision", version=bertvision.__version__, extensions=[])

    @app.head("/v2/health/live", include_in_schema=False)
    @app.get("/v2/health/live", response_model_exclude_none=True, tags=["KServe v2"])
    async def live() -> Live:
        """Return 200 while the process responds."""
        return Live(live=True)

    @app.head("/v2/health/ready", include_in_schema=False)
    @app.get("/v2/health/ready", responses={503: {"model": Live}}, tags=["KServe v2"])
    async def ready() -> Response:
        """Return 200 while the server accepts requests, else 503."""
        return json_response({"ready": state.accepting}, 200 if state.accepting else 503)


def _add_model_routes(app: FastAPI, handler: PredictionHandler) -> None:
    service, state = handler.service, handler.state
    errors: dict[int | str, dict[str, Any]] = {
        404: ERROR_RESPONSES[422] | {"description": "Unknown model."},
        401: ERROR_RESPONSES[401],
        422: ERROR_RESPONSES[422],
    }

    def unknown_model() -> Response:
        return error_response(404, f"Unknown model. Available models: {', '.join(service.models)}.")

    @app.get("/v2/models/{name}", response_model=Metadata, responses=errors, tags=["KServe v2"])
    async def metadata(name: str) -> Any:
        """Return the inputs and outputs of a model."""
        model = service.models.get(name)
        if model is None:
            return unknown_model()
        inputs = [{"name": text, "datatype": "BYTES", "shape": [-1]} for text in model.task.text_names]
        described = next(entry for entry in service.description["models"] if entry["name"] == name)
        output, datatype = MAIN_OUTPUTS[described["answers"]]
        outputs: list[dict[str, Any]] = [{"name": output, "datatype": datatype, "shape": [-1]}]
        if output == "label":
            outputs.append({"name": "probability", "datatype": "FP64", "shape": [-1]})
            outputs.append({"name": "probabilities", "datatype": "FP64", "shape": [-1, len(described["classes"])]})
        return Metadata(name=name, versions=["1"], platform="bertvision", inputs=inputs, outputs=outputs)

    @app.get("/v2/models/{name}/ready", response_model=Live, responses=errors, tags=["KServe v2"])
    async def model_ready(name: str) -> Any:
        """Return whether a model accepts requests."""
        return Live(ready=state.accepting) if name in service.models else unknown_model()

    @app.post(
        "/v2/models/{name}/infer",
        responses={200: {"model": Inferred}, **ERROR_RESPONSES, **errors},
        tags=["KServe v2"],
    )
    async def infer(name: str, infer: Infer, request: Request) -> Response:
        """Answer items given as tensors; the answers are tensors as well."""
        model = service.models.get(name)
        if model is None:
            return unknown_model()
        items = items_from_tensors(infer, model)
        result = await handler(request, {name: model}, items, AnswerOptions())
        outputs = [tensor.model_dump(exclude_none=True) for tensor in tensors_from_answers(result["answers"][name])]
        return json_response({"model_name": name, "id": infer.id, "outputs": outputs})
