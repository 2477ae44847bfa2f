"""What is asked and answered, as the OpenAPI document has it."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from bertvision.serving.settings import MOST_TEXTS

Pair = Annotated[list[str], Field(min_length=2, max_length=2)]
Named = Annotated[dict[str, str], Field(min_length=1, max_length=8)]
Item = str | Pair | Named


class PredictRequest(BaseModel):
    """One or many items, for one or many models."""

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

    items: Annotated[list[Item], Field(min_length=1, max_length=MOST_TEXTS)] = Field(
        description="Texts, pairs of texts, or objects such as {question, context}; {text, text_pair} fit every model."
    )
    models: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=64)] = Field(
        default=[], description="Names from /v1/models; none: the only one, or all that can read the items."
    )
    nbest: int = Field(default=3, ge=1, le=20, description="How many candidate answers to list.")
    bert: bool = Field(default=False, description="Also return the answer of BERT's own head; it costs no second pass.")
    timeout: float | None = Field(
        default=None, gt=0, le=3600, allow_inf_nan=False, description="Seconds to answer in; at most the server's."
    )


class Candidate(BaseModel):
    """A piece of the context, or "" for no answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float


class Answer(BaseModel):
    """A class, a score, or a piece of the context: what a task does not have is left out."""

    label: str | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    score: float | None = None
    answer: str | None = Field(default=None, description='"" if there is none.')
    start: int | None = Field(default=None, description="Characters of the context.")
    end: int | None = None
    null_probability: float | None = Field(default=None, description="That there is no answer; calibrated.")
    nbest: list[Candidate] | None = None
    bert: dict[str, Any] | None = Field(default=None, description="BERT's own answer, in the same form.")


class Seconds(BaseModel):
    """Where the time went."""

    encode: float
    read: float = Field(description="In the queue and in the model.")
    total: float


class Answers(BaseModel):
    """One answer per item, for each model."""

    answers: dict[str, list[Answer]]
    passes: int = Field(
        description="Forward passes a text took: one per backbone, one more if pairs are also read apart."
    )
    tokens: int
    seconds: Seconds


class Reads(BaseModel):
    """Which layers a head reads, 0 being the embeddings, and with what weights where it learned them."""

    name: str
    of: int
    layers: list[int]
    pooled: bool
    weights: list[float] | None


class Example(BaseModel):
    """Something to try."""

    title: str
    texts: list[str]


class Model(BaseModel):
    """A run that answers."""

    name: str
    task: str
    summary: str
    kind: str
    head: str
    inputs: list[str]
    answers: str = Field(description="class, score or span.")
    classes: list[str]
    encoder: str
    weights: str = Field(description="The hash of its backbone: models with the same one share a forward pass.")
    passes: int
    runs_on: str
    max_tokens: int
    fraction: float
    parameters: int
    primary: str
    score: dict[str, float]
    reads: list[Reads]
    examples: list[Example]


class Encoder(BaseModel):
    """An encoder, and the models that share its forward pass."""

    name: str
    weights: str
    models: list[str]


class Models(BaseModel):
    """What is served."""

    models: list[Model]
    encoders: list[Encoder]
    note: str = Field(description="How many forward passes a request to all models takes, in words.")


class Problem(BaseModel):
    """What is wrong, in a sentence."""

    error: str
    where: list[str] | None = Field(default=None, description="The fields of the request it is about.")


class State(BaseModel):
    """Alive, ready or not."""

    status: str
