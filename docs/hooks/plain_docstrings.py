"""Docstrings of this code as Markdown: Sphinx roles become code, ``::`` before an example a colon."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|mod|data|attr|meth|exc):`~?([^`]+)`")


def as_markdown(text: str) -> str:
    """Return a docstring's text as Markdown.

    >>> as_markdown("See :class:`stampede.pipeline.Dataset`::")
    'See `Dataset`:'
    """
    text = ROLE.sub(
        lambda match: f"`{match[1] if ':mod:' in match[0] else match[1].rsplit('.', 1)[-1]}`", text
    )
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
