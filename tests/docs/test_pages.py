"""Every block of README.md and docs/ runs, every flag that they name is there, every link leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.command_lines import ALL_FLAGS, COMMANDS, commands_in, flags_of
from tests.docs.pages import anchors_of, blocks_of, code_in_text, links_of
from tests.docs.runner import ROOT, PageRun

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"reference/cli.md", "reference/recipes.md", "reference/python/workflows.md"}
OF_OTHER_PROGRAMS = {"--extra-index-url", "--gpus", "--index-url"}
OTHER_PROGRAMS = {"docker", "pip", "tensorboard"}
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.mark.timeout(900)  # a page is many commands, and the machine may be busy
@every_page
def test_a_page_does_what_it_says(page: Path, page_run: Callable[[Path], PageRun]) -> None:
    run = page_run(page)

    run.run()

    for block, reason in run.skipped:
        print(f"not run: {block.where}: {reason}")


@every_page
def test_flags_in_the_text_are_real(page: Path) -> None:
    wrong = []
    for code in code_in_text(page):
        words = code.split()
        if words and words[0] in OTHER_PROGRAMS:
            continue
        name = words[1] if words[:1] == ["stampede"] and len(words) > 1 else words[0] if words else ""
        known = flags_of(name) if name in COMMANDS else ALL_FLAGS | OF_OTHER_PROGRAMS
        wrong += [
            f"`{code}`: {flag}" for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", code) if flag not in known
        ]

    assert not wrong


@every_page
def test_make_targets_and_scripts_of_a_page_are_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in blocks_of(page):
        if block.language != "sh":
            continue
        for program, *words in commands_in(block.text):
            if program == "make":
                named = [word for word in words if "=" not in word]
                assert set(named) <= targets, block.where
            if program == "python" and words[0] == "-m" and words[1].startswith("benchmarks."):
                source = _source(ROOT / words[1].replace(".", "/"))
                assert all(flag in source for flag in words if flag.startswith("--")), block.where
            if program == "python" and words[0].startswith("benchmarks/"):
                source = _source(ROOT / words[0].removesuffix(".py"))
                assert all(flag in source for flag in words if flag.startswith("--")), block.where


def _source(module: Path) -> str:
    """Return the text of a module, or of all files of a package."""
    files = sorted(module.glob("*.py")) if module.is_dir() else [module.with_suffix(".py")]
    return "\n".join(file.read_text() for file in files)


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for target in links_of(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if str(file).startswith(str(ROOT / "docs")) and str(file.relative_to(ROOT / "docs")) in GENERATED:
            continue  # the strict build of the site looks at these
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(target)

    assert not broken
