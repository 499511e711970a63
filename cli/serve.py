"""``stampede serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stampede.cli.common import Debug, Device, Json, Threads, print_json, say

if TYPE_CHECKING:
    from stampede.workflows.model_version import ModelVersion


def serve(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    max_rows: Annotated[int, typer.Option(min=1, help="Most rows of a request.")] = 10_000,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="Largest body of a request.")] = "16MB",
    timeout: Annotated[
        float, typer.Option(help="Seconds within which a request's head, then its body, must come.")
    ] = 30.0,
    grace: Annotated[float, typer.Option(help="Seconds to end requests in flight in when stopped.")] = 10.0,
    device: Device = None,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score rows over HTTP with a run, until stopped.

    POST /predict takes a row as a JSON object, {"I1": 1, "C1": "68fd1e64"}, or {"rows": [...]}; GET /model
    says what a row holds, /health whether it can score, /metrics what it did.

    Example: stampede serve runs/deepfm --port 8000
    """
    from stampede.pipeline.memory import parse_bytes
    from stampede.workflows.serve import ServeOptions, run_serve

    options = ServeOptions(
        host=host,
        port=port,
        max_rows=max_rows,
        max_body=parse_bytes(max_body, flag="--max-body"),
        timeout=timeout,
        grace=grace,
        device=device,
        threads=threads,
        debug=debug,
    )

    def started(url: str, version: ModelVersion) -> None:
        if json:
            print_json({"url": url, "version": str(version)})
        else:
            say(f"serving {version} at {url}, POST /predict; Ctrl-C stops it")

    run_serve(run, options=options, on_started=started)
    if not json:
        say("stopped; no request is open")
