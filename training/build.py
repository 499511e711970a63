"""From the values of a run to its model and optimizer."""

from __future__ import annotations

from dataclasses import fields

import torch

from stampede.training.config import TrainConfig
from stampede.training.models import CTRModel, NetworkOptions, build_model
from stampede.training.optim import SGD, Adagrad, CowClip, Helen, TableOptimizer

_RULES: dict[str, type[CowClip | Adagrad | SGD]] = {
    "adam": CowClip,
    "cowclip": CowClip,
    "adagrad": Adagrad,
    "sgd": SGD,
}

_OF_DATASET = ("n_fields", "n_dense")


def model_of(config: TrainConfig, dataset_sizes: dict[str, int], *, n_dense: int) -> CTRModel:
    """Build the model of a run, with the initial weights of its seed."""
    options = [field.name for field in fields(NetworkOptions) if field.name not in _OF_DATASET]
    return build_model(
        config.model,
        sizes=list(dataset_sizes.values()),
        n_dense=n_dense,
        init_std=config.init_std,
        generator=torch.Generator().manual_seed(config.seed),
        **{name: getattr(config, name) for name in options},
    )


def optimizer_of(config: TrainConfig, model: CTRModel) -> TableOptimizer:
    """Build the optimizer of a run over the parameter groups of its model."""
    groups = model.parameter_groups(
        learning_rate=config.learning_rate,
        embedding_learning_rate=config.embedding_learning_rate,
        l2=config.l2,
        l2_cross=config.l2_cross,
    )
    if config.optimizer == "helen":
        return Helen(groups, rho=config.rho, bound=config.bound)
    return _RULES[config.optimizer](
        groups,
        clip=config.clip,
        clip_norm=config.clip_norm,
        ratio=config.ratio,
        zeta=config.zeta,
        update=config.update,
    )
