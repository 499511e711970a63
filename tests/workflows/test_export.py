"""Exported graphs: they score as the run does, for any batch and any id, and say what they take."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from stampede import CheckpointError, ConfigError, StampedeError
from stampede.training.metrics import probabilities_of
from stampede.training.models import MODELS, CTRModel, build_model
from stampede.workflows.export import formats, run_export
from stampede.workflows.export import run as export_run
from stampede.workflows.export.graph import traced
from stampede.workflows.model_version import load_best_model
from stampede.workflows.run import Run

SIZES = (5, 7, 9, 4)


def small_model(name: str, *, n_dense: int) -> CTRModel:
    generator = torch.Generator().manual_seed(1)
    small: dict[str, Any] = {"hidden": [8, 6], "bottom_hidden": [5], "cin_layers": [4, 3]}
    model = build_model(
        name, sizes=SIZES, n_dense=n_dense, embedding_dim=4, attention_dim=3, attention_layers=1, **small
    )
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.4, generator=generator)
    return model.eval()


def scores_of(model: CTRModel, dense: Tensor, ids: Tensor) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return probabilities_of(model(dense, ids).numpy())


@pytest.mark.parametrize("name", MODELS)
def test_every_model_scores_the_same_in_both_files(name: str, tmp_path: Path) -> None:
    model = small_model(name, n_dense=3)
    dense = torch.randn(37, 3)
    ids = torch.stack([torch.randint(size, (37,)) for size in SIZES], 1)
    program = traced(model, n_dense=3)
    formats.write_onnx(program, tmp_path / "m.onnx", {})
    formats.write_torch(program, tmp_path / "m.pt2", {})

    for score in (formats.onnx_scores(tmp_path / "m.onnx"), formats.torch_scores(tmp_path / "m.pt2")):
        for rows in (37, 1, 0):
            wanted = scores_of(model, dense[:rows], ids[:rows])
            np.testing.assert_allclose(score(dense[:rows], ids[:rows]), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_an_id_that_a_field_does_not_have_is_read_as_unseen(suffix: str, tmp_path: Path) -> None:
    model = small_model("deepfm", n_dense=0)
    file = tmp_path / f"m.{suffix}"
    write, read = {
        "onnx": (formats.write_onnx, formats.onnx_scores),
        "pt2": (formats.write_torch, formats.torch_scores),
    }[suffix]
    write(traced(model, n_dense=0), file, {})
    unseen = scores_of(model, torch.zeros(1, 0), torch.tensor([[2, 2, 2, 2]]))[0]

    for bad in ([-1, -1, -1, -1], [5, 7, 9, 4], [6, 2, 10, 1 << 40], [-(1 << 63), (1 << 63) - 1, 2, 2]):
        assert read(file)(torch.zeros(1, 0), torch.tensor([bad]))[0] == pytest.approx(unseen, abs=1e-6)


@pytest.fixture(scope="module")
def run(small_run: Path) -> Path:
    return small_run


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("onnx") / "model.onnx"
    run_export(run, out=out, force=False)
    return out


def test_transformed_rows_get_the_scores_that_predict_gives(
    run: Path, exported: Path, small_log: Path, tmp_path: Path
) -> None:
    import onnxruntime

    from stampede.workflows.predict import run_predict
    from stampede.workflows.transform import run_transform

    run_predict(run, [str(small_log)], out=tmp_path / "scores.parquet", force=False)
    encoded = tmp_path / "rows.parquet"
    run_transform(run, [str(small_log)], out=encoded, counts=False, force=False)
    session = onnxruntime.InferenceSession(str(exported))
    about = session.get_modelmeta().custom_metadata_map
    frame = pl.read_parquet(encoded)

    (scores,) = session.run(
        ["score"],
        {
            "dense": frame.select(json.loads(about["stampede.dense"])).to_numpy().astype(np.float32),
            "ids": frame.select(json.loads(about["stampede.fields"])).to_numpy().astype(np.int64),
        },
    )

    wanted = pl.read_parquet(tmp_path / "scores.parquet")["score"].to_numpy()
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-6)


def test_the_onnx_file_says_what_it_takes_and_where_it_is_from(run: Path, exported: Path) -> None:
    import onnx

    from stampede import __version__

    model = onnx.load(exported)
    onnx.checker.check_model(model, full_check=True)
    about = {entry.key: entry.value for entry in model.metadata_props}
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }

    assert shapes == {"dense": ["batch", 13], "ids": ["batch", 26], "score": ["batch"]}
    assert json.loads(about["stampede.fields"]) == [f"C{i}" for i in range(1, 27)]
    assert json.loads(about["stampede.dense"]) == [f"I{i}" for i in range(1, 14)]
    sizes = [v.size for v in Run.open(run).encoder.vocabularies.values()]
    assert json.loads(about["stampede.sizes"]) == sizes
    assert about["stampede.version"] == __version__
    assert about["stampede.run"] == "deepfm"
    assert about["stampede.step"] == (run / "best").resolve().name.removeprefix("step-")
    assert str(Path(torch.__file__).parent).encode() not in exported.read_bytes()


def test_the_torch_archive_holds_the_same_facts(run: Path, tmp_path: Path) -> None:
    done = run_export(run, out=tmp_path / "model.pt2", force=False)

    extra = {"stampede.json": ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    about = json.loads(extra["stampede.json"])
    assert about["fields"] == [f"C{i}" for i in range(1, 27)]
    assert about["unseen_id"] == 2
    assert done.format == "torch"
    assert done.bytes == (tmp_path / "model.pt2").stat().st_size
    assert done.agreement.rows > 100
    assert done.agreement.max_difference <= 1e-5


def test_weights_too_large_for_one_onnx_file_lie_beside_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LARGEST_ONNX_FILE", 1000)
    out = tmp_path / "model.onnx"
    done = run_export(run, out=out, force=False)

    assert done.data == tmp_path / "model.onnx.data"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert done.bytes == sum(p.stat().st_size for p in tmp_path.iterdir())
    ids, dense = torch.full((2, 26), 2), torch.zeros(2, 13)
    model, _ = load_best_model(Run.open(run), torch.device("cpu"))
    np.testing.assert_allclose(formats.onnx_scores(out)(dense, ids), scores_of(model, dense, ids), atol=1e-6)

    monkeypatch.undo()
    assert run_export(run, out=out, force=True).data is None
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_scores_that_differ_leave_no_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(file: Path) -> Any:
        right = formats.torch_scores(file)
        return lambda dense, ids: right(dense, ids) + np.float32(2e-5)

    monkeypatch.setattr(export_run, "torch_scores", wrong)

    with pytest.raises(StampedeError, match="differ from the run's by 2e-05"):
        run_export(run, out=tmp_path / "model.pt2", force=False)
    assert not list(tmp_path.iterdir())


def test_without_the_dataset_random_rows_are_checked(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "deepfm"
    shutil.copytree(run, copy, symlinks=True)
    document = json.loads((copy / "encoder.json").read_text())
    document["dataset"]["path"] = str(tmp_path / "gone")
    (copy / "encoder.json").write_text(json.dumps(document))

    done = run_export(copy, out=tmp_path / "model.pt2", force=False)

    assert done.agreement.rows == 2048 + 256 + 1


def test_what_cannot_be_exported_says_why(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.onnx or \.pt2"):
        run_export(run, out=tmp_path / "model.bin", force=False)
    with pytest.raises(CheckpointError, match="does not exist"):
        run_export(tmp_path / "none", out=tmp_path / "model.pt2", force=False)
    (tmp_path / "model.pt2").touch()
    with pytest.raises(StampedeError, match="exists"):
        run_export(run, out=tmp_path / "model.pt2", force=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(StampedeError, match=r"needs onnxruntime: pip install 'stampede-ctr\[onnx\]'"):
        run_export(run, out=tmp_path / "model.onnx", force=False)
