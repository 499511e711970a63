"""The engine ``polars-gpu`` without a GPU: its plans, as it makes them, run on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from stampede.pipeline.engine import Job
from stampede.pipeline.engine_polars_gpu import PolarsGpuEngine, Runner


class GpuPlansOnCpu(PolarsGpuEngine):
    """Stands in for ``engine_polars_gpu.PolarsGpuEngine``."""

    def check(self) -> None:
        """Do nothing: it runs everywhere."""

    def runner(self, job: Job) -> AbstractContextManager[Runner]:
        """Return what runs the plans of a job."""
        return nullcontext(Runner("streaming", job.scratch))
