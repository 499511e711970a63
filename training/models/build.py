"""From a model's name to the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stampede import ConfigError
from stampede.training.models.ctr import CTRModel
from stampede.training.models.dcn import DCN
from stampede.training.models.dcn_v2 import DCNv2
from stampede.training.models.dcn_v2_mix import DCNv2Mix
from stampede.training.models.deepfm import DeepFM
from stampede.training.models.network import Network, NetworkOptions
from stampede.training.models.wide_deep import WideDeep

MODELS: dict[str, Callable[..., Network]] = {
    "wide-deep": WideDeep,
    "deepfm": DeepFM,
    "dcn": DCN,
    "dcn-v2": DCNv2,
    "dcn-v2-mix": DCNv2Mix,
}
"""Name -> network, made from ``NetworkOptions`` and a ``generator``."""


def build_model(
    name: str,
    *,
    sizes: Sequence[int],
    n_dense: int,
    embedding_dim: int = 10,
    hidden: Sequence[int] = (400, 400, 400),
    cross_layers: int = 3,
    low_rank: int = 32,
    experts: int = 4,
    init_std: float = 1e-2,
    generator: torch.Generator | None = None,
) -> CTRModel:
    """Build a model by its name, on the CPU, in torch's default dtype.

    The same seed (of ``torch.manual_seed``, or of ``generator``) gives the same weights.

    Parameters
    ----------
    name:
        A key of ``MODELS``.
    sizes:
        Rows of each categorical field.
    n_dense:
        Dense features; may be 0.
    embedding_dim, hidden, cross_layers, low_rank, experts:
        See :class:`NetworkOptions`; the defaults are the paper's.
    init_std:
        Deviation of the embeddings' initial values; 1e-2 goes with the clip, 1e-4 is the reference's without.
    generator:
        Source of the initial values.

    Raises
    ------
    stampede.ConfigError
        There is no model of this name, or a size makes none.

    Example
    -------
    >>> model = build_model("deepfm", sizes=[5, 7], n_dense=0, hidden=[8])
    >>> model(torch.zeros(3, 0), torch.zeros(3, 2, dtype=torch.int64)).shape
    torch.Size([3])
    """
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}")
    options = NetworkOptions(
        n_fields=len(sizes),
        n_dense=n_dense,
        embedding_dim=embedding_dim,
        hidden=tuple(hidden),
        cross_layers=cross_layers,
        low_rank=low_rank,
        experts=experts,
    )
    network = MODELS[name](options, generator=generator)
    return CTRModel(network, sizes=sizes, embedding_dim=embedding_dim, init_std=init_std, generator=generator)
