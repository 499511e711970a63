"""What every network shares: its options and the form of its forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    bottom_hidden:
        Widths of DLRM's MLP over the dense features, before its last one, d.
    cin_layers:
        Feature maps of each layer of xDeepFM's compressed interaction network.
    attention_layers, attention_heads, attention_dim:
        Interacting layers of AutoInt, heads of each, and values of a head.
    """

    n_fields: int
    n_dense: int
    embedding_dim: int = 10
    hidden: tuple[int, ...] = (400, 400, 400)
    cross_layers: int = 3
    low_rank: int = 32
    experts: int = 4
    bottom_hidden: tuple[int, ...] = (512, 256, 64)
    cin_layers: tuple[int, ...] = (128, 128)
    attention_layers: int = 3
    attention_heads: int = 2
    attention_dim: int = 32

    def __post_init__(self) -> None:
        if self.n_dense < 0:
            raise ConfigError(f"n_dense must be 0 or more, not {self.n_dense}")
        for name in ("hidden", "bottom_hidden", "cin_layers"):
            widths = getattr(self, name)
            if not widths or min(widths) < 1:
                raise ConfigError(f"{name} must be one or more widths above 0, not {list(widths)}")
        for name in (
            "n_fields",
            "embedding_dim",
            "cross_layers",
            "low_rank",
            "experts",
            "attention_layers",
            "attention_heads",
            "attention_dim",
        ):
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

    Attributes
    ----------
    uses_first_order:
        Whether the network reads ``first_order``. Where it does not, the model has no table of such weights
        and passes zeros.
    """

    uses_first_order: ClassVar[bool] = True

    def forward(self, dense: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        """Compute the logits ``[B]``."""
        raise NotImplementedError

    def cross_weights(self) -> list[nn.Parameter]:
        """Give the weights of the cross layers, without their biases: what ``l2_cross`` is for."""
        return []
