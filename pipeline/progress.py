"""What long work says of how far it is; the caller decides how to show it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the stages of a job and how far each is. ``advance`` may be called from any thread."""

    def start(self, stage: str, total: int | None) -> None:
        """Begin a stage of ``total`` rows (None: not known)."""

    def advance(self, rows: int) -> None:
        """Add rows to what is done of the current stage."""


class Silent:
    """Shows nothing."""

    def start(self, stage: str, total: int | None) -> None:
        """Ignore the stage."""

    def advance(self, rows: int) -> None:
        """Ignore the rows."""
