"""The runner of the pages finds what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.command_lines import examples_of, faults_of, stampede_commands
from tests.docs.pages import PageError, blocks_of
from tests.docs.runner import BlockFailed, PageRun

Run = Callable[[str], PageRun]


@pytest.fixture
def run(tmp_path: Path, page_run: Callable[[Path], PageRun]) -> Run:
    """Run a page of the given text."""

    def run(text: str) -> PageRun:
        page = tmp_path / "page.md"
        page.write_text(text)
        made = page_run(page)
        made.run()
        return made

    return run


def test_blocks_run_in_order_in_one_folder(run: Run) -> None:
    done = run(
        "```sh\necho one > file\n```\n\n"
        "```python\nx = open('file').read()\n```\n\n"
        "```python\nassert x.strip() == 'one'\n```\n"
    )

    assert [block.language for block in done.ran] == ["sh", "python", "python"]


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("```sh\nfalse\n```", "exit code 1, not 0"),
        ("```sh\nfalse | true\n```", "exit code 1, not 0"),
        ("```sh\nfalse\ntrue\n```", "exit code 1, not 0"),
        ("<!-- test: exit 3 -->\n```sh\ntrue\n```", "exit code 0, not 3"),
        ("```python\nraise ValueError('oh')\n```", "ValueError: oh"),
        ("```toml\nkey = = 3\n```", "no toml"),
        ("```json\n{key: 3}\n```", "no json"),
        ("```sh\nstampede scale --batchsize 3\n```", "No such option"),
        ("```sh\nstampede trane\n```", "no command trane"),
        ("```sh\nstampede scale --rule cubic\n```", "cubic"),
        ("<!-- test: skip 'no time' -->\n```sh\nstampede scale --batchsize 3\n```", "No such option"),
        ("<!-- test: replace 'batchs' 'batch-s' -->\n```sh\nstampede scale --batchsize 3\n```", "No such"),
        ("```sh\necho AUC 0.71\n```\n\n```text\nlogloss 0.44\n```", "logloss"),
        ("<!-- test: output x -->", "stands before no block"),
        ("```sh\necho 0.71\n```\n\n<!-- test: output exact -->\n```text\n0.72\n```", "not what was printed"),
        ('<!-- test: background "http://127.0.0.1:$PORT/" -->\n```sh\nfalse\n```', "nothing answers"),
    ],
)  # fmt: skip
def test_what_a_page_says_and_does_not_do_is_found(run: Run, page: str, says: str) -> None:
    with pytest.raises((BlockFailed, PageError), match=says):
        run(page + "\n")


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("```bash\ntrue\n```", "language 'bash'"),
        ("```\ntrue\n```", "language ''"),
        ("Text.\n\n    stampede scale\n", "an indented block"),
        ("<!-- test: sikp 'no' -->\n```sh\ntrue\n```", "unknown directive 'sikp'"),
        ("<!-- test: skip -->\n```sh\ntrue\n```", "skip with 0 words"),
        ("<!-- test: skip 'no' -->\n\nText.\n\n```sh\ntrue\n```", "stands before no block"),
        ("<!-- test: replace 'a' 'b' -->\n```sh\ntrue\n```".replace("true", "echo x"), "nothing to replace"),
        ("```sh\ntrue\n```\n\n<!-- test: output free -->\n```text\nx\n```", "says no reason"),
    ],
)
def test_nothing_is_left_out_in_silence(run: Run, page: str, says: str) -> None:
    with pytest.raises(PageError, match=says):
        run(page + "\n")


def test_what_was_skipped_is_told_with_its_reason(run: Run) -> None:
    done = run("<!-- test: skip 'needs a GPU' -->\n```sh\nexit 1\n```\n")

    assert [reason for _, reason in done.skipped] == ["needs a GPU"]
    assert not done.ran


def test_a_server_in_the_background_answers_and_is_stopped(run: Run) -> None:
    page = (
        '<!-- test: background "http://127.0.0.1:$PORT/" -->\n'
        "```sh\npython -m http.server --bind 127.0.0.1 $PORT\n```\n\n"
        "```sh\ncurl -sf http://127.0.0.1:$PORT/ > page.html\n```\n"
    )

    done = run(page)

    assert (done.folder / "page.html").stat().st_size > 0
    assert not done._running


def test_command_lines_are_cut_at_pipes_and_joined_at_backslashes() -> None:
    text = (
        "A=1 stampede scale \\\n  --json | tail -n 1 > out  # stampede nothing\n"
        "stampede doctor && stampede scale\n"
    )

    assert stampede_commands(text) == [["scale", "--json"], ["doctor"], ["scale"]]


def test_examples_of_a_command_are_found() -> None:
    assert examples_of("evaluate")[0] == "stampede evaluate runs/deepfm --split test"
    assert not faults_of(["evaluate", "runs/deepfm", "--split", "test"])
    assert faults_of(["evaluate", "runs/deepfm", "--spilt", "test"])


def test_directives_belong_to_the_next_block_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- test: exit 1 -->\n```sh\nfalse\n```\n\n```sh\ntrue\n```\n")

    first, second = blocks_of(page)

    assert first.one("exit") == ("1",)
    assert second.one("exit") is None
