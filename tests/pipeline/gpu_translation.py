"""Would every plan of ``--engine polars-gpu`` run on a GPU? cudf-polars is asked, which takes no GPU.

Run in the environment of ``make env-gpu``: python tests/pipeline/gpu_translation.py FOLDER. The engine
prepares real rows with many options in FOLDER; each plan that it runs is shown to cudf-polars' translator, as
the engine hands it over, and to the part of its streaming executor that divides plans among chunks and GPUs;
then it is run on the CPU. Prints one JSON document: how many plans there were, what is wrong with them, what
is wrong with two plans that must not pass, and what becomes of one of those on the engine.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from cudf_polars.dsl.ir import Scan
from cudf_polars.dsl.translate import Translator
from cudf_polars.dsl.traversal import traversal
from cudf_polars.streaming.base import StatsCollector
from cudf_polars.streaming.parallel import lower_ir_graph
from cudf_polars.utils import config

from stampede import DeviceError
from stampede.pipeline import DenseMode, PrepareOptions, Schema, SplitRule, engine_polars_gpu, prepare
from stampede.pipeline.engine import Job
from stampede.pipeline.engine_polars_gpu import Backend, PolarsGpuEngine, Runner, gpu_engine

DATA = Path(__file__).parents[1] / "data"
LOGS = {"criteo": DATA / "criteo_excerpt.tsv", "avazu": DATA / "avazu_excerpt.csv"}

config.get_device_handle = lambda *_args, **_options: None  # it would be asked for its memory

OPTIONS = {
    "defaults": PrepareOptions(),
    "minmax": PrepareOptions(dense_mode=DenseMode.MINMAX, dense_null_flag=True),
    "standard": PrepareOptions(dense_mode=DenseMode.STANDARD, dense_null_flag=True),
    "none, without counts": PrepareOptions(dense_mode=DenseMode.NONE, counts=False),
    "log-bucket": PrepareOptions(dense_mode=DenseMode.LOG_BUCKET, max_size=5),
    "hash buckets": PrepareOptions(hash_buckets=7, min_count=3),
    "log-bucket, hash buckets": PrepareOptions(dense_mode=DenseMode.LOG_BUCKET, hash_buckets=3, max_size=2),
    "fitted on all": PrepareOptions(fit_on="all", dense_mode=DenseMode.STANDARD),
    "sequential": PrepareOptions(split=SplitRule(rule="sequential")),
    "without valid and test": PrepareOptions(split=SplitRule(valid_fraction=0, test_fraction=0)),
}
ALSO = {
    "criteo": {
        "crosses, frequencies, click rates": PrepareOptions(
            crosses=(("C1", "C2"),), count_features=True, target_encode=("C3", "C1_x_C2"), hash_buckets=2
        )
    },
    "avazu": {
        "crosses, frequencies, click rates": PrepareOptions(
            crosses=(("C1", "weekday"),), count_features=True, target_encode=("C1_x_weekday",), fit_on="all"
        ),
        "by hour": PrepareOptions(split=SplitRule(rule="time", valid_fraction=0)),
        "by hour, hash buckets": PrepareOptions(
            split=SplitRule(rule="time", valid_fraction=0), hash_buckets=4
        ),
    },
}


class Footer:
    """Stands for what a parquet file says of its sizes, whose reading needs a device."""

    row_count = 200_000
    type = "parquet"

    def column_storage_size(self, _column: str) -> int:
        return 1_000_000


def faults(plan: pl.LazyFrame) -> list[str]:
    """What keeps a plan, or a lazy sink, from running on a GPU with each executor."""
    found = []
    backends: tuple[Backend, ...] = ("in-memory", "streaming")
    for backend in backends:
        translator = Translator(plan._ldf.visit(), gpu_engine(backend))
        translator.translate_ir()
        found += [f"{backend}: {type(error).__name__}: {error}" for error in translator.errors]
    return found or collapses(plan, ranks=1) + collapses(plan, ranks=2)


def collapses(plan: pl.LazyFrame, *, ranks: int) -> list[str]:
    """Nodes for which the streaming executor would bring all rows together, on one GPU or several."""
    options: dict[str, Any] = {"fallback_mode": "warn", "target_partition_size": 250_000}
    if ranks > 1:
        options["cluster"] = "spmd"  # what dask's workers run
    translator = Translator(plan._ldf.visit(), pl.GPUEngine(executor="streaming", executor_options=options))
    ir = translator.translate_ir()
    stats = StatsCollector()
    for node in traversal([ir]):
        if isinstance(node, Scan):
            stats.scan_stats[node] = Footer()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lowered = lower_ir_graph(ir, translator.config_options, stats, rank=0, nranks=ranks)
    scans = [node for node in traversal([ir]) if isinstance(node, Scan)]
    most = max(info.count for info in lowered.partition_info.values())
    if scans and most == 1:
        return [f"streaming, {ranks} GPUs: the scan is one chunk"]
    return [f"streaming, {ranks} GPUs: {warning.message}" for warning in caught]


@dataclass
class Asked(Runner):
    """Asks of each plan whether it would run on a GPU, then runs it on the CPU."""

    case: str = ""
    plans: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def collect(self, plan: pl.LazyFrame) -> pl.DataFrame:
        """Return what a plan gives."""
        self.plans.append(self.case)
        self.faults += [f"{self.case}: {fault}" for fault in faults(plan)]
        return super().collect(plan)


def main(folder: Path) -> None:
    """Ask, and print what came out."""
    plans: list[str] = []
    wrong: list[str] = []

    def asked_in(case: str) -> type[PolarsGpuEngine]:
        class OnCpu(PolarsGpuEngine):
            def check(self) -> None:
                pass

            @contextmanager
            def runner(self, job: Job) -> Iterator[Runner]:
                yield Asked("streaming", job.scratch, case=case, plans=plans, faults=wrong)

        return OnCpu

    for log, file in LOGS.items():
        for name, options in (OPTIONS | ALSO[log]).items():
            case = f"{log}, {name}"
            engine_polars_gpu.PolarsGpuEngine = asked_in(case)  # type: ignore[misc]
            prepare(Schema.preset(log), [file], folder / case, options=options, engine="polars-gpu")

    rows = pl.scan_parquet(next(folder.glob("*/train/*.parquet")), glob=False)
    python = rows.select(pl.col("C1").map_elements(lambda value: value, return_dtype=pl.Int32))
    numbered = rows.filter(pl.col("label") == 0).with_row_index()
    told: list[str] = []
    allowing = Runner(gpu_engine("in-memory"), folder, told.append)
    same = [allowing.collect(python).equals(python.collect()) for _ in range(2)]
    try:
        Runner(gpu_engine("in-memory"), folder).collect(python)
    except DeviceError as error:
        refused = str(error)
    document = {
        "plans": {case: plans.count(case) for case in plans},
        "faults": wrong,
        "must fail": {"python": faults(python), "row numbers": faults(numbered)},
        "fallback": {"told": told, "same": same, "refused": refused},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
