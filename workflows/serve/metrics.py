"""What a server counts, in the format of Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stampede.workflows.model_version import ModelVersion

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

PATHS = ("/predict", "/model", "/health", "/metrics", "/openapi.json")

NO_ANSWER = "none"
"""The status of a request whose client went away."""


class ServerMetrics:
    """The counts of one server."""

    def __init__(self, version: ModelVersion, *, model: str) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "stampede_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self.rows = Counter("stampede_rows_scored", "Rows that were scored.", registry=self.registry)
        self.in_flight = Gauge(
            "stampede_requests_in_flight", "Requests being answered.", registry=self.registry
        )
        self.request_seconds = Histogram(
            "stampede_request_seconds",
            "From the head of a request to the end of its answer.",
            ["path"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self.scoring_seconds = Histogram(
            "stampede_scoring_seconds",
            "To encode and score the requests that waited together.",
            registry=self.registry,
            buckets=SECONDS,
        )
        info = Gauge(
            "stampede_model_info",
            "The model.",
            ["run", "step", "fingerprint", "model"],
            registry=self.registry,
        )
        info.labels(version.run, version.step, version.fingerprint, model).set(1)

    def scored(self, rows: int, seconds: float) -> None:
        """Count rows that were encoded and scored together."""
        self.rows.inc(rows)
        self.scoring_seconds.observe(seconds)

    def text(self) -> bytes:
        """Write all counts."""
        return generate_latest(self.registry)


class CountRequests:
    """Counts what passes through an application, and how long it takes."""

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"
        status = NO_ANSWER
        started = time.perf_counter()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        with self._metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, receive, note)
            finally:
                self._metrics.requests.labels(path, status).inc()
                self._metrics.request_seconds.labels(path).observe(time.perf_counter() - started)
