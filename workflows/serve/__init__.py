"""``stampede serve``: scores over HTTP."""

from stampede.workflows.serve.options import ServeOptions
from stampede.workflows.serve.run import run_serve

__all__ = ["ServeOptions", "run_serve"]
