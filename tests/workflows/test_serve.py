"""The HTTP interface: scores equal those of predict, and every body is answered."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest

from stampede import ConfigError, StampedeError
from stampede.pipeline.encode_rows import RowEncoder
from stampede.workflows.model_version import fingerprint_of, load_best_model
from stampede.workflows.run import Run
from stampede.workflows.serve import ServeOptions, run_serve
from stampede.workflows.serve.app import Service, build_app
from stampede.workflows.serve.body import BodyMemory
from stampede.workflows.serve.document import parse_document
from stampede.workflows.serve.metrics import ServerMetrics
from stampede.workflows.serve.refusal import Refusal
from stampede.workflows.serve.scorer import Scored, Scorer

MAX_BODY, MAX_ROWS = 200_000, 300
JSON = {"Content-Type": "application/json"}
COLUMNS = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


@pytest.fixture(scope="module")
def run(small_run: Path) -> Path:
    return small_run


@pytest.fixture(scope="module")
def rows(small_log: Path) -> list[dict[str, str]]:
    lines = small_log.read_text().splitlines()[:200]
    return [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines]


@pytest.fixture(scope="module")
def predicted(run: Path, small_log: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The scores that ``predict`` gives those rows."""
    from stampede.workflows.predict import run_predict

    out = tmp_path_factory.mktemp("predicted") / "scores.parquet"
    run_predict(run, [str(small_log)], out=out, force=False)
    return pl.read_parquet(out)["score"].to_list()[:200]


@pytest.fixture(scope="module")
def service(run: Path) -> Iterator[Service]:
    import torch

    opened = Run.open(run)
    model, version = load_best_model(opened, torch.device("cpu"))
    metrics = ServerMetrics(version, model="deepfm")
    scorer = Scorer(
        model,
        RowEncoder(opened.encoder),
        device=torch.device("cpu"),
        max_rows=MAX_ROWS,
        set_up=lambda: torch.set_num_threads(1),
        on_scored=metrics.scored,
    )
    scorer.start()
    options = ServeOptions(max_rows=MAX_ROWS, max_body=MAX_BODY, timeout=0.3)
    yield Service(options, version, "deepfm", opened.encoder, scorer, metrics)
    scorer.stop(seconds=5)


async def ask(service: Service, method: str, path: str, **how: Any) -> httpx.Response:
    transport = httpx.ASGITransport(build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        return await client.request(method, path, **how)


def post(service: Service, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) or hasattr(body, "__aiter__") else json.dumps(body).encode()
    return asyncio.run(ask(service, "POST", "/predict", content=content, headers={**JSON, **headers}))


def test_scores_equal_those_of_predict(
    service: Service, rows: list[dict[str, str]], predicted: list[float]
) -> None:
    # within 1e-7, not to the bit: a float32 logit's last digit follows the number of rows multiplied at once
    answer = post(service, {"rows": rows}).json()
    np.testing.assert_allclose(answer["scores"], predicted, rtol=0, atol=1e-7)
    for index in (0, 7, 199):
        one = post(service, rows[index])
        assert one.json()["score"] == pytest.approx(predicted[index], abs=1e-7)
        assert one.json()["version"] == answer["version"] == one.headers["X-Model-Version"]


def test_a_score_does_not_depend_on_the_requests_beside_it(
    service: Service, rows: list[dict[str, str]]
) -> None:
    bodies = [json.dumps(row).encode() for row in rows[:60]] + [b'{"I1": "x"}', b"["]

    def outcome(answer: Future[Scored]) -> object:
        refused = answer.exception(timeout=30)
        return str(refused) if refused else answer.result().scores.tolist()

    alone = [outcome(service.scorer.submit(body)) for body in bodies]
    together = [service.scorer.submit(body) for body in bodies]

    assert [outcome(answer) for answer in together] == alone
    assert len({str(one) for one in alone}) > 50


def test_numbers_keep_their_text(service: Service, rows: list[dict[str, str]]) -> None:
    row = {**rows[0], "I1": "3", "C1": "1.50"}
    as_text = json.dumps(row)
    as_numbers = as_text.replace('"I1": "3"', '"I1": 3').replace('"C1": "1.50"', '"C1": 1.50')
    assert as_numbers.count('"') == as_text.count('"') - 4

    assert post(service, as_numbers.encode()).json() == post(service, as_text.encode()).json()
    document = parse_document(
        b'{"C1": 123456789012345678901234567890, "C2": -0.10E+5}', max_rows=1, columns=2
    )
    assert document.rows == [{"C1": "123456789012345678901234567890", "C2": "-0.10E+5"}]


def test_a_body_of_more_values_than_rows_can_hold_is_not_parsed() -> None:
    values = b"[" + b"1," * 100_040 + b"1]"

    with pytest.raises(Refusal, match="more than 1 rows"):
        parse_document(values, max_rows=1, columns=39)
    with pytest.raises(Refusal, match="must be a row"):
        parse_document(values, max_rows=1, columns=41)
    text = b'{"C1": "' + b"," * 100_000 + b'"}'
    assert parse_document(text, max_rows=1, columns=39).rows == [{"C1": "," * 100_000}]


def test_what_is_missing_is_empty_and_labels_are_ignored(service: Service) -> None:
    empty = post(service, dict.fromkeys(COLUMNS, "")).json()["score"]

    assert post(service, {}).json()["score"] == empty
    assert post(service, {"C1": None, "label": "no label at all"}).json()["score"] == empty
    assert post(service, {"rows": []}).json()["scores"] == []


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "the body is not JSON: expecting value (character 0)"),
        (b"{", 400, "the body is not JSON: expecting property name"),
        (b"\xff{}", 400, "the body is not UTF-8 text"),
        (b"\xef\xbb\xbf{}", 400, "the body is not JSON: unexpected UTF-8 BOM"),
        ("{}".encode("utf-16"), 400, "the body is not UTF-8 text"),
        (b'{"I1": NaN}', 400, "NaN is no number"),
        (b'{"I1": -Infinity}', 400, "-Infinity is no number"),
        (b'{"I1": 1, "I1": 2}', 400, "the body names I1 twice"),
        (b"[" * 90_000, 400, "nested too deep"),
        (b'{"I1":' * 30_000, 400, "nested too deep"),
        (b"3", 422, "the body must be a row"),
        (b"[]", 422, "the body must be a row"),
        (b'{"rows": [], "x": 1}', 422, "x stands beside rows"),
        (b'{"rows": {}}', 422, "rows is no list: the body must be"),
        (b'{"rows": [{}, 1]}', 422, "row 1: it is no object"),
        (b'{"rows": [{}, {"C3": [1]}]}', 422, "row 1, column C3: a value must be"),
        (b'{"rows": [{}, {"I3": "x"}, {"I3": "y"}]}', 422, "row 1, column I3: 'x' is not a finite number"),
        (b'{"I1": 1e999}', 422, "column I1: '1e999' is not a finite number"),
        (b'{"I1": ' + b"9" * 5000 + b"}", 422, "is not a finite number"),
        (b'{"C99": 1}', 422, "column C99: the model's log has no such column"),
        (b'{"C1": "\\ud800"}', 422, "column C1: the value is not UTF-8 text"),
        (b'{"\\ud800": 1}', 422, "column \\ud800: the model's log has no such column"),
        (b'{"rows": [' + b"{}," * MAX_ROWS + b"{}]}", 413, "more than 300 rows"),
        (b'{"C1": [' + b"{}," * 60_000 + b"{}]}", 413, "more than 300 rows"),
        (b'{"C1": [' + b"1," * 90_000 + b"1]}", 422, "column C1: a value must be"),
        (b" " * (MAX_BODY + 1), 413, "the body is larger than 200000 bytes"),
    ],
)
def test_a_bad_body_is_refused_in_one_line(service: Service, body: bytes, status: int, words: str) -> None:
    answer = post(service, body)

    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/json; charset=latin-1"}, 415),
        ({"Content-Type": 'Application/JSON; charset="UTF-8"'}, 200),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Length": "999999"}, 413),
    ],
)
def test_headers_are_looked_at(service: Service, headers: dict[str, str], status: int) -> None:
    assert post(service, b"{}", **headers).status_code == status


def test_a_body_is_measured_while_it_comes(service: Service) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 10_000
            yield b" " * 10_000

    assert post(service, endless()).status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for(service: Service) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)
        yield b"}"

    answer = post(service, stuck())
    assert answer.status_code == 408
    assert answer.json() == {"error": "the body did not come within 0.3 s"}
    assert answer.headers["Connection"] == "close"


def test_bodies_together_have_a_bound_but_small_ones_always_pass() -> None:
    memory = BodyMemory(limit=100_000)
    with memory.lease() as first, memory.lease() as second:
        first.grow(100_000 + 65_536)
        second.grow(65_536)
        with pytest.raises(Refusal, match="as many bodies as it may") as refused:
            second.grow(1)
        assert refused.value.status == 503
    assert memory.held == 0


def test_paths_and_methods(service: Service, run: Path) -> None:
    def get(path: str, method: str = "GET") -> httpx.Response:
        return asyncio.run(ask(service, method, path))

    assert get("/nothing").status_code == 404
    assert "there is no such path" in get("/predict/").json()["error"]
    assert get("/predict").status_code == 405
    assert get("/predict").json() == {"error": "GET is not for this path"}
    assert get("/health", "DELETE").status_code == 405
    assert get("/docs").status_code == 404  # its page would load scripts from elsewhere

    assert get("/").json() == get("/model").json()
    about = get("/model").json()
    assert about["dense"] == COLUMNS[1:14]
    assert about["categorical"] == COLUMNS[14:]
    assert about["ignored"] == ["label"]
    assert about["version"] == f"deepfm/{(run / 'best').resolve().name}/{about['fingerprint']}"
    body = get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
    row, _batch = body["content"]["application/json"]["schema"]["oneOf"]
    assert list(row["properties"]) == [*COLUMNS[1:], "label"]


def test_health_says_when_it_stops(service: Service) -> None:
    assert asyncio.run(ask(service, "GET", "/health")).json()["ready"] is True
    service.stopping = True
    try:
        answer = asyncio.run(ask(service, "GET", "/health"))
    finally:
        service.stopping = False
    assert (answer.status_code, answer.json()["ready"], answer.json()["alive"]) == (503, False, True)


def test_metrics_count_requests_and_rows(service: Service) -> None:
    def counts() -> dict[str, float]:
        text = asyncio.run(ask(service, "GET", "/metrics")).text
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    before = counts()
    post(service, {"rows": [{}, {}, {}]})
    post(service, b"[")
    asyncio.run(ask(service, "GET", "/a/path/that/anyone/may/make/up"))
    after = counts()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("stampede_rows_scored_total") == 3
    assert grown('stampede_requests_total{path="/predict",status="200"}') == 1
    assert grown('stampede_requests_total{path="/predict",status="400"}') == 1
    assert grown('stampede_requests_total{path="other",status="404"}') == 1
    assert grown('stampede_request_seconds_count{path="/predict"}') == 2
    assert after["stampede_requests_in_flight"] == 1
    version = service.version
    labels = f'fingerprint="{version.fingerprint}",model="deepfm",run="deepfm",step="{version.step}"'
    assert after[f"stampede_model_info{{{labels}}}"] == 1


def test_an_error_of_our_own_shows_nothing_to_the_client(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_texts: object) -> object:
        raise RuntimeError("a secret path")

    with monkeypatch.context() as patch:
        patch.setattr(service.scorer._rows, "encode_texts", fail)
        answer = post(service, {})
    assert answer.status_code == 500
    assert answer.json() == {"error": "the server could not score this; its log says why"}
    assert capsys.readouterr().err == "stampede: a request failed: RuntimeError: a secret path\n"
    assert post(service, {}).status_code == 200


def test_the_fingerprint_follows_every_weight(run: Path) -> None:
    import torch

    model, version = load_best_model(Run.open(run), torch.device("cpu"))
    again, _ = load_best_model(Run.open(run), torch.device("cpu"))
    assert version.fingerprint == fingerprint_of(again)
    with torch.no_grad():
        model.embedding.weight[-1, -1] += 1
    assert fingerprint_of(model) != version.fingerprint


def test_options_and_packages_are_checked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ({"max_rows": 0}, {"max_body": 0}, {"timeout": 0}, {"grace": -1}, {"port": 70_000}):
        with pytest.raises(ConfigError, match="it must be"):
            ServeOptions(**bad)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(StampedeError, match=r"needs FastAPI: pip install 'stampede-ctr\[serve\]'"):
        run_serve(run, options=ServeOptions(port=0), on_started=lambda _url, _version: None)
