"""``stampede train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stampede.cli.common import Debug, Force, Json, given, number, print_json, print_table, say


def train(
    dataset: Annotated[Path, typer.Argument(help="Folder of a dataset.")],
    out: Annotated[Path, typer.Option(help="Folder of the run to make.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="criteo, avazu, small or a TOML file: values for the options below. [by log or size]"
        ),
    ] = None,
    model: Annotated[
        Literal["wide-deep", "deepfm", "dcn", "dcn-v2", "dcn-v2-mix"] | None,
        typer.Option(help="The model. [the recipe's]"),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step. [the recipe's]")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows. [the recipe's]")] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Epochs without a better valid AUC before the run stops; 0 for never. [the recipe's]"
        ),
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="Steps after which the run stops.")] = None,
    rule: Annotated[
        Literal["none", "sqrt", "linear", "n2-lambda", "cowclip"] | None,
        typer.Option(
            help="How rates and L2 follow the batch size; values given below are not scaled. [the recipe's]"
        ),
    ] = None,
    optimizer: Annotated[
        Literal["adam", "cowclip"] | None, typer.Option(help="cowclip is adam with --clip cowclip.")
    ] = None,
    clip: Annotated[
        Literal["none", "cowclip"] | None, typer.Option(help="How embedding gradients are clipped.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of the dense weights.")] = None,
    embedding_learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of the embedding tables.")
    ] = None,
    l2: Annotated[float | None, typer.Option(help="L2 strength on the embedding tables.")] = None,
    l2_cross: Annotated[float | None, typer.Option(help="L2 strength on the cross layers of DCN.")] = None,
    ratio: Annotated[float | None, typer.Option(help="r of CowClip.")] = None,
    zeta: Annotated[float | None, typer.Option(help="zeta of CowClip: the floor of the clip.")] = None,
    warmup_epochs: Annotated[
        float | None, typer.Option(help="Epochs over which the dense rate warms up; 0 for none.")
    ] = None,
    ema_decay: Annotated[
        float | None, typer.Option(help="Decay of the running mean of the weights that is kept; 0 for none.")
    ] = None,
    embedding_dim: Annotated[int | None, typer.Option(help="Width of an embedding.")] = None,
    init_std: Annotated[
        float | None, typer.Option(help="Standard deviation of the initial embeddings.")
    ] = None,
    hidden: Annotated[str | None, typer.Option(help="Widths of the MLP, such as 400,400,400.")] = None,
    cross_layers: Annotated[int | None, typer.Option(help="Cross layers of DCN.")] = None,
    low_rank: Annotated[int | None, typer.Option(help="Rank of the experts of dcn-v2-mix.")] = None,
    experts: Annotated[int | None, typer.Option(help="Experts of dcn-v2-mix.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the weights and the shuffle. [0]")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where it runs. [auto]")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads. [as many as torch takes]")] = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model on a dataset.

    Example: stampede train data/criteo --model deepfm --batch-size 8192 --out runs/deepfm
    """
    from stampede.cli.progress import Display
    from stampede.workflows.train import run_train

    with Display() as display:
        config, result = run_train(
            dataset,
            out=out,
            recipe=recipe,
            given=given(
                model=model,
                batch_size=batch_size,
                epochs=epochs,
                patience=patience,
                max_steps=max_steps,
                rule=rule,
                optimizer=optimizer,
                clip=clip,
                learning_rate=learning_rate,
                embedding_learning_rate=embedding_learning_rate,
                l2=l2,
                l2_cross=l2_cross,
                ratio=ratio,
                zeta=zeta,
                warmup_epochs=warmup_epochs,
                ema_decay=ema_decay,
                embedding_dim=embedding_dim,
                init_std=init_std,
                hidden=_widths(hidden),
                cross_layers=cross_layers,
                low_rank=low_rank,
                experts=experts,
                seed=seed,
                device=device,
                threads=threads,
            ),
            force=force,
            say=say,
            observer=display,
        )
    if json:
        print_json(
            {
                "valid": _document(result.valid),
                "test": _document(result.test),
                "best_epoch": result.best_epoch,
                "steps": result.steps,
                "samples_per_second": result.samples_per_second,
                "seconds": result.seconds,
            }
        )
        return
    splits = [(name, m) for name, m in (("valid", result.valid), ("test", result.test)) if m is not None]
    if splits:
        print_table(
            ("split", "AUC", "log loss", "rows"),
            [(name, number(m.auc), number(m.logloss), f"{m.rows:,}") for name, m in splits],
        )
    typer.echo(
        f"{config.model}, batch {config.batch_size:,}: best epoch {result.best_epoch} of {result.epochs}, "
        f"{result.steps:,} steps, {result.samples_per_second:,.0f} rows/s, {result.seconds:.1f} s"
    )
    if result.valid is not None and result.best_epoch == result.epochs == config.epochs > 1:
        typer.echo("the last epoch was the best: more --epochs may do better")
    typer.echo(out)


def _document(metrics: Any) -> dict[str, float | None] | None:
    return None if metrics is None else {"auc": metrics.auc, "logloss": metrics.logloss}


def _widths(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no list of widths such as 400,400,400", param_hint="--hidden"
        ) from None
