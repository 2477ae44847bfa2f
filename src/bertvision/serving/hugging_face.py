"""Routes of Hugging Face's servers for classification: POST /predict, /info and /health.

They follow Text Embeddings Inference. `inputs` and the answers to questions follow the Inference API.
"""

from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

import bertvision
from bertvision.errors import BertVisionError
from bertvision.serving.handlers import PredictionHandler
from bertvision.serving.responses import ERROR_RESPONSES, json_response
from bertvision.serving.schema import Named, State
from bertvision.serving.service import AnswerOptions
from bertvision.serving.settings import MAX_ITEMS_PER_REQUEST

Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS_PER_REQUEST)]
ListOfTexts = Annotated[
    list[Annotated[list[str], Field(min_length=1, max_length=2)] | Named],
    Field(min_length=1, max_length=MAX_ITEMS_PER_REQUEST),
]


class Parameters(BaseModel):
    """Options of the Inference API."""

    model_config = ConfigDict(strict=True, extra="forbid")
    top_k: int | None = Field(default=None, ge=1, le=10_000, description="Classes to list.")


class ClassifyRequest(BaseModel):
    """Texts to classify."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"inputs": "a warm, funny film"},
                {"inputs": ["a warm, funny film", "two hours of nothing"], "parameters": {"top_k": 1}},
                {"inputs": [["A man plays a guitar.", "Somebody plays an instrument."]]},
            ]
        },
    )
    inputs: str | Named | Texts | ListOfTexts = Field(
        description="A text, a pair of texts or a list of them; for questions {question, context}. A list of texts is "
        "a pair if the model takes pairs."
    )
    parameters: Parameters = Parameters()
    truncate: bool = Field(default=True, description="No effect: long texts are always truncated.")
    raw_scores: bool = Field(default=False, description="Must be false: the scores are probabilities.")
    model: str = Field(default="", max_length=200, description="Name from /v1/models, if several are served.")


class Prediction(BaseModel):
    """A class and its probability, or the score of a regression with the label "score"."""

    label: str
    score: float


class AnswerSpan(BaseModel):
    """An answer to a question."""

    answer: str
    score: float
    start: int | None
    end: int | None


class EntityPrediction(BaseModel):
    """An entity in the text."""

    entity_group: str
    word: str
    score: float
    start: int
    end: int


HuggingFaceAnswer = list[Prediction] | AnswerSpan | list[EntityPrediction]


class Info(BaseModel):
    """The served model and the limits of the server."""

    model_id: str
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    version: str


def read_inputs(inputs: Any, num_texts: int) -> tuple[list[Any], bool]:
    """Return the items of `inputs`, and whether it is a single item, for a model that takes `num_texts` texts."""
    if isinstance(inputs, str | dict):
        return [inputs], True
    if all(isinstance(text, str) for text in inputs):
        return ([inputs], True) if num_texts > 1 and len(inputs) == num_texts else (inputs, False)
    return [item[0] if isinstance(item, list) and len(item) == 1 else item for item in inputs], False


def convert_answer(answer: dict[str, Any], top_k: int | None) -> Any:
    """Return an answer as these servers write it: the classes by descending score, a span, or entities."""
    if "answer" in answer:
        score = answer["nbest"][0]["probability"] if answer.get("nbest") else 1.0 - answer["null_probability"]
        return {"answer": answer["answer"], "score": score, "start": answer["start"], "end": answer["end"]}
    if "entities" in answer:
        return [
            {"entity_group": one["type"], "word": one["text"], **{key: one[key] for key in ("score", "start", "end")}}
            for one in answer["entities"]
        ]
    if "probabilities" not in answer:
        return [{"label": "score", "score": answer["score"]}]
    ranked = sorted(answer["probabilities"].items(), key=lambda pair: -pair[1])[:top_k]
    return [{"label": label, "score": probability} for label, probability in ranked]


def add_routes(app: FastAPI, handler: PredictionHandler) -> None:
    """Add the routes to `app`."""
    service, state = handler.service, handler.state
    errors: dict[int | str, dict[str, Any]] = {
        200: {"model": HuggingFaceAnswer | list[HuggingFaceAnswer]},
        **ERROR_RESPONSES,
    }

    @app.post("/predict", responses=errors, tags=["Hugging Face"])
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        """Classify one text or several. One input gives one answer, a list gives a list."""
        if body.raw_scores:
            raise BertVisionError("raw_scores must be false: this server returns calibrated probabilities.")
        models = service.select_models([body.model], []) if body.model else dict(service.models)
        if len(models) > 1:
            raise BertVisionError(f"Name one of the models as `model`: {', '.join(models)}.")
        (model,) = models.values()
        items, single = read_inputs(body.inputs, len(model.task.text_names))
        result = await handler(request, models, items, AnswerOptions(nbest=1))
        (answers,) = result["answers"].values()
        converted = [convert_answer(answer, body.parameters.top_k) for answer in answers]
        return json_response(converted[0] if single else converted)

    @app.get("/info", tags=["Hugging Face"])
    async def info() -> Info:
        """Return the first served model and the limits of the server."""
        described = service.description["models"][0]
        settings = service.settings
        classes = dict(enumerate(described["classes"]))
        kind = {"id2label": classes, "label2id": {label: index for index, label in classes.items()}}
        return Info(
            model_id=described["name"],
            model_dtype="float32",
            model_type={"classifier": kind},
            max_concurrent_requests=settings.max_concurrent_requests,
            max_input_length=described["max_tokens"],
            max_batch_tokens=settings.max_batch_tokens,
            max_client_batch_size=settings.max_items,
            version=bertvision.__version__,
        )

    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses={200: {"model": State}, 503: {"model": State}}, tags=["Hugging Face"])
    async def health() -> Response:
        """Return 200 while the server accepts requests, else 503."""
        return json_response({"status": state.status}, 200 if state.accepting else 503)
