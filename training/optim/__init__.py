"""Optimizers, the warm-up of their rates, and how hyper-parameters follow the batch size."""

from stampede.training.optim.cowclip import CowClip
from stampede.training.optim.scaling import HyperParameters, Rule, scale
from stampede.training.optim.schedule import LinearWarmup, warmup_rate

__all__ = ["CowClip", "HyperParameters", "LinearWarmup", "Rule", "scale", "warmup_rate"]
