"""The commands together, and what becomes of their errors: one line on stderr and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from stampede import ConfigError, StampedeError, StoppedError, __version__
from stampede.cli.compare import compare
from stampede.cli.doctor import doctor
from stampede.cli.evaluate import evaluate
from stampede.cli.export import export
from stampede.cli.importance import importance
from stampede.cli.inspect import inspect
from stampede.cli.predict import predict
from stampede.cli.prepare import prepare
from stampede.cli.report import report
from stampede.cli.scale import scale
from stampede.cli.serve import serve
from stampede.cli.sweep import sweep
from stampede.cli.synth import synth
from stampede.cli.train import train
from stampede.cli.transform import transform

SUCCESS, FAILURE, USAGE = 0, 1, 2
INTERRUPTED = 130

app = typer.Typer(
    name="stampede",
    help="Train click-through-rate models from raw click logs, with very large batches.",
    epilog="\b\nExample:\n"
    "  stampede synth criteo --rows 500000 --out train.txt\n"
    "  stampede prepare criteo train.txt --recipe small --out data/criteo\n"
    "  stampede train data/criteo --recipe small --out runs/deepfm\n"
    "  stampede evaluate runs/deepfm",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    prepare, inspect, train, evaluate, predict, report, sweep, compare, importance, export, serve,
    transform, scale, synth, doctor,
):  # fmt: skip
    app.command()(command)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stampede {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train click-through-rate models from raw click logs, with very large batches."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 on success, 2 on a usage error, 1 on any other."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if sys.stderr is None:  # it was closed by whoever started this: nobody listens
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(arguments, prog_name="stampede", standalone_mode=False)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException as error:  # a panic of polars is no Exception
        if "--debug" in arguments:
            raise
        code, message = _describe(error)
        print(f"stampede: {message}", file=sys.stderr)
        sys.exit(code)
    if code == INTERRUPTED:  # typer turns the interrupt into this code
        print("stampede: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else SUCCESS)


def _describe(error: BaseException) -> tuple[int, str]:
    if isinstance(error, ConfigError):
        return USAGE, str(error)
    if isinstance(error, StoppedError):
        return INTERRUPTED, str(error)
    if isinstance(error, StampedeError):
        return FAILURE, str(error)
    if isinstance(error, typer.TyperException):
        message = error.format_message().replace("\n", " ").replace("Value error, ", "")
        return error.exit_code, f"{message} (see --help)" if error.exit_code == USAGE else message
    if isinstance(error, typer.Abort):
        return FAILURE, "aborted"
    if isinstance(error, MemoryError):
        return FAILURE, "out of memory"
    reason = (str(error).strip().splitlines() or [""])[0]
    return FAILURE, f"{type(error).__name__}: {reason} (--debug shows where)"


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
