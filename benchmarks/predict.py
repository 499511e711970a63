"""Time `stampede predict` against the plain way, on the same run and files: rows a second and peak memory.

    python -m benchmarks.predict --rows 1000000 --json predict.json

The plain way reads the whole file with Polars, maps each field to its ids by a join with the vocabulary, and
runs the model over the rows, 16,384 at a time, on the same threads: what one would write by hand. Both sides
are a fresh process, in turn; the best of several turns is taken. Start-up, the time of a file of one row, is
told apart. On a shared machine compare the rows per second of CPU time. Both must give the same scores, and
the memory of `predict` must not follow the rows: its peak on all of them is compared with that on a quarter.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from benchmarks.measure import Cost, measure

from stampede.pipeline import Schema
from stampede.pipeline.dataset import FIRST_VALUE_ID, NULL_ID, UNSEEN_ID
from stampede.pipeline.dense import transform_dense
from stampede.pipeline.synth import synthesise
from stampede.training.evaluation import EVALUATION_BATCH
from stampede.workflows.prepare import PrepareRequest, run_prepare
from stampede.workflows.run import Run
from stampede.workflows.train import run_train

CRITEO = Schema.preset("criteo")
MOST_GROWTH = 200e6  # bytes that the peak on all rows may lie above that on a quarter of them
TOLERANCE = 1e-6  # the plain way sums in another order
PLAIN = "--plain"


@dataclass(frozen=True)
class Side:
    """The best of some turns on one file, rates without start-up, and the highest memory in bytes."""

    seconds: float
    rows_per_second: float
    cpu_seconds: float
    rows_per_cpu_second: float
    resident: int
    anonymous: int


def main() -> None:
    """Run the benchmark."""
    if sys.argv[1:2] == [PLAIN]:
        _plain(*(Path(word) for word in sys.argv[2:5]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="synthetic rows to score")
    parser.add_argument("--train-rows", type=int, default=500_000, help="synthetic rows to train on")
    parser.add_argument("--model", default="fm")
    parser.add_argument("--hidden", default="16", help="widths of the MLP, by comma")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; default: the system's temporary folder")
    parser.add_argument("--json", type=Path, help="file to write the document to, besides stdout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        document = _compare(Path(name), options)
    text = json.dumps(document, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    for kind, sides in document["files"].items():
        growth = sides["stampede"]["resident"] - sides["stampede, a quarter"]["resident"]
        if growth > MOST_GROWTH:
            sys.exit(f"{kind}: the memory of predict follows the rows: {growth / 1e6:,.0f} MB more")


def _compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    run = _train(folder, options)
    files = _files(folder, options.rows)
    quarters = _files(folder / "quarter", options.rows // 4)
    one = folder / "one.tsv"
    with files["text"].open("rb") as rows:
        one.write_bytes(rows.readline())
    scores = {"stampede": folder / "ours.parquet", "plain": folder / "plain.parquet"}

    def ours(file: Path) -> Cost:
        command = [sys.executable, "-m", "stampede", "predict", run, file, "--out", scores["stampede"]]
        return measure([*command, "--force"])

    def plain(file: Path) -> Cost:
        return measure([sys.executable, "-m", "benchmarks.predict", PLAIN, run, file, scores["plain"]])

    starts = {"stampede": [ours(one)], "plain": [plain(one)]}
    results: dict[str, dict[str, Any]] = {}
    for kind, file in files.items():
        costs: dict[str, list[Cost]] = {"stampede": [], "plain": []}
        for _ in range(options.turns):
            costs["stampede"].append(ours(file))
            costs["plain"].append(plain(file))
        _check_same(*scores.values())
        starts["stampede"].append(ours(one))
        starts["plain"].append(plain(one))
        results[kind] = {
            side: asdict(_best(of_side, options.rows, starts[side])) for side, of_side in costs.items()
        }
        quarter = _best([ours(quarters[kind])], options.rows // 4, starts["stampede"])
        results[kind]["stampede, a quarter"] = asdict(quarter)
    return {
        "rows": options.rows,
        "model": options.model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "start_seconds": {side: min(cost.seconds for cost in costs) for side, costs in starts.items()},
        "files": results,
    }


def _best(costs: list[Cost], rows: int, starts: list[Cost]) -> Side:
    seconds, cpu_seconds = (min(cost.seconds for cost in costs), min(cost.cpu_seconds for cost in costs))
    start, cpu_start = (min(cost.seconds for cost in starts), min(cost.cpu_seconds for cost in starts))
    return Side(
        seconds,
        rows / max(seconds - start, 1e-9),
        cpu_seconds,
        rows / max(cpu_seconds - cpu_start, 1e-9),
        max(cost.resident for cost in costs),
        max(cost.anonymous for cost in costs),
    )


def _train(folder: Path, options: argparse.Namespace) -> Path:
    log, data, run = folder / "train.tsv", folder / "data", folder / "run"
    synthesise("criteo", log, rows=options.train_rows)
    run_prepare(PrepareRequest("criteo", [str(log)], data, recipe="criteo", given={}), force=False)
    hidden = tuple(int(width) for width in options.hidden.split(","))
    given = {"model": options.model, "hidden": hidden, "epochs": 1, "max_steps": 100, "device": "cpu"}
    run_train(data, out=run, recipe="criteo", given=given, force=False, say=lambda _line: None)
    log.unlink()
    return run


def _files(folder: Path, rows: int) -> dict[str, Path]:
    """Write the same new rows as text, packed text and parquet."""
    folder.mkdir(exist_ok=True)
    files = {"text": folder / "new.tsv", "gzip": folder / "new.tsv.gz", "parquet": folder / "new.parquet"}
    synthesise("criteo", files["text"], rows=rows, seed=1)
    with files["text"].open("rb") as text, gzip.open(files["gzip"], "wb", compresslevel=1) as packed:
        shutil.copyfileobj(text, packed)
    _read(files["text"]).write_parquet(files["parquet"], row_group_size=1 << 17)
    return files


def _read(file: Path) -> pl.DataFrame:
    if file.suffix == ".parquet":
        return pl.read_parquet(file)
    texts = {name: pl.String for name in CRITEO.categorical} | {name: pl.Float64 for name in CRITEO.dense}
    return pl.read_csv(
        file,
        separator="\t",
        has_header=False,
        new_columns=list(CRITEO.columns),
        schema_overrides={"label": pl.Int8, **texts},
        quote_char=None,
    )


def _plain(run_path: Path, file: Path, out: Path) -> None:
    """Score a file in the plain way."""
    run = Run.open(run_path)
    model = run.load_model(run.use("cpu", None))
    frame = _read(file)
    encoder = run.encoder
    ids = np.empty((frame.height, len(encoder.vocabularies)), np.int32)
    for column, (name, vocabulary) in enumerate(encoder.vocabularies.items()):
        table = pl.DataFrame({name: vocabulary.values}).with_row_index("id", offset=FIRST_VALUE_ID)
        found = frame.select(name).join(table, on=name, how="left", maintain_order="left")
        unseen = pl.when(pl.col(name).is_null()).then(NULL_ID).otherwise(UNSEEN_ID)
        ids[:, column] = found.select(pl.col("id").cast(pl.Int32).fill_null(unseen)).to_series().to_numpy()
    mode = encoder.encoding.dense_mode
    numbers = frame.select(pl.col(CRITEO.dense).cast(pl.Float64))
    dense = numbers.select(transform_dense(info, mode=mode) for info in encoder.dense).to_numpy(order="c")
    scores = []
    with torch.no_grad():
        for start in range(0, len(ids), EVALUATION_BATCH):
            rows = slice(start, start + EVALUATION_BATCH)
            logits = model(torch.tensor(dense[rows]), torch.from_numpy(ids[rows]))
            scores.append(torch.sigmoid(logits.double()))
    pl.DataFrame({"score": torch.cat(scores).numpy()}).write_parquet(out)


def _check_same(ours: Path, plain: Path) -> None:
    one, other = (pl.read_parquet(file)["score"].to_numpy() for file in (ours, plain))
    if not np.allclose(one, other, rtol=0, atol=TOLERANCE):
        sys.exit("the two sides give other scores")


if __name__ == "__main__":
    main()
