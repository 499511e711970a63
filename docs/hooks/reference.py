"""The pages that are made of the code when the site is built: commands, recipes, jobs.

A hook of mkdocs (``mkdocs.yml`` names it). Each page is one function that returns Markdown.
"""

from __future__ import annotations

import html
import re
import tomllib
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from stampede.cli.app import app

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "workflows" / "recipes"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of the folder."""
    pages = {
        "reference/cli.md": cli_page(),
        "reference/recipes.md": recipes_page(),
        "reference/python/workflows.md": workflows_page(),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def commands() -> dict[str, Any]:
    """Return the commands of the real command line, in the order of its help."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def cli_page() -> str:
    """Describe every command with every flag, as its ``--help`` does."""
    found = commands()
    parts = [
        "# Command line",
        "Made from the commands themselves: what `stampede COMMAND --help` says. A default stands in "
        "brackets at the end of a line; `[the recipe's]` means that the [recipe](recipes.md) has the value.",
        "Every command takes `--help` (or `-h`), `--json` and `--debug`. What it exits with stands in "
        "[errors and exit codes](errors.md).",
        "\n".join(
            f"- [`{name}`](#{name}): {_first_sentence(command.help)}" for name, command in found.items()
        ),
        "`stampede --version` prints the version.",
    ]
    for name, command in found.items():
        parts += _command(name, command)
    return "\n\n".join(parts) + "\n"


def _first_sentence(text: str) -> str:
    return text.split("\n\n")[0].replace("\n", " ")


def _command(name: str, command: Any) -> list[str]:
    context = typer.Context(command, info_name=f"stampede {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"## {name}", f"```text\nstampede {name} {usage}\n```", *_paragraphs(command.help)]
    for kind, title in (("argument", "Arguments"), ("option", "Options")):
        shown = [p for p in command.params if p.param_type_name == kind and not p.hidden]
        if shown:
            parts.append(f"**{title}**")
            parts += [_parameter(name, parameter, context) for parameter in shown]
    return parts


def _paragraphs(text: str) -> list[str]:
    """Return a command's help as Markdown; what follows ``Example:`` is code."""
    paragraphs = []
    for paragraph in text.replace("\b\n", "").split("\n\n"):
        before, found, example = paragraph.partition("Example:")
        if before.strip():
            paragraphs.append(html.escape(before.strip(), quote=False))
        if found:
            joined = re.sub(r"\n(?!\s*stampede )\s*", " ", example.strip())
            lines = "\n".join(line.strip() for line in joined.splitlines())
            paragraphs.append(f"For example:\n\n```sh\n{lines}\n```")
    return paragraphs


def _parameter(command: str, parameter: Any, context: Any) -> str:
    declared, text = parameter.get_help_record(context)
    anchor = f"{command}{parameter.opts[0]}" if parameter.param_type_name == "option" else None
    term = f"`{declared}`" + (f"{{ #{anchor} }}" if anchor else "")
    return f"{term}\n:   {_escaped(text)}"


def _escaped(text: str) -> str:
    """Return a line of help as Markdown, with its brackets as brackets."""
    return re.sub(r"([\[\]*_<>|])", r"\\\1", " ".join(text.split()))


def recipes_page() -> str:
    """Show each recipe's values side by side, and its file."""
    recipes = {path.stem: tomllib.loads(path.read_text()) for path in sorted(RECIPES.glob("*.toml"))}
    names = list(recipes)
    parts = [
        "# Recipes",
        "A recipe is a set of values for `prepare` and `train`. `--recipe` names one of these, or a TOML "
        "file of your own; flags replace single values. Without it, `prepare` takes the defaults of its "
        "flags, and `train` takes the recipe named like the log (`criteo`, `avazu`), else `small` below a "
        "million training rows and `criteo` above, and says which.",
        "`batch_size` is the base batch: `train --batch-size` scales rates and L2 from it by the `rule` "
        "([why](../explanation/large-batches.md)); `stampede scale` prints what that gives. A recipe of your "
        "own may leave values out: they have the command's defaults.",
    ]
    for part, title in (("prepare", "Values for prepare"), ("train", "Values for train")):
        keys = dict.fromkeys(
            key for recipe in recipes.values() for key in recipe[part] if key != "exceptions"
        )
        rows = [
            f"| `{key}` | " + " | ".join(_value(recipe[part].get(key)) for recipe in recipes.values()) + " |"
            for key in keys
        ]
        header = f"| value | {' | '.join(f'`{name}`' for name in names)} |\n|---{'|---' * len(names)}|"
        parts += [f"## {title}", "\n".join([header, *rows])]
    parts.append("## The files")
    for name in names:
        parts += [f"### {name}.toml", f"```toml\n{(RECIPES / f'{name}.toml').read_text().strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    if value is None:
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def workflows_page() -> str:
    """Name every function behind a command, for mkdocstrings to show its docstring."""
    called = set(re.findall(r"\brun_\w+", "".join(path.read_text() for path in (ROOT / "cli").glob("*.py"))))
    parts = [
        "# stampede.workflows",
        "The jobs behind the commands: each command is one of these calls.",
    ]
    for path in sorted((ROOT / "workflows").rglob("*.py")):
        module = ".".join(("stampede", *path.relative_to(ROOT).with_suffix("").parts))
        found = [
            name for name in re.findall(r"^def (run_\w+)", path.read_text(), re.MULTILINE) if name in called
        ]
        parts += [f"::: {module}.{function}" for function in found]
    return "\n\n".join(parts) + "\n"
