"""``stampede scale``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from stampede.cli.common import Debug, Json, print_json, say


def scale(
    recipe: Annotated[str, typer.Option(help="criteo, avazu, small or a TOML file.")] = "criteo",
    batch_size: Annotated[int | None, typer.Option(help="Rows a step. [the recipe's]")] = None,
    rule: Annotated[
        Literal["none", "sqrt", "linear", "n2-lambda", "cowclip"] | None,
        typer.Option(help="How rates and L2 follow the batch size. [the recipe's]"),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the hyper-parameters for a batch size.

    Example: stampede scale --recipe criteo --batch-size 131072
    """
    from stampede.training.scaling import Rule
    from stampede.workflows.recipe import Recipe, describe_exceptions, scale_recipe

    scaled = scale_recipe(
        Recipe.named(recipe).train, batch_size=batch_size, rule=None if rule is None else Rule(rule)
    )
    values = {
        "batch_size": scaled.batch_size,
        "learning_rate": scaled.learning_rate,
        "embedding_learning_rate": scaled.embedding_learning_rate,
        "l2": scaled.l2,
        "zeta": scaled.zeta,
        "warmup_epochs": scaled.warmup_epochs,
    }
    if scaled.exceptions:
        say(describe_exceptions(scaled.exceptions, batch_size=scaled.batch_size))
    if json:
        print_json(values)
        return
    typer.echo(f"recipe {recipe}, rule {scaled.rule}")
    for name, value in values.items():
        typer.echo(f"{name:<24} {value:g}" if isinstance(value, float) else f"{name:<24} {value}")
