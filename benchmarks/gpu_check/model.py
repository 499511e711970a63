"""A DeepFM of Criteo's shape, and the step that trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stampede.kernels import cuda_kernels_missing
from stampede.training.batch import Batch
from stampede.training.graph import GraphedStep, can_be_captured
from stampede.training.models import CTRModel, build_model
from stampede.training.optim import CowClip
from stampede.training.scaling import HyperParameters, scale
from stampede.training.step import TrainStep

N_DENSE = 13
BASE_BATCH = 1024
CRITEO = HyperParameters(learning_rate=8e-4, embedding_learning_rate=1e-4, l2=1e-5)
"""Of the recipe ``criteo``, at the base batch."""

KAGGLE_SIZES = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27),
    *(14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""Distinct values of the 26 fields of Criteo Kaggle."""


def sizes_of(table_rows: int) -> tuple[int, ...]:
    """Give the rows of each field of a table of about so many, in the proportions of Criteo Kaggle."""
    return tuple(max(3, size * table_rows // sum(KAGGLE_SIZES)) for size in KAGGLE_SIZES)


def long_tailed_ids(rows: int, sizes: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw ids, int32 [rows, F]: the k-th of a field is about 1/k as frequent as its first."""
    uniform = torch.rand(rows, len(sizes), generator=generator, device=sizes.device)
    ids = torch.pow(sizes.to(torch.float32), uniform).to(torch.int32) - 1
    return torch.minimum(ids.clamp_(min=0), (sizes - 1).to(torch.int32))


class Contender:
    """A model on the device, which can begin anew, and its training step.

    Parameters
    ----------
    table_rows, hidden:
        Its size.
    """

    def __init__(self, table_rows: int, *, hidden: tuple[int, ...], device: torch.device) -> None:
        self.sizes = sizes_of(table_rows)
        self.device = device
        # the table is drawn on the device: drawing 340 million values takes a CPU seconds
        self.model = build_model(
            "deepfm",
            sizes=self.sizes,
            n_dense=N_DENSE,
            hidden=hidden,
            init_std=0.0,
            generator=torch.Generator().manual_seed(0),
        ).to(device)
        self._network = {name: value.clone() for name, value in self.model.network.state_dict().items()}

    @torch.no_grad()
    def begin(self) -> CTRModel:
        """Give the model with its first weights."""
        draw = torch.Generator(self.device).manual_seed(0)
        self.model.embedding.weight.normal_(0.0, 1e-2, generator=draw)
        if self.model.first_order is not None:
            self.model.first_order.weight.zero_()
        self.model.network.load_state_dict(self._network)
        self.model.zero_grad(set_to_none=True)
        return self.model

    def training(
        self,
        batch_size: int,
        *,
        precision: Any,
        graph: bool,
        compiles: bool = False,
        rates: HyperParameters = CRITEO,
        clip: str = "cowclip",
    ) -> Training:
        """Give the step of the model, with its first weights."""
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        model = self.begin()
        groups = model.parameter_groups(
            learning_rate=rates.learning_rate,
            embedding_learning_rate=rates.embedding_learning_rate,
            l2=rates.l2,
        )
        optimizer = CowClip(groups, clip=clip)
        step = TrainStep(model, optimizer, batch_size=batch_size, precision=precision, compiles=compiles)
        if not graph:
            return Training(model, optimizer, step, step)
        if not can_be_captured(optimizer):
            raise RuntimeError(f"the step cannot be captured: {cuda_kernels_missing()}")
        return Training(model, optimizer, step, GraphedStep(step, optimizer, batch_size=batch_size))


@dataclass(frozen=True)
class Training:
    """A model and its optimizer, the step itself, and how it is taken: as it is, or by a graph."""

    model: CTRModel
    optimizer: CowClip
    step: TrainStep
    take: Callable[[Batch], Tensor]


def scaled(batch_size: int, rule: str) -> HyperParameters:
    """Give the rates and L2 of a batch size."""
    return scale(CRITEO, batch_size / BASE_BATCH, rule=rule)
