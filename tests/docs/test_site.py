"""The site builds without a warning, has what it should have, and fetches nothing."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.docs.command_lines import COMMANDS
from tests.docs.runner import ROOT

PYTHON_PAGES = {
    "pipeline": "stampede.pipeline",
    "kernels": "stampede.kernels",
    "optim": "stampede.training.optim",
    "models": "stampede.training.models",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Fetched(HTMLParser):
    """Collects what a browser fetches by itself to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and values.get("src"):
            self.urls.append(str(values["src"]))
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.urls.append(str(values["href"]))


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = Fetched()
        fetched.feed(page.read_text())

        assert fetched.urls
        assert not [url for url in fetched.urls if re.match(r"(https?:)?//", url)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text()), style


def test_every_command_and_flag_is_described(site: Path) -> None:
    page = (site / "reference" / "cli" / "index.html").read_text()

    for name, command in COMMANDS.items():
        assert f'<h2 id="{name}">' in page
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert f'id="{name}{parameter.opts[0]}"' in page


@pytest.mark.parametrize(("page", "module"), PYTHON_PAGES.items())
def test_every_public_name_is_described(site: Path, page: str, module: str) -> None:
    text = (site / "reference" / "python" / page / "index.html").read_text()

    for name in importlib.import_module(module).__all__:
        assert re.search(rf'id="{module}\.(\w+\.)*{name}"', text), name


def test_every_job_is_described(site: Path) -> None:
    text = (site / "reference" / "python" / "workflows" / "index.html").read_text()

    assert {"run_prepare", "run_train", "run_evaluate", "run_predict"} <= set(re.findall(r"run_\w+", text))


def test_docstrings_are_shown_as_markdown(site: Path) -> None:
    for page in (site / "reference" / "python").rglob("*.html"):
        assert not re.search(r":(class|func|mod|data|attr):<", page.read_text()), page


def test_every_recipe_and_its_values_are_shown(site: Path) -> None:
    text = (site / "reference" / "recipes" / "index.html").read_text()

    for recipe in (ROOT / "workflows" / "recipes").glob("*.toml"):
        assert f"{recipe.name}</h3>" in text or f"{recipe.name}<a" in text
