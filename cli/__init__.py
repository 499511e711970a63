"""The ``stampede`` command: flags -> typed values -> one workflow call."""

from __future__ import annotations

if __name__ != "stampede.cli":
    raise ImportError("import stampede.cli, not cli")

from stampede.cli.app import main

__all__ = ["main"]
