"""Optimizers, and the warm-up of their rates."""

from stampede.training.optim.cowclip import CowClip
from stampede.training.optim.schedule import LinearWarmup, warmup_rate

__all__ = ["CowClip", "LinearWarmup", "warmup_rate"]
