"""What to do about a loss or a gradient that is not finite: find where it comes from, keep the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from stampede import StampedeError
from stampede.kernels import RowGradients
from stampede.pipeline.dataset import LABEL
from stampede.training.batch import Batch
from stampede.training.models import CTRModel

FOLDER = "nonfinite"
LOGIT, CROSS_ENTROPY = "logit", "cross_entropy"


class NotFiniteError(StampedeError):
    """A step whose loss or gradients are not finite; nothing was updated by it."""


def check_step(
    loss: Tensor, gradients: Mapping[Tensor, RowGradients], parameters: Iterable[Tensor] | None
) -> None:
    """Raise before an update by a loss that is not finite, or by gradients that are not.

    On a GPU this waits for the device.

    Parameters
    ----------
    loss:
        A scalar.
    gradients:
        Of the tables.
    parameters:
        Those whose ``.grad`` is looked at, and the gradients of the tables with them; None looks at the loss
        alone.

    Raises
    ------
    NotFiniteError
        Says which.
    """
    if not bool(torch.isfinite(loss)):
        raise NotFiniteError("the loss is not finite")
    if parameters is None:
        return
    for gradient in gradients.values():
        used = gradient.sums[gradient.index.counts > 0]
        if not bool(torch.isfinite(used).all()):
            raise NotFiniteError("the gradient of an embedding is not finite")
    for parameter in parameters:
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise NotFiniteError("the gradient of the network is not finite")


@torch.no_grad()
def find_cause(model: CTRModel, batch: Batch, *, dense: Sequence[str], fields: Sequence[str]) -> str:
    """Say in plain words what makes the logits of a batch too large, as far as its rows and weights show."""
    if not bool(torch.isfinite(batch.dense).all()):
        row, column = (~torch.isfinite(batch.dense)).nonzero()[0].tolist()
        return f"the dense feature {dense[column]} of its row {row} is {float(batch.dense[row, column])}"
    tables = [table for table in (model.embedding, model.first_order) if table is not None]
    for table in tables:
        rows = table.rows(batch.ids)  # [B, F]
        bad = ~torch.isfinite(table.weight[rows]).all(2)
        if bool(bad.any()):
            row, number = bad.nonzero()[0].tolist()
            return (
                f"field {fields[number]}: the embedding of id {int(batch.ids[row, number])}, in its row "
                f"{row}, is no longer finite"
            )
    for name, parameter in model.network.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"the network's weights {name} are no longer finite"
    norms = [float(part.norm()) for part in torch.split(model.embedding.weight, list(model.embedding.sizes))]
    largest = max(range(len(norms)), key=norms.__getitem__)
    cause = f"the field with the largest embeddings is {fields[largest]} (norm {norms[largest]:.3g})"
    if dense:
        most = batch.dense.abs().amax(0)  # [n_dense]
        column = int(most.argmax())
        cause += f", the largest dense value {float(most[column]):.3g}, of {dense[column]}"
    return cause


@torch.no_grad()
def save_rows(
    run: Path, step: int, batch: Batch, *, model: CTRModel, dense: Sequence[str], fields: Sequence[str]
) -> Path:
    """Write the rows of a batch for a look: the columns of a dataset's part, and each row's logit and loss.

    Raises
    ------
    StampedeError
        The file cannot be written.
    """
    training = model.training
    model.eval()
    logits = model(batch.dense, batch.ids).float()
    model.train(training)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, batch.labels.float(), reduction="none"
    )
    frame = pl.DataFrame(
        {
            LABEL: batch.labels.to(torch.int8).cpu().numpy(),
            **{name: batch.dense[:, i].float().cpu().numpy() for i, name in enumerate(dense)},
            **{name: batch.ids[:, i].cpu().numpy() for i, name in enumerate(fields)},
            LOGIT: logits.cpu().numpy(),
            CROSS_ENTROPY: losses.cpu().numpy(),
        }
    )
    file = run / FOLDER / f"step-{step}.parquet"
    try:
        file.parent.mkdir(exist_ok=True)
        frame.write_parquet(file)
    except OSError as error:
        raise StampedeError(f"cannot write {file}: {error.strerror or error}") from error
    return file
