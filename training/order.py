"""The order of an epoch: permutations that depend on their key alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stampede import ConfigError


def check_first(first: int, *, batches: int) -> None:
    """Raise :class:`stampede.ConfigError` for a batch that an epoch cannot begin with."""
    if not 0 <= first <= batches:
        raise ConfigError(f"an epoch of {batches:,} batches cannot begin with number {first:,}")


def epoch_order(rows: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
    """Give a permutation of the rows, int64 [rows], by the device's own generator."""
    return permutation(rows, [seed, epoch], device=device)


def permutation(rows: int, key: Sequence[int], *, device: torch.device | str = "cpu") -> Tensor:
    """Give a permutation, int64 [rows], that depends on the key and the kind of device alone."""
    mixed = np.random.SeedSequence(list(key)).generate_state(1, np.uint64)[0]
    generator = torch.Generator(device=device).manual_seed(int(mixed >> 1))
    return torch.randperm(rows, generator=generator, device=device)
