"""A whole click-through-rate model: the tables, and the network over what is looked up in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stampede.training.embedding import FusedEmbedding, look_up
from stampede.training.models.network import Network


class CTRModel(nn.Module):
    """An embedding table, a first-order table where the network reads one, and a network.

    ``forward(dense [B, n_dense], ids [B, F]) -> logits [B]``.

    Parameters
    ----------
    network:
        The network over the looked-up values.
    sizes:
        Rows of each field.
    embedding_dim:
        Values of an embedding.
    init_std:
        Deviation of the embeddings' initial values; first-order weights start at 0, as in the reference
        program.
    generator:
        Source of the initial values of the tables; torch's own without one.

    Attributes
    ----------
    embedding:
        The table of vectors.
    first_order:
        The table of single weights; None where the network does not read it
        (:attr:`Network.uses_first_order`).
    network:
        The network.
    """

    first_order: FusedEmbedding | None

    def __init__(
        self,
        network: Network,
        *,
        sizes: Sequence[int],
        embedding_dim: int,
        init_std: float = 1e-2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.embedding = FusedEmbedding(sizes, embedding_dim, init_std=init_std, generator=generator)
        self.first_order = (
            FusedEmbedding(sizes, 1, init_std=0.0, track_counts=False) if network.uses_first_order else None
        )
        self.network = network

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Compute the logits ``[B]`` of dense features ``[B, n_dense]``, n_dense >= 0, and ids ``[B, F]``."""
        embeddings, first_order = look_up(self.embedding, self.first_order, ids)  # [B, F, d], [B]
        logits: Tensor = self.network(dense, embeddings, first_order)
        return logits

    def parameter_groups(
        self,
        *,
        learning_rate: float,
        embedding_learning_rate: float,
        l2: float = 0.0,
        l2_cross: float = 1e-5,
        clip: str | None = None,
    ) -> list[dict[str, Any]]:
        """Give the parameter groups that the optimizers of :mod:`stampede.training.optim` take.

        Parameters
        ----------
        learning_rate:
            Of the dense weights, after warm-up.
        embedding_learning_rate:
            Of both tables.
        l2:
            Strength on both tables.
        l2_cross:
            Strength on the cross layers' weights, which form a group of their own where the network has them.
        clip:
            For the embedding table, in place of the optimizer's own.

        Returns
        -------
        list[dict[str, Any]]
            Groups named ``embedding``, ``first_order`` where the model has that table, ``dense`` and, for the
            DCN family, ``cross``.
        """
        tables = {"lr": embedding_learning_rate, "l2": l2, "sizes": self.embedding.sizes}
        cross = self.network.cross_weights()
        known = {id(parameter) for parameter in cross}
        others = [parameter for parameter in self.network.parameters() if id(parameter) not in known]
        dense = {"kind": "dense", "lr": learning_rate}
        groups: list[dict[str, Any]] = [
            {
                "name": "embedding",
                "params": [self.embedding.weight],
                "kind": "embedding",
                **({} if clip is None else {"clip": clip}),
                **tables,
            }
        ]
        if self.first_order is not None:
            groups.append(
                {
                    "name": "first_order",
                    "params": [self.first_order.weight],
                    "kind": "first_order",
                    **tables,
                }
            )
        groups.append({"name": "dense", "params": others, "l2": 0.0, **dense})
        if cross:
            groups.append({"name": "cross", "params": cross, "l2": l2_cross, **dense})
        return groups
