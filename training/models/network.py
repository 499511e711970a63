"""What every network shares: its options and the form of its forward."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from stampede import ConfigError


@dataclass(frozen=True)
class NetworkOptions:
    """The sizes of a network; each network reads those that it has.

    Parameters
    ----------
    n_fields:
        Categorical fields, F.
    n_dense:
        Dense features; may be 0.
    embedding_dim:
        Values of an embedding, d.
    hidden:
        Widths of the MLP's layers.
    cross_layers:
        Cross layers of the DCN family.
    low_rank, experts:
        Of ``dcn-v2-mix``.
    """

    n_fields: int
    n_dense: int
    embedding_dim: int = 10
    hidden: tuple[int, ...] = (400, 400, 400)
    cross_layers: int = 3
    low_rank: int = 32
    experts: int = 4

    def __post_init__(self) -> None:
        if self.n_dense < 0:
            raise ConfigError(f"n_dense must be 0 or more, not {self.n_dense}")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden must be one or more widths above 0, not {list(self.hidden)}")
        for name in ("n_fields", "embedding_dim", "cross_layers", "low_rank", "experts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, not {getattr(self, name)}")

    @property
    def input_width(self) -> int:
        """Width n of the embeddings side by side, followed by the dense features."""
        return self.n_fields * self.embedding_dim + self.n_dense


class Network(nn.Module):
    """A network from features to logits.

    ``forward(dense [B, n_dense], embeddings [B, F, d], first_order [B]) -> logits [B]``, where
    ``first_order`` is the sum of a row's first-order weights, one per field.
    """

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]``."""
        raise NotImplementedError

    def cross_weights(self) -> list[nn.Parameter]:
        """Give the weights of the cross layers, without their biases: what ``l2_cross`` is for."""
        return []
