"""From a model's name to the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stampede import ConfigError
from stampede.training.models.autoint import AutoInt
from stampede.training.models.ctr import CTRModel
from stampede.training.models.dcn import DCN
from stampede.training.models.dcn_v2 import DCNv2
from stampede.training.models.dcn_v2_mix import DCNv2Mix
from stampede.training.models.deepfm import DeepFM
from stampede.training.models.dlrm import DLRM
from stampede.training.models.finalnet import FinalNet
from stampede.training.models.fm import FM
from stampede.training.models.network import Network, NetworkOptions
from stampede.training.models.wide_deep import WideDeep
from stampede.training.models.xdeepfm import XDeepFM

MODELS: dict[str, type[Network]] = {
    "wide-deep": WideDeep,
    "deepfm": DeepFM,
    "dcn": DCN,
    "dcn-v2": DCNv2,
    "dcn-v2-mix": DCNv2Mix,
    "fm": FM,
    "dlrm": DLRM,
    "xdeepfm": XDeepFM,
    "autoint": AutoInt,
    "finalnet": FinalNet,
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
    bottom_hidden: Sequence[int] = (512, 256, 64),
    cin_layers: Sequence[int] = (128, 128),
    attention_layers: int = 3,
    attention_heads: int = 2,
    attention_dim: int = 32,
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
    bottom_hidden, cin_layers, attention_layers, attention_heads, attention_dim:
        See :class:`NetworkOptions`; each is of one model.
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
        bottom_hidden=tuple(bottom_hidden),
        cin_layers=tuple(cin_layers),
        attention_layers=attention_layers,
        attention_heads=attention_heads,
        attention_dim=attention_dim,
    )
    network = MODELS[name](options, generator=generator)
    return CTRModel(network, sizes=sizes, embedding_dim=embedding_dim, init_std=init_std, generator=generator)
