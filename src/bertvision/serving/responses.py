"""JSON responses and error messages. An error message never quotes what a client sent."""

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from bertvision.errors import BertVisionError
from bertvision.serving.batching import DeadlineExceeded, Overloaded, RequestTooLarge
from bertvision.serving.handlers import ShuttingDown
from bertvision.serving.schema import PredictRequest, Problem

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The body is not valid JSON."},
    401: {"model": Problem, "description": "The API key is missing or wrong."},
    408: {"model": Problem, "description": "The body did not arrive in time."},
    413: {"model": Problem, "description": "The request exceeds a size limit of this server."},
    422: {"model": Problem, "description": "The request is invalid, or does not fit the model."},
    429: {"model": Problem, "description": "The server is overloaded; see the header Retry-After."},
    500: {"model": Problem, "description": "Internal server error."},
    503: {"model": Problem, "description": "The server is shutting down."},
    504: {"model": Problem, "description": "The deadline passed before the request was answered."},
}
STATUS_CODES: list[tuple[type[BertVisionError], int]] = [
    (RequestTooLarge, 413),
    (DeadlineExceeded, 504),
    (Overloaded, 429),
    (ShuttingDown, 503),
]
MESSAGES = {
    400: "The body is not valid JSON.",
    404: "Not found. /docs lists the available paths.",
    405: "Method not allowed. /docs lists the methods of each path.",
}
# Field names that may be quoted in an error. Other keys may be text that a client sent.
FIELD_NAMES = {
    *PredictRequest.model_fields,
    "body",
    "inputs",
    "name",
    "shape",
    "datatype",
    "data",
    "id",
    "parameters",
    "top_k",
    "truncate",
    "raw_scores",
    "model",
}


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response. NaN and infinity, which strict parsers reject, raise ValueError."""
    body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, headers, media_type="application/json")


def error_response(
    status: int, message: str, headers: dict[str, str] | None = None, where: list[str] | None = None
) -> Response:
    """Return an error; `where` lists the fields of the request that it concerns."""
    return json_response({"error": message} | ({"where": where} if where else {}), status, headers)


def field_path(location: Sequence[Any]) -> str:
    """Return the path of a field in the request, such as "body.items.0"; unknown keys are replaced by "..."."""
    return ".".join(str(part) if isinstance(part, int) or part in FIELD_NAMES else "..." for part in location)


def add_error_handlers(app: FastAPI) -> None:
    """Return every error as JSON with one message."""

    @app.exception_handler(BertVisionError)
    async def bertvision_error(request: Request, error: BertVisionError) -> Response:
        status = next((code for kind, code in STATUS_CODES if isinstance(error, kind)), 422)
        headers = {}
        if isinstance(error, Overloaded):
            headers = {"Retry-After": str(error.retry_after)}
        elif isinstance(error, ShuttingDown):
            headers = {"Retry-After": "1", "Connection": "close"}
        return error_response(status, str(error), headers)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        details = error.errors()
        if not details or details[0]["type"] == "json_invalid":
            return error_response(422, "The body is not valid JSON.")
        where = list(dict.fromkeys(field_path(detail["loc"]) for detail in details))[:5]
        return error_response(422, f"Invalid request: {details[0]['msg']}. See /docs for the schema.", where=where)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = MESSAGES.get(error.status_code, str(error.detail))
        return error_response(error.status_code, message, dict(error.headers or {}))
