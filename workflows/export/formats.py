"""The two files that a traced graph becomes, and how each is read back to score."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.export import ExportedProgram

from stampede import StampedeError
from stampede.workflows.export.check import ScoreFunction

METADATA_FILE = "stampede.json"
"""The file inside a .pt2 archive that holds the metadata."""

METADATA_PREFIX = "stampede."
"""What the metadata's keys begin with in an ONNX file; values that are no text are JSON there."""

DATA_SUFFIX = ".data"
"""What is added to the name of an ONNX file for the file beside it that holds its weights."""

LARGEST_ONNX_FILE = 1_900_000_000
"""Bytes of weights that go into the ONNX file itself: protobuf ends at 2 GiB."""

Metadata = Mapping[str, Any]


def require_onnx() -> None:
    """Raise unless what ONNX takes is installed.

    Raises
    ------
    StampedeError
        Names the mend.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise StampedeError(
            f"--format onnx needs {error.name or 'onnx'}: pip install 'stampede-ctr[onnx]'"
        ) from error


def write_onnx(program: ExportedProgram, file: Path, metadata: Metadata) -> None:
    """Write an ONNX file; weights of 1.9 GB and more go to ``NAME.onnx.data`` beside it."""
    names = [node.name for node in program.graph.nodes if node.name in ("dense", "ids")]
    with _quiet():
        converted = torch.onnx.export(
            program,
            (),
            input_names=names,
            output_names=["score"],
            dynamic_shapes=tuple({0: "batch"} for _ in names),
            dynamo=True,
            verbose=False,
        )
        assert converted is not None
        for node in converted.model.graph.all_nodes():
            node.metadata_props.clear()  # where in which source file an operation came from
        for key, value in metadata.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            converted.model.metadata_props[METADATA_PREFIX + key] = text
        converted.save(str(file), external_data=_weight_bytes(program) >= LARGEST_ONNX_FILE)


def onnx_scores(file: Path) -> ScoreFunction:
    """Return the scores of an ONNX file, by ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    with_dense = len(session.get_inputs()) > 1

    def score(dense: Tensor, ids: Tensor) -> npt.NDArray[np.float32]:
        inputs = {"ids": ids.numpy(), **({"dense": dense.numpy()} if with_dense else {})}
        scores: npt.NDArray[np.float32] = session.run(["score"], inputs)[0]
        return scores

    return score


def write_torch(program: ExportedProgram, file: Path, metadata: Metadata) -> None:
    """Write an archive of ``torch.export``, with the metadata in the extra file ``stampede.json``."""
    archive = io.BytesIO()  # torch's own writer ends the process where a disk is full
    with _quiet():
        torch.export.save(
            program, archive, extra_files={METADATA_FILE: json.dumps(metadata, ensure_ascii=False)}
        )
    file.write_bytes(archive.getbuffer())


def torch_scores(file: Path) -> ScoreFunction:
    """Return the scores of an archive of ``torch.export``."""
    with _quiet():
        module = torch.export.load(file).module()
        with_dense = len(module.graph.find_nodes(op="placeholder")) > 1

    @torch.no_grad()
    def score(dense: Tensor, ids: Tensor) -> npt.NDArray[np.float32]:
        scores: npt.NDArray[np.float32] = (module(dense, ids) if with_dense else module(ids)).numpy()
        return scores

    return score


def _weight_bytes(program: ExportedProgram) -> int:
    return sum(tensor.nbytes for tensor in program.state_dict.values())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' notes on their own parts from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
