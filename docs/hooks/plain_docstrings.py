"""Docstrings of this code as Markdown.

Sphinx roles become code, ``::`` before an example a colon, and parameters that share a description one each,
so that each is shown with its own type.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|mod|data|attr|meth|exc):`~?([^`]+)`")

SHARED = re.compile(r"^(?P<names>\w+(?:, \w+)+):\n(?P<text>(?:[ \t]+\S.*(?:\n|$))+)", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Return a docstring's text as Markdown.

    >>> as_markdown("See :class:`stampede.pipeline.Dataset`::")
    'See `Dataset`:'
    """
    text = ROLE.sub(
        lambda match: f"`{match[1] if ':mod:' in match[0] else match[1].rsplit('.', 1)[-1]}`", text
    )
    text = SHARED.sub(
        lambda match: (
            "\n".join(f"{name}:\n{match['text'].rstrip()}" for name in match["names"].split(", ")) + "\n"
        ),
        text,
    )
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
