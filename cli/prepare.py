"""``stampede prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from stampede.cli.common import Debug, Force, Json, given, print_json, print_table


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
        int | None, typer.Option(help="Values with fewer training rows share the id of rare values. [2]")
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
        Literal["polars", "nvtabular"],
        typer.Option(
            show_default=False,
            help="What computes it; the dataset is the same. nvtabular is a workflow of NVIDIA's NVTabular, "
            "in an environment of its own; the dataset keeps it. [polars]",
        ),
    ] = "polars",
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory it may take, such as 4GB; large vocabularies go through it in parts. "
            "[half of what the machine or container has]",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn raw click logs into a dataset.

    Example: stampede prepare criteo train.txt --recipe small --out data/criteo
    """
    from stampede.cli.progress import Display
    from stampede.workflows.prepare import run_prepare

    with Display() as display:
        prepared = run_prepare(
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
                fit_on=fit_on,
                counts=False if no_counts else None,
                bad_rows=bad_rows,
            ),
            engine=engine,
            memory_limit=memory_limit,
            force=force,
            progress=display,
        )
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
    if manifest.rejected:
        typer.echo(f"{manifest.rejected:,} rows were left out: see {dataset.path / 'rejected.parquet'}")
    typer.echo(f"{dataset.path} made in {prepared.seconds:.1f} s")
