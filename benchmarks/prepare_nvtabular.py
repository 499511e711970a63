"""NVTabular's side of ``prepare.py``, run by the interpreter of its own environment.

    python prepare_nvtabular.py RAW OUT --route csv --workers 1 --min-count 2

Raw Criteo text -> ids, counts of the values, normalised numbers, parquet, as NVTabular's examples do it:
Categorify, JoinGroupby, FillMissing >> Normalize. ``csv`` reads the text in every pass; ``parquet`` converts
it first, as the Criteo example does. With more than one worker Dask runs processes of its own.
"""

import argparse
import warnings
from contextlib import nullcontext
from pathlib import Path

warnings.simplefilter("ignore")

import nvtabular as nvt  # noqa: E402
from merlin.core.utils import Distributed  # noqa: E402
from nvtabular import ops  # noqa: E402

DENSE = [f"I{i}" for i in range(1, 14)]
FIELDS = [f"C{i}" for i in range(1, 27)]
PART_SIZE = "128MB"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("raw")
    parser.add_argument("out", type=Path)
    parser.add_argument("--route", choices=("csv", "parquet"), required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--min-count", type=int, required=True)
    options = parser.parse_args()
    options.out.mkdir()
    if options.workers == 1:
        cluster = nullcontext()
    else:
        cluster = Distributed(
            cluster_type="cpu",
            n_workers=options.workers,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=str(options.out),
        )
    with cluster:
        _prepare(options)


def _prepare(options: argparse.Namespace) -> None:
    out = str(options.out)
    rows = nvt.Dataset(
        options.raw,
        engine="csv",
        part_size=PART_SIZE,
        sep="\t",
        names=["label", *DENSE, *FIELDS],
        dtype={"label": "int8"} | dict.fromkeys(DENSE, "float32") | dict.fromkeys(FIELDS, "str"),
        quoting=3,
    )
    if options.route == "parquet":
        rows.to_parquet(f"{out}/raw")
        rows = nvt.Dataset(f"{out}/raw", engine="parquet", part_size=PART_SIZE)
    ids = FIELDS >> ops.Categorify(freq_threshold=options.min_count, out_path=out)
    counts = FIELDS >> ops.JoinGroupby(cont_cols=["label"], stats=["count"], out_path=out)
    numbers = DENSE >> ops.FillMissing() >> ops.Normalize(out_dtype="float32")
    workflow = nvt.Workflow(ids + counts + numbers + ["label"])
    workflow.fit(rows)
    workflow.transform(rows).to_parquet(f"{out}/encoded")


if __name__ == "__main__":
    main()
