"""Fits and runs an ``nvtabular.Workflow``: the other end of :mod:`stampede.pipeline.engine_nvtabular`.

    python nvtabular_worker.py JOB.json

It runs in NVTabular's own environment, so it knows nothing of Stampede and gets by on Python 3.9: everything
it needs stands in JOB.json. Frames are pandas', or cuDF's where cuDF and a GPU are there; but for the cluster
nothing here differs.
"""

import ctypes
import json
import signal
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")  # "CPU mode is experimental", and what old packages say of each other

import numpy as np  # noqa: E402
import nvtabular as nvt  # noqa: E402
import pandas as pd  # noqa: E402
from merlin.core.compat import HAS_GPU, cudf  # noqa: E402
from merlin.core.utils import Distributed  # noqa: E402
from nvtabular import ops  # noqa: E402

PR_SET_PDEATHSIG = 1
FLOAT32_MAX = float(np.finfo(np.float32).max)
NULL_ID, UNSEEN_ID, FIRST_VALUE_ID = 1, 2, 3


class Encode(ops.Categorify):  # type: ignore[misc]
    """``Categorify`` that bears a partition in which a column has no value; its own fails there."""

    def transform(self, col_selector: Any, df: Any) -> Any:
        """Encode the columns that have values; all of the others is null."""
        names = [name for name in col_selector.names if df[name].notna().any()]
        encoded = super().transform(nvt.ColumnSelector(names), df) if names else df.copy(deep=False)
        for name in set(col_selector.names) - set(names):
            encoded[name] = NULL_ID
            encoded[name] = encoded[name].astype(self.output_dtype)
        return encoded


def without_vocabulary(values: Any) -> Any:
    """Encode a column none of whose fitted rows has a value; ``Categorify`` cannot be fitted on it."""
    return values.isna().astype("int64") * (NULL_ID - UNSEEN_ID) + UNSEEN_ID


def signed_log(values: Any) -> Any:
    """Return sign(x) log(1 + abs(x))."""
    return np.sign(values) * np.log1p(np.abs(values))


def unit_interval(values: Any) -> Any:
    """Clip to [0, 1]; ``NormalizeMinMax`` does not."""
    return values.clip(0.0, 1.0)


def model_input(values: Any) -> Any:
    """Return finite float32 without a negative zero."""
    return values.clip(-FLOAT32_MAX, FLOAT32_MAX).astype("float32") + np.float32(0.0)


def is_empty(values: Any) -> Any:
    """Return 1 where there is no number, else 0."""
    return values.isna().astype("float32")


def build_workflow(job: dict[str, Any]) -> nvt.Workflow:
    """Build the graph: ids, their counts, and scaled numbers with flags of the empty ones."""
    outputs = nvt.ColumnSelector([job["label"]])
    storage = job["workflow"]
    ids = []
    if job["fields"]:
        ids.append(job["fields"] >> Encode(freq_threshold=job["min_count"], out_path=storage))
    if job["empty_fields"]:
        ids.append(job["empty_fields"] >> ops.LambdaOp(without_vocabulary, dtype="int64"))
    for encoded in ids:
        outputs = encoded + outputs
        if job["counts"]:
            count = ops.JoinGroupby(cont_cols=[job["label"]], stats=["count"], out_path=storage)
            outputs = (encoded >> count) + outputs
    names = [info["name"] for info in job["dense"]]
    if names:
        filled = names >> ops.FillMissing(fill_val=0.0)
        if job["dense_mode"] == "standard":
            filled = filled >> ops.Normalize()
        elif job["dense_mode"] == "minmax":
            filled = filled >> ops.NormalizeMinMax() >> ops.LambdaOp(unit_interval, dtype="float64")
        elif job["dense_mode"] == "log":
            filled = filled >> ops.LambdaOp(signed_log, dtype="float64")
        outputs = (filled >> ops.LambdaOp(model_input, dtype="float32")) + outputs
        if job["dense_null_flag"]:
            flags = names >> ops.LambdaOp(is_empty, dtype="float32") >> ops.Rename(postfix="_null")
            outputs = flags + outputs
    return nvt.Workflow(outputs)


def correct_statistics(workflow: nvt.Workflow, dense: list[dict[str, Any]]) -> None:
    """Take the statistics of the contract, and close the gaps that ``transform`` would fail at.

    NVTabular's deviation is a sample's, and its sums depend on the partitions. A feature without spread is
    given an infinite one: the contract's output is 0 there. ``JoinGroupby`` has no count of an id that no
    fitted row has, and cannot say 0 for it.
    """
    for op in operators(workflow):
        for info in dense:
            spread = np.inf if info["constant"] else info["spread"]
            if isinstance(op, ops.Normalize):
                op.means[info["name"]], op.stds[info["name"]] = info["mean"], spread
            elif isinstance(op, ops.NormalizeMinMax):
                op.mins[info["name"]] = info["minimum"]
                op.maxs[info["name"]] = np.inf if info["constant"] else info["maximum"]
        if isinstance(op, ops.JoinGroupby):
            for name, folder in op.categories.items():
                counts = pd.read_parquet(folder)
                absent = sorted(set(range(FIRST_VALUE_ID)) - set(counts[name]))
                more = pd.DataFrame({name: absent, f"{name}_count": 0}).astype(counts.dtypes)
                for part in Path(folder).glob("*.parquet"):
                    part.unlink()
                whole = pd.concat([counts, more], ignore_index=True)
                whole.to_parquet(str(Path(folder) / "part.0.parquet"), index=False)


def operators(workflow: nvt.Workflow) -> list[Any]:
    """Return the operators of a workflow."""
    found, nodes = [], [workflow.output_node]
    while nodes:
        node = nodes.pop()
        found.append(node.op)
        nodes += node.parents_with_dependencies
    return found


def cluster(job: dict[str, Any]) -> AbstractContextManager[Any]:
    """Return the Dask cluster to work on: one worker per GPU, else processes if asked for, else this one."""
    options = {"local_directory": job["scratch"], "dashboard_address": None}
    if cudf is not None and HAS_GPU:
        return Distributed(cluster_type="cuda", **options)  # type: ignore[no-any-return]
    if job["workers"] > 1:
        options |= {"n_workers": job["workers"], "threads_per_worker": 1}
        return Distributed(cluster_type="cpu", **options)  # type: ignore[no-any-return]
    return nullcontext()


def run(job: dict[str, Any]) -> None:
    """Fit on the rows to fit on, transform every split in order, save the workflow."""

    def dataset(files: list[str]) -> nvt.Dataset:
        return nvt.Dataset(files, engine="parquet", part_size=job["part_size"])

    with cluster(job):
        workflow = build_workflow(job)
        workflow.fit(dataset(job["fit"]))
        correct_statistics(workflow, job["dense"])
        for split in job["splits"]:  # a file per partition, in the order of the rows
            workflow.transform(dataset([split["rows"]])).to_parquet(split["out"])
        workflow.save(job["workflow"])


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """Run a job; an error's last line on stderr is its cause."""
    end_with_parent()
    try:
        run(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        message = " ".join(str(cause).split())
        sys.exit(f"{type(cause).__name__}: {message}")


if __name__ == "__main__":
    main()
