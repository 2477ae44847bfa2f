"""Request and response models of the HTTP API, which also make up the OpenAPI document."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from bertvision.serving.settings import MAX_ITEMS_PER_REQUEST

Pair = Annotated[list[str], Field(min_length=2, max_length=2)]
Named = Annotated[dict[str, str], Field(min_length=1, max_length=8)]
Item = str | Pair | Named
Items = Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS_PER_REQUEST)]
Name = Annotated[str, Field(max_length=200)]


def as_list(value: Any) -> Any:
    """Return a list of one text or object."""
    return [value] if isinstance(value, str | dict) else value


class PredictRequest(BaseModel):
    """One or more items to answer with one or more models."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"items": ["a warm, funny film"]},
                {"items": [["A man plays a guitar.", "Somebody plays an instrument."]], "bert": True},
                {"items": [{"question": "Who wrote it?", "context": "It was written by Ann in Rome."}], "nbest": 2},
            ]
        },
    )

    items: Annotated[Items, BeforeValidator(as_list)] = Field(
        description="Texts, pairs of texts, or objects such as {question, context}; or one text or object. All models "
        "take {text, text_pair}."
    )
    models: Annotated[list[Name], Field(max_length=64), BeforeValidator(as_list)] = Field(
        default=[], description="Names from /v1/models. Default: the only model, or all that take these items."
    )
    ids: Annotated[list[Name | int], Field(max_length=MAX_ITEMS_PER_REQUEST)] | None = Field(
        default=None, description="An id for each item. The answers contain it."
    )
    nbest: int = Field(default=3, ge=1, le=20, description="Number of classes or candidate answers to list.")
    top_k: int | None = Field(
        default=None, ge=1, le=10_000, description="List only the most probable classes in `probabilities`, best first."
    )
    bert: bool = Field(
        default=False, description="Also return the answer of the encoder's own fine-tuned head, without a second pass."
    )
    timeout: float | None = Field(
        default=None, gt=0, le=3600, allow_inf_nan=False, description="Time limit in seconds; at most the server's."
    )


class CandidateSchema(BaseModel):
    """A span of the context, or "" for no answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float


class ClassCandidateSchema(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class EntitySchema(BaseModel):
    """An entity in the text."""

    type: str
    text: str
    start: int = Field(description="Offset in the text, in characters.")
    end: int
    score: float = Field(description="Mean probability of the tags of its words.")


class AnswerSchema(BaseModel):
    """A class, several labels, a score, a span or entities. Fields that do not apply to a task are left out."""

    id: str | int | None = Field(default=None, description="The id of the item, if the request has ids.")
    label: str | None = None
    labels: list[str] | None = Field(default=None, description="Several labels, or none: the most probable first.")
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    score: float | None = None
    answer: str | None = Field(default=None, description='"" if the context contains no answer.')
    start: int | None = Field(default=None, description="Offset in the context, in characters.")
    end: int | None = None
    null_probability: float | None = Field(
        default=None, description="Calibrated probability that the context contains no answer."
    )
    nbest: list[CandidateSchema] | list[ClassCandidateSchema] | None = Field(
        default=None, description="The most probable classes, or candidate answers, best first."
    )
    entities: list[EntitySchema] | None = Field(default=None, description="Entities, in the order of the text.")
    bert: dict[str, Any] | None = Field(default=None, description="Answer of the encoder's own head.")
    truncated: bool | None = Field(default=None, description="True if the text was longer than `max_tokens` and cut.")


class SecondsSchema(BaseModel):
    """Time spent on the request, in seconds."""

    encode: float = Field(description="Tokenization.")
    read: float = Field(description="Queue and forward pass.")
    total: float


class Answers(BaseModel):
    """One answer per item for each model."""

    answers: dict[str, list[AnswerSchema]]
    passes: int = Field(
        description="Forward passes per text: one per encoder, plus one if the texts of pairs are also encoded alone."
    )
    tokens: int = Field(description="Tokens of all rows.")
    seconds: SecondsSchema


class Reads(BaseModel):
    """The layers that a head uses (0: the embeddings), and their weights if the head learned such."""

    name: str
    of: int
    layers: list[int]
    pooler_output: bool
    weights: list[float] | None


class ExampleSchema(BaseModel):
    """An example to try."""

    title: str
    texts: list[str]


class Model(BaseModel):
    """A served model."""

    name: str
    task: str
    summary: str
    kind: str
    head: str
    inputs: list[str]
    answers: str = Field(description="Type of the answers: class, labels, score, span or entities.")
    classes: list[str]
    encoder: str
    weights: str = Field(description="Hash of the encoder's weights. Models with equal hashes share a forward pass.")
    passes: int
    runs_on: str
    max_tokens: int
    fraction: float
    parameters: int
    primary: str
    score: dict[str, float]
    reads: list[Reads]
    examples: list[ExampleSchema]


class EncoderSchema(BaseModel):
    """An encoder, and the models that share its forward pass."""

    name: str
    weights: str
    models: list[str]


class Models(BaseModel):
    """The served models."""

    models: list[Model]
    encoders: list[EncoderSchema]
    note: str = Field(description="How the models share forward passes.")


class Problem(BaseModel):
    """An error."""

    error: str
    where: list[str] | None = Field(default=None, description="Fields of the request that the error concerns.")


class State(BaseModel):
    """Health of the server."""

    status: str
