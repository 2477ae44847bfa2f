"""Answers as JSON, and mistakes as one sentence that quotes nothing of what was sent."""

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from bertvision.errors import BertVisionError
from bertvision.serving.batching import Overloaded, TooLarge, TooLate
from bertvision.serving.schema import PredictRequest, Problem

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The body is not JSON."},
    401: {"model": Problem, "description": "The API key is missing or wrong."},
    408: {"model": Problem, "description": "The body did not arrive in time."},
    413: {"model": Problem, "description": "Larger than this server takes."},
    422: {"model": Problem, "description": "Not what the model reads."},
    429: {"model": Problem, "description": "Too much to do; Retry-After says when to come back."},
    500: {"model": Problem, "description": "The server failed."},
    503: {"model": Problem, "description": "Shutting down."},
    504: {"model": Problem, "description": "The deadline passed."},
}
STATUS: list[tuple[type[BertVisionError], int]] = [(TooLarge, 413), (TooLate, 504), (Overloaded, 429)]
SENTENCES = {
    400: "The body cannot be read as JSON.",
    404: "There is nothing at this path; /docs lists what there is.",
    405: "This path takes another method; /docs lists them.",
}
# Names of our own in a request; any other key may be a user's text.
FIELDS = {*PredictRequest.model_fields, "body", "inputs", "name", "shape", "datatype", "data", "id"}


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer with JSON that any parser takes."""
    body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, headers, media_type="application/json")


def problem(
    status: int, sentence: str, headers: dict[str, str] | None = None, where: list[str] | None = None
) -> Response:
    """Answer with a sentence."""
    return as_json({"error": sentence} | ({"where": where} if where else {}), status, headers)


def shutting_down() -> Response:
    """Refuse what comes after SIGTERM."""
    return problem(503, "The server is shutting down. Ask another one.", {"Retry-After": "1", "Connection": "close"})


def place(loc: Sequence[Any]) -> str:
    """Name where in a request something is wrong."""
    return ".".join(str(each) if isinstance(each, int) or each in FIELDS else "..." for each in loc)


def add_problems(app: FastAPI) -> None:
    """Word every mistake as one sentence."""

    @app.exception_handler(BertVisionError)
    async def mistake(request: Request, error: BertVisionError) -> Response:
        status = next((code for kind, code in STATUS if isinstance(error, kind)), 422)
        headers = {"Retry-After": str(error.seconds)} if isinstance(error, Overloaded) else {}
        return problem(status, str(error), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        details = error.errors()
        if not details or details[0]["type"] == "json_invalid":
            return problem(422, "The body is not valid JSON.")
        where = list(dict.fromkeys(place(each["loc"]) for each in details))[:5]
        return problem(422, f"The request is not what /openapi.json describes: {details[0]['msg']}.", where=where)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        sentence = SENTENCES.get(error.status_code, str(error.detail))
        return problem(error.status_code, sentence, dict(error.headers or {}))
