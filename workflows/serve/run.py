"""From a run to a server of its best epoch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from stampede import StampedeError
from stampede.pipeline.encode_rows import RowEncoder
from stampede.workflows.model_version import ModelVersion, load_best_model
from stampede.workflows.run import Run
from stampede.workflows.serve.options import ServeOptions

PACKAGES = {"fastapi": "FastAPI", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}

SECONDS_TO_END = 5.0

OnStarted = Callable[[str, ModelVersion], None]
"""Told the URL and the model when requests are taken."""


def run_serve(run_path: Path, *, options: ServeOptions, on_started: OnStarted) -> None:
    """Serve the best epoch of a run over HTTP, until SIGINT or SIGTERM.

    Raises
    ------
    StampedeError
        A package is missing, the port cannot be used, or the run is damaged.
    """
    require_packages()
    from stampede.workflows.serve.app import Service, build_app
    from stampede.workflows.serve.metrics import ServerMetrics
    from stampede.workflows.serve.scorer import Scorer
    from stampede.workflows.serve.server import listen, serve_app, url_of

    run = Run.open(run_path)
    opened = listen(options.host, options.port)
    with opened:
        device = run.use(options.device, options.threads)
        model, version = load_best_model(run, device)
        metrics = ServerMetrics(version, model=run.config.model)
        scorer = Scorer(
            model,
            RowEncoder(run.encoder),
            device=device,
            max_rows=options.max_rows,
            set_up=lambda: run.use(options.device, options.threads),
            on_scored=metrics.scored,
            debug=options.debug,
        )
        scorer.start()
        service = Service(options, version, run.config.model, run.encoder, scorer, metrics)

        def stop() -> None:
            service.stopping = True

        serve_app(
            build_app(service),
            opened,
            options=options,
            on_started=lambda: on_started(url_of(opened), version),
            on_stop=stop,
        )
        scorer.stop(seconds=SECONDS_TO_END)


def require_packages() -> None:
    """Raise unless what serving takes is installed.

    Raises
    ------
    StampedeError
        Names the mend.
    """
    for package, name in PACKAGES.items():
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise StampedeError(f"stampede serve needs {name}: pip install 'stampede-ctr[serve]'") from error
