"""``stampede prepare``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stampede import ConfigError, DatasetError
from stampede.cli.common import Debug, Force, Json, given, print_json, print_table, say

if TYPE_CHECKING:
    from stampede.pipeline.estimate import Estimate

SHOWN_FIELDS = 3


def pairs(crosses: list[str] | None) -> tuple[tuple[str, str], ...] | None:
    """Return the fields that each --cross names."""
    if not crosses:
        return None
    named = [tuple(name.strip() for name in cross.split(",")) for cross in crosses]
    for cross, names in zip(crosses, named, strict=True):
        if len(names) != 2 or not all(names):
            raise ConfigError(f"--cross {cross}: name two fields, as in --cross C1,C2")
    return tuple((one, other) for one, other in named)


def prepare(
    preset_or_schema: Annotated[
        str, typer.Argument(metavar="LOG", help="criteo, avazu, or a TOML schema file of your own log.")
    ],
    inputs: Annotated[
        list[str], typer.Argument(metavar="FILES...", help="Files or quoted glob patterns, read as one log.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the dataset to make.")],
    recipe: Annotated[
        str | None,
        typer.Option(help="criteo, avazu, small or a TOML file: values for the options below. [none]"),
    ] = None,
    split: Annotated[
        Literal["random", "sequential", "time"] | None, typer.Option(help="How rows are divided. [random]")
    ] = None,
    time_unit: Annotated[
        Literal["hour", "day"] | None, typer.Option(help="Whether --split time cuts at hours or days. [hour]")
    ] = None,
    valid_fraction: Annotated[
        float | None, typer.Option(help="Share of all rows for validation; 0 for none. [0.1]")
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Share of all rows for the test; 0 for none. [0.1]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random split. [0]")] = None,
    min_count: Annotated[
        int | None,
        typer.Option(
            help="Values with fewer training rows share the id of rare values. [2, or with --grow-vocab as "
            "the dataset was made]"
        ),
    ] = None,
    max_size: Annotated[
        int | None, typer.Option(help="Keep at most this many values per field. [all]")
    ] = None,
    hash_buckets: Annotated[
        int | None, typer.Option(help="Ids that the other values share by hash. [0: they share id 2]")
    ] = None,
    dense: Annotated[
        Literal["log", "minmax", "standard", "none", "log-bucket"] | None,
        typer.Option(help="How dense features become model inputs. [log]"),
    ] = None,
    dense_null_flag: Annotated[
        bool,
        typer.Option("--dense-null-flag", help="Add a 0/1 column per dense feature: 1 where it is empty."),
    ] = False,
    cross: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD,FIELD", help="Add the combined values of two fields as a field; repeatable."
        ),
    ] = None,
    count_features: Annotated[
        bool,
        typer.Option(
            "--count-features", help="Add how frequent the id of each field is as a dense column, in [0, 1]."
        ),
    ] = False,
    target_encode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD", help="Add the click rate of the field's value as a dense column; repeatable."
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(help="Parts of the training rows; a row's click rate is that of the other parts. [5]"),
    ] = None,
    fit_on: Annotated[
        Literal["train", "all"] | None,
        typer.Option(help="Rows that ids and statistics come from; 'all' leaks the test rows. [train]"),
    ] = None,
    no_counts: Annotated[
        bool, typer.Option("--no-counts", help="Leave out the column with the count of each id.")
    ] = False,
    bad_rows: Annotated[
        Literal["stop", "skip"] | None,
        typer.Option(help="Stop at a row that cannot be used, or leave it out and list it. [stop]"),
    ] = None,
    engine: Annotated[
        Literal["polars", "polars-gpu", "nvtabular"],
        typer.Option(
            show_default=False,
            help="What computes it; the dataset is the same. polars-gpu is the same plan on NVIDIA GPUs. "
            "nvtabular is a workflow of NVIDIA's NVTabular, in an environment of its own; the dataset keeps "
            "it. [polars]",
        ),
    ] = "polars",
    gpu_executor: Annotated[
        Literal["auto", "in-memory", "streaming", "dask"] | None,
        typer.Option(
            help="How polars-gpu runs: on one GPU with all rows in its memory or in chunks, or on every GPU "
            "with dask. [auto: dask on several GPUs, in-memory where the rows surely fit]"
        ),
    ] = None,
    allow_fallback: Annotated[
        bool,
        typer.Option(
            "--allow-fallback", help="Let polars-gpu run on the CPU what a GPU cannot; else it is an error."
        ),
    ] = False,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory it may take, such as 4GB; large vocabularies go through it in parts. "
            "[half of what the machine or container has]",
        ),
    ] = None,
    append: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Add the files to the dataset at --out as a split of this name, by the ids that it has.",
        ),
    ] = None,
    grow_vocab: Annotated[
        bool,
        typer.Option(
            "--grow-vocab",
            help="With --append: give the values that the files bring ids after all others, which stay.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say the rows, disk and memory that it will take, and write nothing."),
    ] = False,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn raw click logs into a dataset.

    Example: stampede prepare criteo train.txt --recipe small --out data/criteo
    """
    from stampede.cli.progress import Display
    from stampede.pipeline.engine import GpuOptions
    from stampede.workflows.prepare import PrepareRequest, run_append, run_estimate, run_prepare

    gpu = None
    if gpu_executor or allow_fallback:
        gpu = GpuOptions(gpu_executor or "auto", on_fallback=say if allow_fallback else None)
    request = PrepareRequest(
        preset_or_schema,
        inputs,
        out=out,
        recipe=recipe,
        given=given(
            split=split,
            time_unit=time_unit,
            valid_fraction=valid_fraction,
            test_fraction=test_fraction,
            seed=seed,
            min_count=min_count,
            max_size=max_size,
            hash_buckets=hash_buckets,
            dense=dense,
            dense_null_flag=dense_null_flag or None,
            crosses=pairs(cross),
            count_features=count_features or None,
            target_encode=tuple(target_encode) if target_encode else None,
            folds=folds,
            fit_on=fit_on,
            counts=False if no_counts else None,
            bad_rows=bad_rows,
        ),
        memory_limit=memory_limit,
    )
    if append is not None and (dry_run or force or gpu or engine != "polars" or memory_limit):
        raise ConfigError("--append takes neither --dry-run, --force, --memory-limit nor an --engine")
    if grow_vocab and append is None:
        raise ConfigError("--grow-vocab is of use with --append only")
    if dry_run and (gpu or engine != "polars"):
        raise ConfigError(
            "--dry-run estimates what --engine polars takes: leave out --engine and its options"
        )
    if dry_run:
        show_estimate(run_estimate(request, force=force), request.out, json=json)
        return
    with Display() as display:
        if append is not None:
            prepared = run_append(request, append, grow=grow_vocab, progress=display)
        else:
            prepared = run_prepare(request, engine=engine, gpu=gpu, force=force, progress=display)
    dataset = prepared.dataset
    manifest = dataset.manifest
    if json:
        print_json(
            {
                "rows": dataset.rows,
                "fields": {f.name: {"size": f.size, "null": f.null, "rare": f.rare} for f in manifest.fields},
                "rejected": manifest.rejected,
                "seconds": prepared.seconds,
            }
        )
        return
    print_table(
        ("split", "rows", "click rate"),
        [(name, f"{info.rows:,}", f"{info.click_rate:.4f}") for name, info in manifest.splits.items()],
    )
    ids = sum(dataset.sizes.values())
    dense_count = len(dataset.dense_columns)
    dense_text = f", {dense_count} dense columns" if dense_count else ""
    typer.echo(f"{len(dataset.fields)} categorical fields with {ids:,} ids{dense_text}")
    if grow_vocab:
        gained = manifest.growths[-1]
        many = sorted(gained.ids.items(), key=lambda item: -item[1])[:SHOWN_FIELDS]
        most = ", ".join(f"{name} {number:,}" for name, number in many if number)
        typer.echo(f"{sum(gained.ids.values()):,} of them are new" + (f" (most of {most})" if most else ""))
    if manifest.rejected:
        typer.echo(f"{manifest.rejected:,} rows were left out: see {dataset.path / 'rejected.parquet'}")
    done = "made" if append is None else f"has a split {append},"
    typer.echo(f"{dataset.path} {done} in {prepared.seconds:.1f} s")


def show_estimate(found: Estimate, out: Path, *, json: bool) -> None:
    """Print what a preparation will take."""
    if json:
        print_json(asdict(found) | {"disk_bytes": found.disk_bytes})
    else:
        print_table(
            ("about", ""),
            [
                ("rows", f"{found.rows:,}"),
                ("ids", f"{sum(found.ids.values()):,}"),
                ("input", _size(found.input_bytes)),
                ("dataset", _size(found.dataset_bytes)),
                ("disk, until it is done", f"{_size(found.disk_bytes)} of {_size(found.free_bytes)} free"),
                ("memory", f"{_size(found.memory_bytes)}, held to {_size(found.memory_limit_bytes)}"),
            ],
        )
        typer.echo("nothing was written")
    if not found.fits:
        raise DatasetError(
            f"the disk of {out} has {_size(found.free_bytes)} free where about {_size(found.disk_bytes)} are "
            "needed: make room or choose another --out"
        )


def _size(size: int) -> str:
    for unit, bytes_each in (("GB", 1_000_000_000), ("MB", 1_000_000)):
        if size >= bytes_each:
            return f"{size / bytes_each:,.1f} {unit}"
    return f"{size / 1000:,.1f} kB"
