"""``stampede sweep``: batch sizes, rules and seeds side by side, as one study."""

from stampede.workflows.sweep.search import run_search
from stampede.workflows.sweep.sweep import SweepObserver, SweepOptions, run_sweep

__all__ = ["SweepObserver", "SweepOptions", "run_search", "run_sweep"]
