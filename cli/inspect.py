"""``stampede inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stampede.cli.common import Debug, Json, print_json, print_table


def shown(value: str) -> str:
    """Return a value as it can be printed: of a cross, the two values with a sign between them."""
    return value.replace("\x1f", "×")


def inspect(
    dataset: Annotated[Path, typer.Argument(help="Folder of a dataset.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show sizes, frequencies and skew of a dataset.

    Example: stampede inspect data/criteo
    """
    from dataclasses import asdict
    from json import loads

    from stampede.workflows.inspect import run_inspect

    opened, summaries = run_inspect(dataset)
    manifest = opened.manifest
    if json:
        document = loads(manifest.to_json())
        for info, summary in zip(document["fields"], summaries, strict=True):
            info |= asdict(summary)
        print_json(document)
        return
    print_table(
        ("split", "rows", "click rate"),
        [(name, f"{info.rows:,}", f"{info.click_rate:.4f}") for name, info in manifest.splits.items()],
    )
    typer.echo()
    if manifest.growths:
        print_table(
            ("grown with", "rows", "min-count", "new ids"),
            [
                (growth.split, f"{growth.rows:,}", f"{growth.min_count}", f"{sum(growth.ids.values()):,}")
                for growth in manifest.growths
            ],
        )
        typer.echo()
    print_table(
        (
            "field",
            "ids",
            "distinct",
            "null",
            "rare",
            "unseen",
            "top 10",
            "ids for 90%",
            "top values",
        ),
        [
            (
                field.name,
                f"{field.size:,}",
                f"{field.distinct:,}",
                f"{field.null_share:.1%}",
                f"{field.rare_share:.1%}",
                "-" if field.unseen_share_of_test is None else f"{field.unseen_share_of_test:.1%}",
                f"{field.top_10_share:.1%}",
                f"{field.ids_for_90_percent:,}",
                ", ".join(f"{shown(value)} {share:.0%}" for value, share in field.top_values),
            )
            for field in summaries
        ],
        left=("top values",),
    )
    if manifest.dense:
        typer.echo()
        rows = summaries[0].rows if summaries else manifest.splits["train"].rows
        rows -= sum(growth.rows for growth in manifest.growths)  # dense statistics are of the first fit
        print_table(
            ("dense", "null", "minimum", "maximum"),
            [
                (info.name, f"{info.null / rows:.1%}", f"{info.minimum:,.10g}", f"{info.maximum:,.10g}")
                for info in manifest.dense
            ],
        )
        typer.echo(f"dense features are prepared as {manifest.encoding.dense_mode}; an empty one counts as 0")
    added = ["X_log_count of each field X"] if manifest.encoding.count_features else []
    added += [f"{field}_target" for field in manifest.encoding.target_encoded]
    if added:
        typer.echo(f"further dense columns: {', '.join(added)}")
    typer.echo("unseen: share of test rows whose value has no id; top 10: share of the ten commonest ids")
    fitted = "the training rows" if manifest.fit_on == "train" else "all rows, those of the test too"
    if manifest.growths:
        fitted += f" and those of {', '.join(growth.split for growth in manifest.growths)}"
    typer.echo(
        f"ids, counts and shares are of {fitted}; ids include those of padding, null and unseen values"
    )
    if manifest.rejected:
        typer.echo(f"{manifest.rejected:,} rows were left out: see {opened.path / 'rejected.parquet'}")
