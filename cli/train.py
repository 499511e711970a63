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
        Literal[
            "wide-deep",
            "deepfm",
            "dcn",
            "dcn-v2",
            "dcn-v2-mix",
            "fm",
            "dlrm",
            "xdeepfm",
            "autoint",
            "finalnet",
        ]
        | None,
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
        Literal["adam", "cowclip", "helen", "adagrad", "sgd"] | None,
        typer.Option(help="cowclip is adam with --clip cowclip."),
    ] = None,
    clip: Annotated[
        Literal["none", "global", "field", "column", "adaptive-field", "cowclip"] | None,
        typer.Option(
            help="How embedding gradients are clipped: to the norm of --clip-norm together, by field "
            "or by row, or to that of the field's or the row's weights."
        ),
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="The norm that --clip global, field and column let pass.")
    ] = None,
    update: Annotated[
        Literal["dense", "touched"] | None,
        typer.Option(
            help="Which rows of the tables a step updates: all of them, as the paper does, or those of the "
            "batch, for tables too large to go through. [dense]"
        ),
    ] = None,
    rho: Annotated[float | None, typer.Option(help="How far helen moves the tables. [0.05]")] = None,
    bound: Annotated[
        float | None, typer.Option(help="The least share of that way which helen moves a rare id. [0.3]")
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
    bottom_hidden: Annotated[
        str | None, typer.Option(help="Widths of dlrm's MLP over the dense features. [512,256,64]")
    ] = None,
    cin_layers: Annotated[
        str | None, typer.Option(help="Feature maps of xdeepfm's interaction layers. [128,128]")
    ] = None,
    attention_layers: Annotated[int | None, typer.Option(help="Interacting layers of autoint. [3]")] = None,
    attention_heads: Annotated[int | None, typer.Option(help="Heads of each. [2]")] = None,
    attention_dim: Annotated[int | None, typer.Option(help="Values of a head. [32]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the weights and the shuffle. [0]")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where it runs. [auto]")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads; on a busy machine 1 may be faster. [as many as torch takes]"),
    ] = None,
    precision: Annotated[
        Literal["float32", "tf32", "bf16"] | None,
        typer.Option(
            help="Of the matrix products; tables, sums and updates stay float32. tf32 is of GPUs. [float32]"
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option(
            help="Work on a batch in that many pieces at least, for batches beyond memory; "
            "the step is the whole batch's. [1]"
        ),
    ] = None,
    compiles: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Put the network through torch.compile. [no]"),
    ] = None,
    cuda_graph: Annotated[
        bool | None,
        typer.Option(
            "--cuda-graph/--no-cuda-graph", help="Replay the step as one CUDA graph, on a GPU. [yes]"
        ),
    ] = None,
    loader: Annotated[
        Literal["auto", "device", "stream"] | None,
        typer.Option(
            help="Hold the split on the device, or stream it from disk. [auto: hold it where it fits]"
        ),
    ] = None,
    loader_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that streaming may take, such as 2GB. [1GB]")
    ] = None,
    train_split: Annotated[
        str | None, typer.Option(help="Split to train on; one that was added, for example. [train]")
    ] = None,
    valid_split: Annotated[
        str | None, typer.Option(help="Split to choose the best epoch by; none for none. [valid]")
    ] = None,
    test_split: Annotated[
        str | None, typer.Option(help="Split to test the best epoch on; none for none. [test]")
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="N|TIME",
            help="Steps (5000) or time (90s, 10m, 2h) between checkpoints, besides those of epochs. [10m]",
        ),
    ] = None,
    keep_checkpoints: Annotated[
        int | None, typer.Option(help="How many of the latest are kept, besides the best. [2]")
    ] = None,
    on_nan: Annotated[
        Literal["stop", "skip"] | None,
        typer.Option(
            help="What to do about a batch whose loss or gradients are not finite: stop, or leave it out "
            "and count it. [stop]"
        ),
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            help="Begin with the best epoch of this run and its optimizer, on its dataset or one that grew "
            "since; values that are not given are that run's, but for one epoch and no warm-up."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run at --out from its last checkpoint, as if it had never stopped; only "
            "--epochs, --max-steps, --threads, --checkpoint-every and --keep-checkpoints may differ.",
        ),
    ] = False,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model on a dataset.

    Example: stampede train data/criteo --recipe small --model deepfm --batch-size 8192 --out runs/deepfm
    """
    from stampede.cli.progress import Display
    from stampede.pipeline.memory import parse_bytes
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
                clip_norm=clip_norm,
                update=update,
                rho=rho,
                bound=bound,
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
                hidden=_widths(hidden, "--hidden"),
                cross_layers=cross_layers,
                low_rank=low_rank,
                experts=experts,
                bottom_hidden=_widths(bottom_hidden, "--bottom-hidden"),
                cin_layers=_widths(cin_layers, "--cin-layers"),
                attention_layers=attention_layers,
                attention_heads=attention_heads,
                attention_dim=attention_dim,
                seed=seed,
                device=device,
                threads=threads,
                precision=precision,
                accumulate=accumulate,
                compiles=compiles,
                cuda_graph=cuda_graph,
                loader=loader,
                loader_memory=None
                if loader_memory is None
                else parse_bytes(loader_memory, flag="--loader-memory"),
                train_split=train_split,
                valid_split=valid_split,
                test_split=test_split,
                checkpoint_every=checkpoint_every,
                keep_checkpoints=keep_checkpoints,
                on_nan=on_nan,
            ),
            resume=resume,
            init_from=init_from,
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
                "skipped": result.skipped,
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
    skipped = f" ({result.skipped:,} skipped)" if result.skipped else ""
    typer.echo(
        f"{config.model}, batch {config.batch_size:,}: best epoch {result.best_epoch} of {result.epochs}, "
        f"{result.steps:,} steps{skipped}, {result.samples_per_second:,.0f} rows/s, {result.seconds:.1f} s"
    )
    if result.valid is not None and result.best_epoch == result.epochs == config.epochs > 1:
        typer.echo("the last epoch was the best: more --epochs may do better")
    typer.echo(out)


def _document(metrics: Any) -> dict[str, float | None] | None:
    return None if metrics is None else {"auc": metrics.auc, "logloss": metrics.logloss}


def _widths(text: str | None, flag: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no list of widths such as 400,400,400", param_hint=flag
        ) from None
