"""The HTTP interface of a server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from stampede import __version__
from stampede.pipeline.encode import Encoder
from stampede.workflows.model_version import ModelVersion
from stampede.workflows.serve.body import BodyMemory, read_body
from stampede.workflows.serve.metrics import CountRequests, ServerMetrics
from stampede.workflows.serve.options import ServeOptions
from stampede.workflows.serve.refusal import Refusal
from stampede.workflows.serve.scorer import Scorer

VERSION_HEADER = "X-Model-Version"

WORDS = {404: "there is no such path: the paths are /predict, /model, /health and /metrics"}


@dataclass
class Service:
    """What the interface is over; ``stopping`` is set when it takes no further requests."""

    options: ServeOptions
    version: ModelVersion
    model: str
    encoder: Encoder
    scorer: Scorer
    metrics: ServerMetrics
    stopping: bool = False


def build_app(service: Service) -> FastAPI:
    """Build the application.

    There are no pages for people to try requests in: those that FastAPI has load their scripts from another
    site. ``/openapi.json`` is there.
    """
    app = FastAPI(
        title="Stampede",
        version=__version__,
        description=f"Click probabilities by the model {service.version}.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(CountRequests, metrics=service.metrics)
    options, version = service.options, str(service.version)
    memory = BodyMemory.for_bodies_of(options.max_body)

    @app.exception_handler(Refusal)
    async def refuse(_request: Request, error: Refusal) -> JSONResponse:
        headers = {"Connection": "close"} if error.close else {}
        if error.status == 503:
            headers["Retry-After"] = "1"
        return JSONResponse({"error": error.message}, error.status, headers)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> JSONResponse:
        words = f"{request.method} is not for this path" if error.status_code == 405 else error.detail
        document = {"error": WORDS.get(error.status_code, words)}
        return JSONResponse(document, error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def nobody(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nginx's number; it reaches the counts alone

    @app.post("/predict", openapi_extra=_openapi(service), summary="Score one row or several")
    async def predict(request: Request) -> JSONResponse:
        with memory.lease() as lease:
            body = await read_body(
                request, lease, max_body=options.max_body, timeout=options.timeout, check=_check_content
            )
            scored = await asyncio.wrap_future(service.scorer.submit(body))
        scores = scored.scores.tolist()
        answer = {"score": scores[0]} if scored.single else {"scores": scores}
        return JSONResponse({**answer, "version": version}, headers={VERSION_HEADER: quote(version)})

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Whether it can score")
    async def health() -> JSONResponse:
        ready = service.scorer.alive and not service.stopping
        return JSONResponse({"alive": True, "ready": ready, "version": version}, 200 if ready else 503)

    @app.get("/metrics", summary="Counts for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/model", summary="What a row holds")
    @app.get("/", include_in_schema=False)
    async def model() -> JSONResponse:
        return JSONResponse(_description(service))

    return app


def _check_content(request: Request) -> None:
    """Refuse what is not plain JSON in UTF-8."""
    kind, *parameters = request.headers.get("content-type", "").lower().replace(" ", "").split(";")
    charsets = [p.removeprefix("charset=").strip('"') for p in parameters if p.startswith("charset=")]
    if kind != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise Refusal(415, "the Content-Type must be application/json, in UTF-8", close=True)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "the body must come without a Content-Encoding", close=True)


def _description(service: Service) -> dict[str, Any]:
    schema = service.encoder.schema
    return {
        "version": str(service.version),
        "run": service.version.run,
        "step": service.version.step,
        "fingerprint": service.version.fingerprint,
        "model": service.model,
        "log": schema.name,
        "dense": list(schema.dense),
        "categorical": list(schema.categorical),
        "time": schema.time,
        "ignored": [schema.label, *schema.drop],
        "sizes": {name: vocabulary.size for name, vocabulary in service.encoder.vocabularies.items()},
        "max_rows": service.options.max_rows,
        "max_body": service.options.max_body,
    }


def _openapi(service: Service) -> dict[str, Any]:
    """Describe the body of /predict and its answers."""
    schema = service.encoder.schema
    value = {"type": ["string", "number", "boolean", "null"]}
    names = (*schema.needed, schema.label, *schema.drop)
    row = {"type": "object", "properties": dict.fromkeys(names, value), "additionalProperties": False}
    rows = {"type": "array", "items": row, "maxItems": service.options.max_rows}
    batch = {"type": "object", "properties": {"rows": rows}, "required": ["rows"]}
    error = {
        "type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]
    }  # fmt: skip
    number = {"type": "number", "minimum": 0, "maximum": 1}
    scores = {"score": number, "scores": {"type": "array", "items": number}, "version": {"type": "string"}}
    refused = {"content": {"application/json": {"schema": error}}}
    reasons = {
        "400": "The body is not JSON.",
        "408": "The body did not come in time.",
        "413": "The body, or its number of rows, is too large.",
        "415": "The Content-Type is not application/json.",
        "422": "A row cannot be scored; the message names the row and the column.",
        "503": "Too much is asked for at once.",
    }
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"oneOf": [row, batch]}}},
        },
        "responses": {
            "200": {
                "description": "score of one row, or scores of several, in order.",
                "content": {"application/json": {"schema": {"type": "object", "properties": scores}}},
            },
            **{status: {"description": reason, **refused} for status, reason in reasons.items()},
        },
    }
