"""Markdown pages as the tests see them: their blocks in order, and what stands before each for the tests.

A comment right before a block says how it is run::

    <!-- test: replace "--rows 500000" "--rows 5000" -->   scale it down; may stand several times
    <!-- test: needs train.txt data/criteo -->             things that are there beforehand (supplies.py)
    <!-- test: first "mkdir logs" -->                      a command before it, not shown to readers
    <!-- test: file mylog.toml -->                         write the block to a file
    <!-- test: background "http://127.0.0.1:8000/" -->     leave it running until the page ends
    <!-- test: exit 2 -->                                  the exit code that is right
    <!-- test: output exact -->                            the text equals what was printed
    <!-- test: output free "why" -->                       the text is not looked at
    <!-- test: skip "why" -->                              do not run it; its flags are checked all the same
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

COMMENT = re.compile(r"<!--\s*test:\s*(.*?)\s*-->", re.DOTALL)
WORDS = {
    "replace": 2,
    "needs": None,
    "first": 1,
    "file": 1,
    "background": 1,
    "exit": 1,
    "output": None,
    "skip": 1,
}
"""Directive -> how many words follow; None for any number, but one at least."""


class PageError(Exception):
    """A page that says something to the tests that has no meaning."""


@dataclass(frozen=True)
class Directive:
    """What a comment says about the next block."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    text: str
    directives: tuple[Directive, ...] = field(default=())

    @property
    def where(self) -> str:
        """Name the place for a message."""
        return f"{self.page.name}, line {self.line}"

    def all(self, name: str) -> list[tuple[str, ...]]:
        """Return the words of each directive of a name."""
        return [directive.words for directive in self.directives if directive.name == name]

    def one(self, name: str) -> tuple[str, ...] | None:
        """Return the words of the one directive of a name, or None."""
        found = self.all(name)
        if len(found) > 1:
            raise PageError(f"{self.where}: {name} stands twice before the block")
        return found[0] if found else None

    @property
    def scaled(self) -> str:
        """Return the text after its replacements, each of which must be found."""
        text = self.text
        for old, new in self.all("replace"):
            if old not in text:
                raise PageError(f"{self.where}: nothing to replace: {old!r}")
            text = text.replace(old, new)
        return text


def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order.

    Raises
    ------
    PageError
        An indented block, which nobody would run; a directive that is unknown, or before no block.
    """
    blocks: list[Block] = []
    waiting: list[Directive] = []
    for token in _tokens(page):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "code_block":
            raise PageError(f"{page.name}, line {line}: an indented block: fence it and name its language")
        if token.type == "html_block":
            waiting += [
                _directive(text, f"{page.name}, line {line}") for text in COMMENT.findall(token.content)
            ]
            continue
        if token.type == "fence":
            blocks.append(Block(page, line, token.info.strip(), token.content, tuple(waiting)))
            waiting = []
        elif waiting and token.nesting >= 0:
            raise PageError(f"{page.name}, line {line}: {waiting[-1].name} stands before no block")
    if waiting:
        raise PageError(f"{page.name}: {waiting[-1].name} stands before no block")
    return blocks


def _directive(text: str, where: str) -> Directive:
    name, *words = shlex.split(text)
    if name not in WORDS:
        raise PageError(f"{where}: unknown directive {name!r}")
    if not words or WORDS[name] not in (None, len(words)):
        raise PageError(f"{where}: {name} with {len(words)} words")
    return Directive(name, tuple(words))


def code_in_text(page: Path) -> list[str]:
    """Return what stands between backticks in the text of a page."""
    return [
        child.content
        for token in _tokens(page)
        for child in token.children or ()
        if child.type == "code_inline"
    ]


def links_of(page: Path) -> list[str]:
    """Return the targets of the links and pictures of a page."""
    return [
        str(child.attrs["href" if child.type == "link_open" else "src"])
        for token in _tokens(page)
        for child in token.children or ()
        if child.type in ("link_open", "image")
    ]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs both make them."""
    tokens = _tokens(page)
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}
