"""The ``stampede`` command lines in a shell text, held against the real command line without being run."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer

from stampede.cli.app import app

GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = dict(GROUP.commands)
ENDS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "(", ")"})


def commands_in(text: str) -> list[list[str]]:
    """Return the commands of a shell text: lines joined, comments off, cut at pipes and the like."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found: list[list[str]] = []
    for line in joined.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.commenters = "#"
        lexer.whitespace_split = True  # $PORT is one word
        command: list[str] = []
        skip = False
        for word in [*lexer, ";"]:
            if word in ENDS:
                if command:
                    found.append(command)
                command, skip = [], word in (">", ">>", "<")
            elif skip or (not command and re.fullmatch(r"\w+=.*", word)):
                skip = False  # the file of a redirection, or a variable before a command
            else:
                command.append(word)
    return found


def stampede_commands(text: str) -> list[list[str]]:
    """Return what stands after ``stampede`` in each of its commands in a shell text."""
    return [command[1:] for command in commands_in(text) if command[0] == "stampede"]


def faults_of(words: list[str]) -> list[str]:
    """Return what is wrong with the words after ``stampede``."""
    words = [word for word in words if word != "…"]
    if not words or words[0] in ("--help", "-h", "--version"):
        return []
    name, *rest = words
    if name not in COMMANDS:
        return [f"stampede has no command {name}"]
    if "--help" in rest or "-h" in rest:
        return []
    try:
        with COMMANDS[name].make_context(name, list(rest)):
            return []
    except typer.TyperException as error:
        return [f"stampede {shlex.join(words)}: {error.format_message()}"]


def flags_of(name: str) -> set[str]:
    """Return every flag of a command."""
    return {"--help"} | {flag for p in COMMANDS[name].params for flag in (*p.opts, *p.secondary_opts)}


ALL_FLAGS = set().union({"--version"}, *(flags_of(name) for name in COMMANDS))


def examples_of(name: str) -> list[str]:
    """Return the command lines of each ``Example:`` in a command's help."""
    text = re.sub(r"\\\n\s*", " ", COMMANDS[name].help.replace("\b", ""))
    found = []
    for paragraph in text.split("\n\n"):
        if "Example:" in paragraph:
            lines = paragraph.partition("Example:")[2]
            joined = re.sub(r"\n(?!\s*stampede )\s*", " ", lines)  # a line that was wrapped
            found += [line.strip() for line in joined.splitlines() if line.strip()]
    return found
