"""Linear warm-up of the dense learning rate, as the reference program of CowClip does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from stampede import ConfigError

FIRST_RATE = 1e-8
"""Rate of step 0 of a warm-up."""


def warmup_rate(step: int, *, learning_rate: float, warmup_steps: int) -> float:
    """Give the rate of step ``k = 0, 1, ...``: ``1e-8 + (lr - 1e-8) * min(k, N) / N``; ``lr`` where N is 0.

    So the first step uses 1e-8, and step N (the N+1-th) is the first with the full rate.
    """
    if step >= warmup_steps:
        return learning_rate
    return FIRST_RATE + (learning_rate - FIRST_RATE) * step / warmup_steps


class LinearWarmup:
    """Set the rate of an optimizer's dense groups before each step; the tables' rates stay as they are.

    Construction sets the rate of step 0; call :meth:`step` after each ``optimizer.step()``. Once the full
    rate is reached (at once with ``warmup_steps=0``) the groups are left alone, so that a rate set by hand
    stays.

    Stateful: after ``load_state_dict`` the next step has the rate it would have had.

    Parameters
    ----------
    optimizer:
        Its groups carry ``kind`` and ``lr``; the ``lr`` at construction is the full rate.
    warmup_steps:
        N, steps until the full rate: the steps of one epoch by default of the trainer. 0 means no warm-up.
    kinds:
        Which kinds of group are warmed up.

    Example
    -------
    >>> schedule = LinearWarmup(optimizer, warmup_steps=1000)  # doctest: +SKIP
    >>> optimizer.step(); schedule.step()  # doctest: +SKIP
    """

    def __init__(self, optimizer: Optimizer, *, warmup_steps: int, kinds: Sequence[str] = ("dense",)) -> None:
        if warmup_steps < 0:
            raise ConfigError(f"warm-up cannot take {warmup_steps} steps: give 0 or more")
        self.optimizer = optimizer
        self.warmup_steps = warmup_steps
        self.kinds = tuple(kinds)
        self._step = 0
        self._rates = [float(group["lr"]) for group in self._groups()]
        self._apply()

    def step(self) -> None:
        """Move on to the rate of the next step."""
        self._step += 1
        if self._step <= self.warmup_steps:
            self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Give the step, the length and the full rates: plain numbers."""
        return {"step": self._step, "warmup_steps": self.warmup_steps, "rates": list(self._rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
        if len(state["rates"]) != len(self._rates):
            raise ConfigError(
                f"the saved warm-up has {len(state['rates'])} groups, the optimizer has {len(self._rates)}"
            )
        self._step = int(state["step"])
        self.warmup_steps = int(state["warmup_steps"])
        self._rates = [float(rate) for rate in state["rates"]]
        self._apply()

    def _groups(self) -> list[dict[str, Any]]:
        return [group for group in self.optimizer.param_groups if group.get("kind") in self.kinds]

    def _apply(self) -> None:
        for group, rate in zip(self._groups(), self._rates, strict=True):
            group["lr"] = warmup_rate(self._step, learning_rate=rate, warmup_steps=self.warmup_steps)
