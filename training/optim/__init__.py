"""Optimizers, and the warm-up of their rates."""

from stampede.training.optim.adagrad import Adagrad
from stampede.training.optim.clips import Clip
from stampede.training.optim.cowclip import CowClip
from stampede.training.optim.helen import Helen
from stampede.training.optim.schedule import LinearWarmup, warmup_rate
from stampede.training.optim.sgd import SGD
from stampede.training.optim.tables import Kind, TableOptimizer, Update

__all__ = [
    "SGD",
    "Adagrad",
    "Clip",
    "CowClip",
    "Helen",
    "Kind",
    "LinearWarmup",
    "TableOptimizer",
    "Update",
    "warmup_rate",
]
