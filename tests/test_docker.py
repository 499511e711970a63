"""The Dockerfile and docker-compose.yml, checked without a docker engine.

Schemas and linters find what is no Dockerfile and no compose file. The rest is whether what they say is true
of this repository: the files that they copy are there, and every command in them runs.
"""

from __future__ import annotations

import fnmatch
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from ruamel.yaml import YAML

from stampede.cli.app import app

if TYPE_CHECKING:
    from tests.conftest import Command

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
COMPOSE_FILE = ROOT / "docker-compose.yml"
COMPOSE: dict[str, Any] = YAML(typ="safe").load(COMPOSE_FILE)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = sorted(ROOT.glob("Dockerfile*"))
PAGES = [COMPOSE_FILE, *DOCKERFILES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GPU_SERVICES = ("prepare", "train", "evaluate", "predict", "doctor", "demo")


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions in order: the word and the rest, continued lines joined."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [(word, rest) for word, rest in pairs]


def copied(dockerfile: Path) -> list[str]:
    """Return what a Dockerfile copies out of the build context."""
    sources = []
    for word, rest in instructions(dockerfile):
        flags = [part for part in rest.split() if part.startswith("--")]
        if word in {"COPY", "ADD"} and not any(flag.startswith("--from=") for flag in flags):
            sources += rest.split()[len(flags) : -1]
    return sources


def expanded(text: str) -> str:
    """Return a text of the compose file with the default of each ``${NAME:-default}``."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return the folder or file of the host behind each path of a service that is mounted."""
    return {volume["target"]: expanded(volume["source"]) for volume in service.get("volumes", ())}


def arguments(name: str) -> list[str]:
    """Return what a service runs."""
    return [*SERVICES[name]["entrypoint"], *SERVICES[name].get("command", ())]


def parse(command: list[str]) -> None:
    """Hold the words after ``stampede`` against the real command line, without running them."""
    group: Any = typer.main.get_command(app)
    name, *rest = command
    assert name in group.commands, f"stampede has no command {name}"
    with group.commands[name].make_context(name, rest):
        pass


class TestComposeFile:
    def test_fits_the_compose_specification(self) -> None:
        command = [
            str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE_FILE),
        ]  # fmt: skip

        answer = subprocess.run(command, capture_output=True, text=True, check=False)

        assert answer.returncode == 0, answer.stdout

    def test_no_key_comes_from_two_merged_blocks(self) -> None:
        merged = re.findall(r"^  ([\w-]+): \{ <<: \[(.*)\] \}$", COMPOSE_FILE.read_text(), re.MULTILINE)
        keys = {
            name: sum(len(COMPOSE[f"x-{block.strip(' *')}"]) for block in blocks.split(","))
            for name, blocks in merged
        }

        assert keys == {name: len(service) for name, service in SERVICES.items()}

    def test_every_job_has_a_service_with_a_gpu_and_a_twin_without(self) -> None:
        assert set(SERVICES) == {*GPU_SERVICES, *(f"{name}-cpu" for name in GPU_SERVICES)}
        for name in GPU_SERVICES:
            gpu, cpu = SERVICES[name], SERVICES[f"{name}-cpu"]
            (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
            assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
            assert "deploy" not in cpu
            assert (gpu["profiles"], cpu["profiles"]) == (["gpu"], ["cpu"])
            same = ("entrypoint", "command", "volumes", "user", "init")
            assert [gpu.get(key) for key in same] == [cpu.get(key) for key in same]

    @pytest.mark.parametrize("name", SERVICES)
    def test_refers_to_what_exists(self, name: str) -> None:
        service = SERVICES[name]
        build = service["build"]
        dockerfile = ROOT / build["context"] / build["dockerfile"]
        declared = {rest.partition("=")[0] for word, rest in instructions(dockerfile) if word == "ARG"}
        names = {rest.split(" AS ")[1] for word, rest in instructions(dockerfile) if word == "FROM"}

        assert set(service.get("depends_on", ())) <= set(SERVICES)
        assert set(build["args"]) <= declared
        assert f"{build['args']['DEVICE']}-python" in names
        for source in mounts(service).values():
            assert source in {"./data", "./runs"} or (ROOT / source).exists()

    @pytest.mark.parametrize("name", SERVICES)
    def test_reads_and_writes_in_mounted_folders_alone(self, name: str) -> None:
        paths = [word for word in SERVICES[name].get("command", ()) if "/" in word]

        for path in paths:
            inside = Path("/workspace", path)
            assert inside.is_relative_to("/tmp") or any(
                inside.is_relative_to(at) for at in mounts(SERVICES[name])
            )

    @pytest.mark.parametrize("name", SERVICES)
    def test_runs_a_real_command_with_real_flags(self, name: str) -> None:
        if arguments(name)[0] == "stampede":
            parse(arguments(name)[1:])
        else:
            program, script, *_ = arguments(name)
            assert program == "sh"
            assert (ROOT / mounts(SERVICES[name])[script]).name == "demo.sh"


class TestWhatTheServicesRun:
    """The commands of the compose file outside docker, on small data in the places that they name."""

    def test_prepare_train_evaluate_predict(
        self, stampede: Command, small_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "runs").mkdir()
        shutil.copy(small_log, tmp_path / "data" / "train.txt")
        shutil.copy(small_log, tmp_path / "data" / "test.txt")
        monkeypatch.chdir(tmp_path)

        for name in ("prepare", "train", "evaluate", "predict"):
            answer = stampede(*arguments(name)[1:])
            assert answer.code == 0, answer.err

        assert (tmp_path / "runs" / "scores.parquet").is_file()

    def test_doctor(self, stampede: Command) -> None:
        assert stampede(*arguments("doctor")[1:]).code == 0

    def test_demo(self, small_log: Path, tmp_path: Path) -> None:
        """Lay the mounted files out as in the container, and run the script where it lies there."""
        for target, source in mounts(SERVICES["demo"]).items():
            place = tmp_path / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_file():
                shutil.copy(ROOT / source, place)
            else:
                place.mkdir()
        rows = tmp_path / "demo" / "tests" / "data" / "criteo_9k.tsv.gz"
        rows.write_bytes(gzip.compress(b"".join(small_log.read_bytes().splitlines(keepends=True)[:600])))
        program, script, out = arguments("demo")
        command = [program, str(tmp_path / script.lstrip("/")), str(tmp_path / out.lstrip("/"))]
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"

        answer = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

        assert answer.returncode == 0, answer.stderr
        assert "AUC" in answer.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
class TestDockerfile:
    def test_hadolint_finds_nothing(self, dockerfile: Path) -> None:
        command = [str(BIN / "hadolint"), "--no-color", str(dockerfile)]

        answer = subprocess.run(command, capture_output=True, text=True, check=False)

        assert answer.returncode == 0, answer.stdout

    def test_bases_are_pinned_to_a_version(self, dockerfile: Path) -> None:
        bases = [rest.split(" AS ") for word, rest in instructions(dockerfile) if word == "FROM"]
        stages = {name for _, name in bases}

        for base, _ in bases:
            options = [base.replace("${DEVICE}", device) for device in ("cpu", "gpu")]
            assert set(options) <= stages or re.search(r":\d+\.\d+[\w.-]*$", base)

    def test_copies_files_that_exist_and_are_not_ignored(self, dockerfile: Path) -> None:
        lines = (ROOT / ".dockerignore").read_text().splitlines()
        rules = [line for line in lines if line and not line.startswith("#")]

        for source in copied(dockerfile):
            name = source.rstrip("/")
            last = [rule for rule in rules if fnmatch.fnmatch(name, rule.lstrip("!"))][-1]
            assert last.startswith("!"), f".dockerignore leaves {name} out"
            assert (ROOT / name).exists()

    def test_stages_take_files_from_stages_before_them(self, dockerfile: Path) -> None:
        before: list[str] = []
        for word, rest in instructions(dockerfile):
            for stage in re.findall(r"from=([\w-]+)", rest):
                assert stage in before[:-1]
            if word == "FROM":
                before.append(rest.split(" AS ")[1])

    def test_copied_files_are_all_that_the_command_needs(self, dockerfile: Path, tmp_path: Path) -> None:
        for name in copied(dockerfile):
            source, place = ROOT / name, tmp_path / name.rstrip("/")
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(source, place, symlinks=True, ignore=ignore)
            else:
                shutil.copy(source, place)
        links = list((tmp_path / "src" / "stampede").iterdir())
        assert [link.name for link in links if not link.exists()] == []
        code = (
            f"import sys; sys.path.insert(0, {str(tmp_path / 'src')!r}); import stampede; "
            f"assert stampede.__file__.startswith({str(tmp_path)!r}); "
            "from stampede.cli import main; main(['scale', '--recipe', 'avazu', '--json'])"
        )

        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert json.loads(answer.stdout)["batch_size"] == 1024
        project = (tmp_path / "pyproject.toml").read_text()
        for named in re.findall(r'"((?:README|LICENSE)[\w.]*)"', project):
            assert (tmp_path / named).is_file()

    def test_lists_the_dependencies_of_the_project(self, dockerfile: Path, tmp_path: Path) -> None:
        shutil.copy(ROOT / "pyproject.toml", tmp_path)
        (listing,) = [rest for word, rest in instructions(dockerfile) if word == "RUN" and "tomllib" in rest]
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"

        subprocess.run(["sh", "-c", listing], cwd=tmp_path, env={"PATH": path}, check=True)

        listed = (tmp_path / "requirements.txt").read_text().split()
        assert {re.split(r"\W", line)[0] for line in listed} >= {"numpy", "polars", "torch", "typer"}

    def test_runs_as_an_ordinary_user_with_a_health_check(self, dockerfile: Path) -> None:
        words = instructions(dockerfile)
        last = dict(words[[word for word, _ in words].index("FROM") :])  # of each word, the last

        assert int(last["USER"]) > 0
        assert json.loads(last["ENTRYPOINT"]) == ["stampede"]
        health = json.loads(last["HEALTHCHECK"].split("CMD ", 1)[1])
        done = subprocess.run([BIN / health[0], *health[1:]], capture_output=True, check=False)
        assert done.returncode == 0


def commands_of(page: Path) -> list[list[str]]:
    """Return the ``docker compose run`` commands that a page shows."""
    lines = re.findall(r"docker compose run --rm ([^`\n#]+)", page.read_text())
    return [shlex.split(re.split(r" {2,}|…", line)[0]) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_compose_commands_in_a_page_are_real(page: Path) -> None:
    for name, *given in commands_of(page):
        assert name in SERVICES
        if given and SERVICES[name]["entrypoint"][0] == "stampede":
            parse([*SERVICES[name]["entrypoint"][1:], *given])
