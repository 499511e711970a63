"""How hyper-parameters follow the batch size: the rules of section 3 of CowClip (arXiv 2204.06240)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from stampede import ConfigError


class Rule(StrEnum):
    """A rule that turns hyper-parameters of a base batch into those of a batch s times as large."""

    NONE = "none"
    SQRT = "sqrt"
    LINEAR = "linear"
    N2_LAMBDA = "n2-lambda"
    COWCLIP = "cowclip"


@dataclass(frozen=True)
class HyperParameters:
    """What the rules change.

    Parameters
    ----------
    learning_rate:
        Rate of the dense weights, after warm-up.
    embedding_learning_rate:
        Rate of the embedding and first-order tables.
    l2:
        lambda of the loss: ``lambda * sum(w^2)`` over those tables.
    """

    learning_rate: float
    embedding_learning_rate: float
    l2: float


def scale(base: HyperParameters, s: float, *, rule: Rule | str) -> HyperParameters:
    """Give the hyper-parameters of a batch ``s`` times the base batch.

    =========== ============ ======= ==========
    rule        embedding lr lambda  dense lr
    =========== ============ ======= ==========
    none        1            1       1
    sqrt        sqrt(s)      sqrt(s) sqrt(s)
    linear      s            1       s
    n2-lambda   1            s^2     sqrt(s)
    cowclip     1            s       sqrt(s)
    =========== ============ ======= ==========

    Parameters
    ----------
    base:
        Hyper-parameters of the base batch.
    s:
        Batch size over base batch size; below 1 for a smaller batch.
    rule:
        A :class:`Rule` or its name.

    Raises
    ------
    stampede.ConfigError
        ``s`` is not a positive number, or there is no such rule.

    Example
    -------
    >>> scale(HyperParameters(8e-4, 1e-4, 1e-5), 4, rule="cowclip")
    HyperParameters(learning_rate=0.0016, embedding_learning_rate=0.0001, l2=4e-05)
    """
    if not (s > 0 and math.isfinite(s)):
        raise ConfigError(f"a batch can be scaled by a positive number only, not by {s}")
    try:
        rule = Rule(rule)
    except ValueError:
        raise ConfigError(f"unknown scaling rule {rule!r}: choose one of {', '.join(Rule)}") from None
    root = math.sqrt(s)
    embedding, l2, dense = {
        Rule.NONE: (1.0, 1.0, 1.0),
        Rule.SQRT: (root, root, root),
        Rule.LINEAR: (s, 1.0, s),
        Rule.N2_LAMBDA: (1.0, s * s, root),
        Rule.COWCLIP: (1.0, s, root),
    }[rule]
    return HyperParameters(
        learning_rate=base.learning_rate * dense,
        embedding_learning_rate=base.embedding_learning_rate * embedding,
        l2=base.l2 * l2,
    )
