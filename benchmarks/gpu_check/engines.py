"""Section ``prepare``: the dataset that the GPU engine makes, beside that of the CPU's."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gpu_check.cli import make_log, packages_missing, stampede
from benchmarks.gpu_check.options import Options
from benchmarks.gpu_check.record import Findings, Part
from benchmarks.gpu_check.standins import is_importable


def missing(options: Options) -> str | None:
    """Want a GPU, cudf-polars, and the packages of the command."""
    if options.device == "cpu":
        return "the engine is a GPU's"
    return packages_missing() or (None if is_importable("cudf_polars") else "not installed: cudf_polars")


def parts(options: Options) -> list[Part]:
    """One dataset by each engine."""
    folder = Path.cwd()
    data = {engine: folder / f"engine-{engine}" for engine in ("polars", "polars-gpu")}

    def prepare(engine: str, findings: Findings) -> None:
        log = make_log(folder, rows=options.log_rows)
        answer = stampede("prepare", "criteo", log, "--engine", engine, "--out", data[engine])
        findings.note(command_seconds=answer["seconds"], wall_seconds=answer["wall_seconds"])

    def compare(findings: Findings) -> None:
        differences, same_bytes = differences_of(data["polars"], data["polars-gpu"])
        findings.note(files_of_same_bytes=same_bytes, files_that_differ=len(differences))
        for difference in differences:
            findings.fault(difference)

    return [
        Part("polars", lambda findings: prepare("polars", findings)),
        Part("polars-gpu", lambda findings: prepare("polars-gpu", findings)),
        Part("comparison", compare),
    ]


def differences_of(one: Path, other: Path) -> tuple[list[str], int]:
    """Compare two datasets file by file; give what differs, and how many files have the same bytes.

    Parquet files of other bytes are the same where their values are, JSON where its content is.
    """
    import polars as pl

    names, other_names = (
        {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
        for folder in (one, other)
    )
    if names != other_names:
        return [f"other files: {sorted(names ^ other_names)}"], 0
    differences, same_bytes = [], 0
    for name in sorted(names):
        files = one / name, other / name
        if files[0].read_bytes() == files[1].read_bytes():
            same_bytes += 1
        elif name.endswith(".parquet"):
            frames = [pl.read_parquet(file) for file in files]
            if frames[0].schema != frames[1].schema or frames[0].height != frames[1].height:
                differences.append(f"{name}: other columns or rows")
                continue
            columns = [c for c in frames[0].columns if not frames[0][c].equals(frames[1][c])]
            if columns:
                differences.append(f"{name}: other values in {', '.join(columns)}")
        elif json.loads(files[0].read_text()) != json.loads(files[1].read_text()):
            differences.append(f"{name}: other content")
    return differences, same_bytes
