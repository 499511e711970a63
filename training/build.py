"""From the values of a run to its model and optimizer."""

from __future__ import annotations

import torch

from stampede.training.config import TrainConfig
from stampede.training.models import CTRModel, build_model
from stampede.training.optim import CowClip


def model_of(config: TrainConfig, dataset_sizes: dict[str, int], *, n_dense: int) -> CTRModel:
    """Build the model of a run, with the initial weights of its seed."""
    return build_model(
        config.model,
        sizes=list(dataset_sizes.values()),
        n_dense=n_dense,
        embedding_dim=config.embedding_dim,
        hidden=config.hidden,
        cross_layers=config.cross_layers,
        low_rank=config.low_rank,
        experts=config.experts,
        init_std=config.init_std,
        generator=torch.Generator().manual_seed(config.seed),
    )


def optimizer_of(config: TrainConfig, model: CTRModel) -> CowClip:
    """Build the optimizer of a run over the parameter groups of its model."""
    groups = model.parameter_groups(
        learning_rate=config.learning_rate,
        embedding_learning_rate=config.embedding_learning_rate,
        l2=config.l2,
        l2_cross=config.l2_cross,
        clip=config.clip,
    )
    return CowClip(groups, ratio=config.ratio, zeta=config.zeta, clip=config.clip)
