"""What a run takes of memory, before it takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stampede import ConfigError
from stampede.training.config import TrainConfig
from stampede.training.memory import available_memory

_VALUE_BYTES = 4  # float32
_STATE_TABLES = {"adam": 2, "cowclip": 2, "adagrad": 1, "sgd": 0, "helen": 2}
# Helen keeps both gradients of a step and the weights that it left; other clips than CowClip, and the rules
# without a fused kernel, hold the gradient of the whole table and its clipped copy.
_HELEN_TABLES, _DENSE_GRADIENT_TABLES = 4, 2
_SLOT_BYTES = 4
_ENTRY_BYTES = 8 + 4
_SHARE = 0.85  # of what is left: the data, the network and torch itself take some too


@dataclass(frozen=True)
class Footprint:
    """Bytes that a run takes, besides its data and the network's activations.

    Attributes
    ----------
    rows, values:
        Of the tables: their rows, and values of a row with its first-order weight.
    tables:
        The weights.
    state:
        What the optimizer keeps beside them, the running mean, and what a step needs of their size.
    batch:
        The rows of a batch: their slots, counts and gradient sums.
    """

    rows: int
    values: int
    tables: int
    state: int
    batch: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.tables + self.state + self.batch

    def describe(self) -> str:
        """Put it into a line."""
        return (
            f"memory: {_bytes(self.total)} for tables of {self.rows:,} rows x {self.values} values "
            f"({_bytes(self.tables)} weights, {_bytes(self.state)} optimizer, "
            f"{_bytes(self.batch)} batch), besides the data"
        )

    def check(self, device: torch.device) -> None:
        """Raise where the device has not as much left.

        Raises
        ------
        ConfigError
            Says both figures and what to do.
        """
        left = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
        left = int(left * _SHARE)
        if self.total > left:
            raise ConfigError(
                f"the tables do not fit: {self.rows:,} rows x {self.values} values take "
                f"{_bytes(self.total)} with the optimizer's state, and {_bytes(left)} are there for them "
                f"on {device}; prepare with --min-count, --max-size or --hash-buckets, "
                "or lower --embedding-dim"
            )


def footprint(config: TrainConfig, sizes: Sequence[int], *, first_order: bool) -> Footprint:
    """Estimate what a run takes.

    Parameters
    ----------
    sizes:
        Rows of each field.
    first_order:
        Whether the model has a first-order table.
    """
    rows, values = sum(sizes), config.embedding_dim + first_order
    table = rows * values * _VALUE_BYTES
    copies = _STATE_TABLES[config.optimizer] + (config.ema_decay > 0)
    fused = config.optimizer in ("adam", "cowclip") and config.clip in ("none", "cowclip")
    if config.optimizer == "helen":
        copies += _HELEN_TABLES
    elif not fused:
        copies += _DENSE_GRADIENT_TABLES
    entries = sum(min(size, config.batch_size) for size in sizes)
    batch = rows * _SLOT_BYTES + entries * (_ENTRY_BYTES + values * _VALUE_BYTES)
    return Footprint(rows, values, table, copies * table, batch)


def _bytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
