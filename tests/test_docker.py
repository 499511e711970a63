"""The Dockerfile and docker-compose.yml, checked without a docker engine.

Schemas and linters find what is no Dockerfile and no compose file. The rest is whether what they say is true
of this repository: the files that they copy are there, and every command in them runs. That the checks find
faults is tested too, on files with one fault each.
"""

from __future__ import annotations

import ast
import copy
import fnmatch
import gzip
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import typer
from ruamel.yaml import YAML

from stampede.cli.app import app
from stampede.pipeline import engine_nvtabular
from stampede.pipeline.engine_nvtabular import NVTabularEngine

if TYPE_CHECKING:
    from tests.conftest import Command

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
COMPOSE_FILE = ROOT / "docker-compose.yml"
COMPOSE: dict[str, Any] = YAML(typ="safe").load(COMPOSE_FILE)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = sorted(ROOT.glob("Dockerfile*"))
PAGES = [COMPOSE_FILE, *DOCKERFILES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GPU_SERVICES = ("prepare", "train", "evaluate", "predict", "serve", "doctor", "demo")
PROFILES = {
    **{name: "gpu" for name in GPU_SERVICES},
    **{f"{name}-cpu": "cpu" for name in GPU_SERVICES},
    "tensorboard": "cpu",
    "nvtabular": "nvtabular",
    **{f"{name}-multi-gpu": "multi-gpu" for name in ("prepare", "nvtabular")},
}
IMAGES = {"stampede:gpu": "gpu", "stampede:cpu": "cpu", "stampede:nvtabular": "merlin"}

HAS_NVTABULAR = NVTabularEngine.of_environment().python is not None
needs_nvtabular = pytest.mark.skipif(
    not HAS_NVTABULAR,
    reason="NVTabular's environment is not there: make env-nvtabular",
)


def asked(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a linter that is installed with the tests."""
    program, *rest = map(str, command)
    return subprocess.run([str(BIN / program), *rest], capture_output=True, text=True, check=False)


def against_the_specification(compose_file: Path) -> subprocess.CompletedProcess[str]:
    """Hold a compose file against the schema of the compose specification."""
    return asked("check-jsonschema", "--builtin-schema", "vendor.compose-spec", compose_file)


def linted(dockerfile: Path) -> subprocess.CompletedProcess[str]:
    """Lint a Dockerfile."""
    return asked("hadolint", "--no-color", dockerfile)


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


def stages(dockerfile: Path) -> dict[str, str]:
    """Return the base of each stage of a Dockerfile."""
    pairs = [rest.split(" AS ") for word, rest in instructions(dockerfile) if word == "FROM"]
    return {stage: base for base, stage in pairs}


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return the folder or file of the host behind each path of a service that is mounted."""
    return {volume["target"]: expanded(volume["source"]) for volume in service.get("volumes", ())}


def arguments(service: dict[str, Any]) -> list[str]:
    """Return what a service runs."""
    return [*service["entrypoint"], *service.get("command", ())]


def parse(command: list[str]) -> None:
    """Hold the words after ``stampede`` against the real command line, without running them."""
    group: Any = typer.main.get_command(app)
    name, *rest = command
    assert name in group.commands, f"stampede has no command {name}"
    with group.commands[name].make_context(name, rest):
        pass


def scalars(url: str, run: str) -> dict[str, Any]:
    """Ask TensorBoard for the names of a run's scalars until it has read them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError), urlopen(url, timeout=5) as answer:
            runs: dict[str, dict[str, Any]] = json.load(answer)
            if "result/test/auc" in runs.get(run, {}):
                return runs[run]
        time.sleep(0.2)
    raise AssertionError("TensorBoard did not show the run in time")


def faults(services: dict[str, dict[str, Any]]) -> list[str]:
    """Return what a schema cannot see: what the services refer to is not there, or not what was meant."""
    found = []
    for name, service in services.items():
        build = service["build"]
        dockerfile = ROOT / build["context"] / build["dockerfile"]
        if not dockerfile.is_file():
            found.append(f"{name}: no {build['dockerfile']}")
            continue
        declared = {rest.partition("=")[0] for word, rest in instructions(dockerfile) if word == "ARG"}
        base = build["args"]["BASE"]
        found += [f"{name}: no build argument {arg}" for arg in set(build["args"]) - declared]
        if f"{base}-python" not in stages(dockerfile):
            found.append(f"{name}: no stage for {base}")
        if IMAGES.get(service["image"]) != base:
            found.append(f"{name}: {service['image']} is another image")
        if service.get("profiles") != [PROFILES.get(name)]:
            found.append(f"{name}: profiles {service.get('profiles')}")
        if re.match(r"(0|root)?(:|$)", expanded(service.get("user", ""))):
            found.append(f"{name}: runs as root")
        found += [
            f"{name}: no service {other}" for other in service.get("depends_on", ()) if other not in services
        ]
        found += [
            f"{name}: no {source}"
            for source in mounts(service).values()
            if source not in {"./data", "./runs"} and not (ROOT / source).exists()
        ]
        for word in service.get("command", ()):
            inside = Path("/workspace", word)
            places = [Path("/tmp"), *map(Path, mounts(service))]
            if "/" in word and not any(inside.is_relative_to(place) for place in places):
                found.append(f"{name}: {word} is in no mounted folder")
        program, *rest = arguments(service)
        if program == "stampede":
            try:
                parse(rest)
            except Exception as error:
                found.append(f"{name}: {error}")
        elif program == "tensorboard":
            if Path(mounts(service).get(f"/workspace/{rest[1]}", "")).name != "runs":
                found.append(f"{name}: {rest[1]} is not the folder of the runs")
        elif (program, Path(mounts(service).get(rest[0], "")).name) != ("sh", "demo.sh"):
            found.append(f"{name}: runs {program} {rest[0]}")
    return found


class TestComposeFile:
    def test_fits_the_compose_specification(self) -> None:
        answer = against_the_specification(COMPOSE_FILE)

        assert answer.returncode == 0, answer.stdout

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ("command:", "comand:"),
            ("reservations:", "reservation:"),
            ("capabilities: [gpu]", "capabilities: gpu"),
            ("count: all", "count: [all]"),
        ],
    )
    def test_a_mistake_does_not_fit_it(self, right: str, wrong: str, tmp_path: Path) -> None:
        text = COMPOSE_FILE.read_text()
        assert right in text
        broken = tmp_path / COMPOSE_FILE.name
        broken.write_text(text.replace(right, wrong))

        assert against_the_specification(broken).returncode == 1

    def test_no_key_comes_from_two_blocks(self) -> None:
        line = re.compile(r"^  ([\w-]+): \{ (?:(\w+): \[[\w-]+\], )?<<: \[(.*)\] \}$", re.MULTILINE)
        keys = {}
        for name, own, blocks in line.findall(COMPOSE_FILE.read_text()):
            merged = [key for block in blocks.split(",") for key in COMPOSE[f"x-{block.strip(' *')}"]]
            keys[name] = sorted([*merged, own] if own else merged)

        assert keys == {name: sorted(service) for name, service in SERVICES.items()}

    def test_every_job_has_a_service_with_a_gpu_and_a_twin_without(self) -> None:
        assert set(SERVICES) == set(PROFILES)
        for name in GPU_SERVICES:
            gpu, cpu = SERVICES[name], SERVICES[f"{name}-cpu"]
            same = ("entrypoint", "command", "volumes", "user", "init")
            assert [gpu.get(key) for key in same] == [cpu.get(key) for key in same]

    @pytest.mark.parametrize("name", SERVICES)
    def test_reserves_the_gpus_that_its_name_says(self, name: str) -> None:
        resources = SERVICES[name].get("deploy", {}).get("resources", {})
        devices = resources.get("reservations", {}).get("devices", [])

        if PROFILES[name] == "cpu":
            assert devices == []
        else:
            count = "all" if name.endswith("-multi-gpu") else 1
            assert devices == [{"driver": "nvidia", "count": count, "capabilities": ["gpu"]}]

    def test_no_service_trains_on_several_gpus(self) -> None:
        several = [service for name, service in SERVICES.items() if name.endswith("-multi-gpu")]

        assert {word for service in several for word in arguments(service)}.isdisjoint({"train"})

    def test_refers_to_what_exists_and_runs_real_commands(self) -> None:
        assert faults(SERVICES) == []

    @pytest.mark.parametrize(
        ("name", "spoil", "fault"),
        [
            ("train", lambda s: s["build"].update(dockerfile="Dockerfile.none"), "no Dockerfile.none"),
            ("train", lambda s: s["build"]["args"].update(BASE="rocm"), "no stage for rocm"),
            ("train", lambda s: s["build"]["args"].update(DEVICE="gpu"), "no build argument DEVICE"),
            ("nvtabular", lambda s: s.update(image="stampede:gpu"), "is another image"),
            ("nvtabular", lambda s: s.update(depends_on=["nobody"]), "no service nobody"),
            ("demo", lambda s: s["volumes"][0].update(source="./demos.sh"), "no ./demos.sh"),
            ("demo", lambda s: s["entrypoint"].__setitem__(1, "/demo/other.sh"), "runs sh /demo/other.sh"),
            ("tensorboard", lambda s: s["command"].__setitem__(1, "data"), "not the folder of the runs"),
            ("demo-cpu", lambda s: s.pop("user"), "runs as root"),
            ("demo-cpu", lambda s: s.update(user="${UID:-0}:0"), "runs as root"),
            ("doctor", lambda s: s.pop("profiles"), "profiles None"),
            ("prepare", lambda s: s["command"].__setitem__(1, "/mnt/train.txt"), "is in no mounted folder"),
            ("prepare-multi-gpu", lambda s: s["command"].append("--recipes"), "No such option"),
            ("evaluate", lambda s: s["entrypoint"].__setitem__(1, "evaluat"), "no command evaluat"),
        ],
    )
    def test_a_wrong_reference_or_command_is_found(
        self, name: str, spoil: Callable[[dict[str, Any]], object], fault: str
    ) -> None:
        services = {other: copy.deepcopy(service) for other, service in SERVICES.items()}
        spoil(services[name])

        found = faults(services)

        assert any(line.startswith(f"{name}: ") and fault in line for line in found), found


class TestWhatTheServicesRun:
    """The commands of the compose file outside docker, on small data in the places that they name."""

    @pytest.fixture
    def workspace(self, small_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "data").mkdir()
        (tmp_path / "runs").mkdir()
        shutil.copy(small_log, tmp_path / "data" / "train.txt")
        shutil.copy(small_log, tmp_path / "data" / "test.txt")
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_prepare_train_evaluate_predict(self, stampede: Command, workspace: Path) -> None:
        for name in ("prepare", "train", "evaluate", "predict"):
            answer = stampede(*arguments(SERVICES[name])[1:])
            assert answer.code == 0, answer.err

        assert (workspace / "runs" / "scores.parquet").is_file()

    def test_prepare_multi_gpu_on_the_cpu(self, stampede: Command, workspace: Path) -> None:
        """All but the engine, which needs a GPU."""
        command = arguments(SERVICES["prepare-multi-gpu"])[1:]
        command[command.index("polars-gpu")] = "polars"

        answer = stampede(*command)

        assert answer.code == 0, answer.err
        assert (workspace / "data" / "criteo" / "manifest.json").is_file()

    @pytest.mark.parametrize("page", [COMPOSE_FILE, ROOT / "docs/how-to/gpu.md"], ids=lambda path: path.name)
    def test_commands_of_a_page_in_its_order(self, page: Path, stampede: Command, workspace: Path) -> None:
        done: list[list[str]] = []
        for name, *given in commands_of(page):
            program, *rest = SERVICES[name]["entrypoint"]
            command = [*rest, *(given or SERVICES[name].get("command", ()))]
            command = ["polars" if word == "polars-gpu" else word for word in command]  # no GPU here
            if program != "stampede" or command in done or ("nvtabular" in command and not HAS_NVTABULAR):
                continue
            answer = stampede(*command, *(["--force"] if "--out" in command else []))
            assert answer.code == 0, answer.err
            done.append(command)

        assert (workspace / "runs" / "deepfm" / "best").exists()

    @pytest.mark.parametrize("name", ["prepare", pytest.param("nvtabular", marks=needs_nvtabular)])
    def test_prepares_without_torch(self, name: str, workspace: Path) -> None:
        """The image of ``nvtabular`` has none."""
        code = "import sys; sys.modules['torch'] = None; from stampede.cli import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, *arguments(SERVICES[name])[1:]]

        answer = subprocess.run(command, capture_output=True, text=True, check=False)

        assert answer.returncode == 0, answer.stderr
        assert (workspace / "data" / "criteo" / "nvtabular_workflow").exists() == (name == "nvtabular")

    def test_tensorboard_shows_the_curves_of_a_run(self, stampede: Command, workspace: Path) -> None:
        stampede(*arguments(SERVICES["prepare-cpu"])[1:])
        stampede(*arguments(SERVICES["train-cpu"])[1:])
        program, *rest = arguments(SERVICES["tensorboard"])
        port = rest.index("--port") + 1
        assert SERVICES["tensorboard"]["ports"] == [f"127.0.0.1:{rest[port]}:{rest[port]}"]
        with socket.create_server(("127.0.0.1", 0)) as free:
            rest[port] = str(free.getsockname()[1])
        command = [str(BIN / program), *rest]
        url = f"http://127.0.0.1:{rest[port]}/data/plugin/scalars/tags"
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as board:
            try:
                assert {"step/cross_entropy", "result/test/auc"} <= set(scalars(url, "deepfm/tensorboard"))
            finally:
                board.terminate()

    def test_serve_answers_at_its_port(self, stampede: Command, workspace: Path) -> None:
        stampede(*arguments(SERVICES["prepare-cpu"])[1:])
        stampede(*arguments(SERVICES["train-cpu"])[1:])
        program, *rest = arguments(SERVICES["serve"])
        port = rest.index("--port") + 1
        assert SERVICES["serve"]["ports"] == [f"127.0.0.1:{rest[port]}:{rest[port]}"]
        rest[port] = "0"
        command = [sys.executable, "-m", program, *rest, "--json"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            assert server.stdout is not None
            try:
                url = urlsplit(json.loads(server.stdout.readline())["url"])
                with urlopen(f"http://127.0.0.1:{url.port}/health", timeout=30) as answer:
                    assert answer.status == 200
            finally:
                server.terminate()

    def test_doctor(self, stampede: Command) -> None:
        assert stampede(*arguments(SERVICES["doctor"])[1:]).code == 0

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
        program, script, out = arguments(SERVICES["demo"])
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
        answer = linted(dockerfile)

        assert answer.returncode == 0, answer.stdout

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ("python:3.11-slim-bookworm", "python:latest"),
            ("USER 10001", "USER root"),
            ("WORKDIR /workspace", "WORKDIR workspace"),
            ("pip install --no-cache-dir uv==", "pip install --no-cache-dir uv  # "),
        ],
    )
    def test_hadolint_finds_a_mistake(self, dockerfile: Path, right: str, wrong: str, tmp_path: Path) -> None:
        text = dockerfile.read_text()
        assert right in text
        broken = tmp_path / "Dockerfile"
        broken.write_text(text.replace(right, wrong))

        assert linted(broken).returncode == 1

    def test_bases_are_pinned_to_a_version(self, dockerfile: Path) -> None:
        for base in stages(dockerfile).values():
            options = {base.replace("${BASE}", name) for name in IMAGES.values()}
            assert options <= set(stages(dockerfile)) or re.search(r":\d+\.\d+[\w.-]*$", base)

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

        lists = {name: (tmp_path / f"{name}.txt").read_text().splitlines() for name in IMAGES.values()}
        names = {image: {re.split(r"\W", line)[0] for line in lines[1:]} for image, lines in lists.items()}
        assert names["cpu"] >= {"numpy", "polars", "torch", "typer", "fastapi", "onnxruntime", "optuna"}
        assert names["gpu"] > names["cpu"]
        assert names["merlin"] == names["cpu"] - {"torch"}
        for first, *_ in lists.values():
            option, constraints = first.split()
            assert option == "-c"
            assert constraints in copied(dockerfile)

    def test_runs_as_an_ordinary_user(self, dockerfile: Path) -> None:
        words = instructions(dockerfile)
        last = dict(words[[word for word, _ in words].index("FROM") :])  # of each word, the last

        assert int(last["USER"]) > 0
        assert json.loads(last["ENTRYPOINT"]) == ["stampede"]

    @pytest.mark.parametrize(
        ("gpus", "smi", "folders", "healthy"),
        [
            (None, None, ("data", "runs"), True),
            ("0", "exit 0", ("data", "runs"), True),
            ("0", "exit 255", ("data", "runs"), False),
            ("0", None, ("data", "runs"), False),
            (None, None, ("data",), False),
        ],
        ids=["no GPU", "a GPU", "the GPU is lost", "no driver", "no folder for runs"],
    )
    def test_health_check(
        self,
        dockerfile: Path,
        gpus: str | None,
        smi: str | None,
        folders: tuple[str, ...],
        healthy: bool,
        tmp_path: Path,
    ) -> None:
        (check,) = [rest for word, rest in instructions(dockerfile) if word == "HEALTHCHECK"]
        for folder in folders:
            (tmp_path / folder).mkdir()
        programs = tmp_path / "bin"
        programs.mkdir()
        for name in ("sh", "stampede"):
            (programs / name).symlink_to(BIN / name if name == "stampede" else "/bin/sh")
        if smi:
            (programs / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
            (programs / "nvidia-smi").chmod(0o755)
        environment = {"PATH": str(programs)} | ({"NVIDIA_VISIBLE_DEVICES": gpus} if gpus else {})
        command = json.loads(check.split("CMD ", 1)[1])

        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)

        assert (done.returncode == 0) == healthy

    def test_names_the_python_of_nvtabular(self, dockerfile: Path) -> None:
        (settings,) = [rest for word, rest in instructions(dockerfile) if word == "ENV" and "NVTAB" in rest]

        assert f"{engine_nvtabular.PYTHON_VARIABLE}=/usr/bin/python3" in settings.split()


def test_the_worker_of_nvtabular_is_python_3_9() -> None:
    """Merlin's image has Python 3.10."""
    ast.parse(engine_nvtabular.WORKER.read_text(), feature_version=(3, 9))


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
