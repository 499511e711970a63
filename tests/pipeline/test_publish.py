"""A dataset appears whole or not at all, and a dead builder leaves nothing that opens or stays."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.logs import DATA, KEEP_ALL, SMALL, good_rows, parts, write

from stampede import DatasetError, InputError
from stampede.pipeline import Dataset, prepare, publish
from stampede.pipeline.publish import building


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(tmp_path / "log.tsv", good_rows(20))


@pytest.fixture
def other_log(tmp_path: Path) -> Path:
    return write(tmp_path / "other.tsv", good_rows(30))


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def rows_in(out: Path) -> int:
    dataset = Dataset.open(out)
    return sum(frame.height for frame in parts(dataset).values())


def test_an_existing_folder_is_an_error_that_names_the_way_out(log: Path, tmp_path: Path) -> None:
    prepare(SMALL, [log], tmp_path / "out", options=KEEP_ALL)

    with pytest.raises(DatasetError, match=r"out exists: choose another --out, or replace it with --force"):
        prepare(SMALL, [tmp_path / "not even there"], tmp_path / "out", options=KEEP_ALL)


def test_a_dataset_is_made_with_the_folders_above_it(log: Path, tmp_path: Path) -> None:
    dataset = prepare(SMALL, [log], tmp_path / "a" / "b" / "out", options=KEEP_ALL)

    assert dataset.rows == {"train": 20}
    assert {path.name for path in dataset.path.iterdir()} == {"manifest.json", "train", "vocab"}
    assert dataset.path.stat().st_mode & 0o777 == 0o777 & ~current_umask()
    assert not hidden(dataset.path.parent)


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("exchange", ["in one step", "by two renames"])
def test_force_replaces_a_dataset(
    exchange: str, log: Path, other_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exchange == "by two renames":
        monkeypatch.setattr(publish, "_exchange", lambda one, other: False)
    out = tmp_path / "out"
    prepare(SMALL, [log], out, options=KEEP_ALL)

    prepare(SMALL, [other_log], out, options=KEEP_ALL, force=True)

    assert rows_in(out) == 30
    assert not hidden(tmp_path)


def test_the_file_system_of_the_tests_can_exchange_folders(tmp_path: Path) -> None:
    (tmp_path / "a" / "in a").mkdir(parents=True)
    (tmp_path / "b").mkdir()

    if not publish._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this system has no RENAME_EXCHANGE")
    assert (tmp_path / "b" / "in a").is_dir()


@pytest.mark.parametrize("force", [True, False])
def test_force_makes_a_dataset_where_none_was_and_in_an_empty_folder(
    force: bool, log: Path, tmp_path: Path
) -> None:
    if force:
        (tmp_path / "out").mkdir()

    assert prepare(SMALL, [log], tmp_path / "out", options=KEEP_ALL, force=force).rows == {"train": 20}


def test_force_does_not_replace_a_folder_of_another_kind(log: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    write(tmp_path / "home" / "thesis.txt", ["years of work"])

    with pytest.raises(
        DatasetError, match=r"home is not a folder that --force replaces \(it holds thesis.txt\)"
    ):
        prepare(SMALL, [log], tmp_path / "home", options=KEEP_ALL, force=True)
    assert (tmp_path / "home" / "thesis.txt").exists()


@pytest.mark.parametrize("damage", ["no manifest", "no rows"])
def test_force_replaces_a_damaged_dataset(damage: str, log: Path, tmp_path: Path) -> None:
    out = prepare(SMALL, [log], tmp_path / "out", options=KEEP_ALL).path
    if damage == "no manifest":
        (out / "manifest.json").unlink()
    else:
        shutil.rmtree(out / "train")

    prepare(SMALL, [log], out, options=KEEP_ALL, force=True)

    assert rows_in(out) == 20


@pytest.mark.parametrize("force", [True, False])
def test_a_file_or_link_is_never_replaced(force: bool, log: Path, tmp_path: Path) -> None:
    write(tmp_path / "file", ["x"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    for name, reason in (
        ("file", "exists and is not a folder: choose another --out"),
        ("link", "is a link: name the folder itself"),
        ("dangling", "is a link: name the folder itself"),
    ):
        with pytest.raises(DatasetError, match=f"{name} {reason}"):
            prepare(SMALL, [log], tmp_path / name, options=KEEP_ALL, force=force)


def test_the_working_folder_is_not_replaced(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = prepare(SMALL, [log], tmp_path / "out", options=KEEP_ALL)
    for inside, name in ((dataset.path, "."), (dataset.path / "train", "..")):
        monkeypatch.chdir(inside)
        with pytest.raises(DatasetError, match="out holds the working folder: run this from outside of it"):
            prepare(SMALL, [log], name, options=KEEP_ALL, force=True)
    assert Dataset.open(dataset.path).fingerprint == dataset.fingerprint
    assert (
        prepare(SMALL, [log], tmp_path / "out" / ".." / "other", options=KEEP_ALL).path == tmp_path / "other"
    )


class Failing:
    """Progress that fails at a stage, as an interrupt or a bug would."""

    def __init__(self, stage: str, error: BaseException) -> None:
        self.stage, self.error = stage, error

    def start(self, stage: str, total: int | None) -> None:
        if stage == self.stage:
            raise self.error

    def advance(self, rows: int) -> None:
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("bug")], ids=["interrupt", "bug"])
@pytest.mark.parametrize("stage", ["read", "fit", "encode"])
def test_an_error_midway_leaves_the_old_dataset_and_nothing_else(
    stage: str, error: BaseException, log: Path, other_log: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    prepare(SMALL, [log], out, options=KEEP_ALL)

    with pytest.raises(type(error)):
        prepare(SMALL, [other_log], out, options=KEEP_ALL, force=True, progress=Failing(stage, error))

    assert rows_in(out) == 20
    assert not hidden(tmp_path)


def test_a_bad_row_leaves_the_old_dataset_and_nothing_else(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(SMALL, [log], out, options=KEEP_ALL)

    with pytest.raises(InputError):
        prepare(SMALL, [write(tmp_path / "bad.tsv", ["x"])], out, options=KEEP_ALL, force=True)

    assert rows_in(out) == 20
    assert not hidden(tmp_path)


SLOW_BUILDER = """
import sys, time
from pathlib import Path
from stampede.pipeline import PrepareOptions, Schema, SplitRule, prepare

class Sleeper:
    def start(self, stage, total):
        if stage == "encode":
            Path(sys.argv[3]).touch()
            time.sleep(60)

    def advance(self, rows):
        pass

schema = Schema(name="small", label="y", dense=("n", "m"), categorical=("a", "b"))
options = PrepareOptions(split=SplitRule(valid_fraction=0, test_fraction=0))
prepare(schema, [sys.argv[1]], sys.argv[2], options=options, force=True, progress=Sleeper())
"""


@pytest.fixture
def builder(log: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that is in the middle of preparing ``out``."""
    command = [sys.executable, "-c", SLOW_BUILDER, str(log), str(tmp_path / "out"), str(tmp_path / "sign")]
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "sign").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
        process.kill()


def test_a_killed_builder_leaves_nothing_that_opens_and_the_next_one_cleans_up(
    builder: subprocess.Popen[bytes], log: Path, tmp_path: Path
) -> None:
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert len(hidden(tmp_path)) == 1
    with pytest.raises(DatasetError):
        Dataset.open(tmp_path / "out")
    with pytest.raises(DatasetError, match=r"has no manifest\.json"):
        Dataset.open(tmp_path / hidden(tmp_path)[0])

    prepare(SMALL, [log], tmp_path / "out", options=KEEP_ALL)

    assert rows_in(tmp_path / "out") == 20
    assert not hidden(tmp_path)


def test_a_living_builder_is_not_taken_for_a_dead_one(
    builder: subprocess.Popen[bytes], log: Path, tmp_path: Path
) -> None:
    before = hidden(tmp_path)

    prepare(SMALL, [log], tmp_path / "out", options=KEEP_ALL)

    assert hidden(tmp_path) == before
    assert builder.poll() is None


class Death(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("survived", [1, 2])
def test_a_death_between_two_renames_leaves_a_dataset_that_opens(
    survived: int, log: Path, other_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    prepare(SMALL, [log], out, options=KEEP_ALL)
    rename = Path.rename
    renames: list[Path] = []

    def deadly_rename(self: Path, target: Path) -> Path:
        if len(renames) == survived:
            raise Death
        renames.append(self)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(publish, "_exchange", lambda one, other: False)
        patch.setattr(Path, "rename", deadly_rename)
        patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        with pytest.raises(Death):
            prepare(SMALL, [other_log], out, options=KEEP_ALL, force=True)

    assert rows_in(out) == {1: 20, 2: 30}[survived]
    prepare(SMALL, [log], out, options=KEEP_ALL, force=True)
    assert rows_in(out) == 20
    assert not hidden(tmp_path)


def test_a_reader_that_finishes_an_exchange_does_not_disturb_its_builder(
    log: Path, other_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    prepare(SMALL, [log], out, options=KEEP_ALL)
    rename = Path.rename

    def watched_rename(self: Path, target: Path) -> Path:
        result = rename(self, target)
        if self == out:
            assert rows_in(out) == 30
        return result

    monkeypatch.setattr(publish, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", watched_rename)
    prepare(SMALL, [other_log], out, options=KEEP_ALL, force=True)

    assert rows_in(out) == 30
    assert not hidden(tmp_path)


def test_two_builders_of_one_place_do_not_mix(tmp_path: Path) -> None:
    def build_both() -> None:
        with building(tmp_path / "out") as first:
            (first / "one").touch()
            with building(tmp_path / "out") as second:
                (second / "two").touch()

    with pytest.raises(DatasetError, match="exists"):
        build_both()

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["two"]
    assert not hidden(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_whoever_meets_it(code: int, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"the disk of {tmp_path} is full"), building(tmp_path / "out"):
        raise OSError(code, os.strerror(code))
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(log: Path, tmp_path: Path) -> None:
    for place in ("/proc/stampede/out", f"{log}/out", f"{tmp_path}/{'x' * 300}"):
        with pytest.raises(DatasetError, match=f"cannot write {place}: "):
            prepare(SMALL, [log], place, options=KEEP_ALL)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent_is_named(log: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)

    with pytest.raises(DatasetError, match="Permission denied"):
        prepare(SMALL, [log], tmp_path / "locked" / "out", options=KEEP_ALL)


ON_SMALL_DISK = """
import os, subprocess, sys
from stampede import DatasetError
from stampede.pipeline import Dataset, Schema, prepare

folder, log, excerpt = sys.argv[1:4]
sizes = [int(size) for size in sys.argv[4:]]
criteo = Schema.preset("criteo")
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
old = prepare(criteo, [excerpt], folder + "/out")
for size in sizes:
    subprocess.run(["mount", "-o", f"remount,size={size}k", folder], check=True)
    try:
        old = prepare(criteo, [log], folder + "/out", force=True)
        print("made", flush=True)
    except DatasetError as error:
        print(error, flush=True)
        assert Dataset.open(folder + "/out").fingerprint == old.fingerprint
    assert os.listdir(folder) == ["out"]
"""


def can_mount() -> bool:
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small disk")
def test_a_full_disk_leaves_the_old_dataset_and_nothing_else(tmp_path: Path) -> None:
    logs = [DATA / "criteo_9k.tsv.gz", DATA / "criteo_excerpt.tsv"]
    sizes = ["500", "1000", "1200", "1600", "1800", "1900", "64000"]  # KiB

    out = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", ON_SMALL_DISK, tmp_path, *logs, *sizes],
        capture_output=True,
        text=True,
        check=False,
    )

    assert out.stderr == ""
    *refusals, last = out.stdout.splitlines()
    message = f"the disk of {tmp_path} is full: make room or choose another place"
    assert set(refusals[:3]) == {message}
    assert set(refusals) <= {message, "made"}
    assert last == "made"


def test_names_of_the_folder_and_its_neighbours_do_not_matter(log: Path, tmp_path: Path) -> None:
    neighbours = [".out[1].building-x", ".out1.building-abc", "out[1].ready", ".out1.ready"]
    for name in neighbours[1:]:
        (tmp_path / name).mkdir()

    prepare(SMALL, [log], tmp_path / "out[1]", options=KEEP_ALL)

    assert rows_in(tmp_path / "out[1]") == 20
    assert all((tmp_path / name).is_dir() for name in neighbours[1:])
