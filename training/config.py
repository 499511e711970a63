"""Everything that decides what a training run does, checked where a user's input enters."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stampede import ConfigError
from stampede.training.scaling import Rule

OptimizerName = Literal["adam", "cowclip"]
ClipName = Literal["none", "cowclip"]
Device = Literal["auto", "cpu", "cuda"]


class TrainConfig(BaseModel):
    """The values of one run, as they are used: rates and L2 after scaling to the batch size.

    Attributes
    ----------
    model:
        A name of :data:`stampede.training.models.MODELS`.
    batch_size, epochs, patience, max_steps:
        Rows a step; passes over the training split; epochs without a better valid AUC before the run stops
        (0: never); steps after which it stops (None: no bound).
    rule:
        How the values below followed from the recipe's base batch; for the record.
    optimizer, clip:
        ``cowclip`` is ``adam`` with the clip ``cowclip``.
    learning_rate, embedding_learning_rate, l2, l2_cross:
        Rates of the dense weights and of the tables; L2 strength on the tables and on cross layers.
    ratio, zeta:
        r and zeta of CowClip.
    warmup_epochs:
        Epochs over which the dense rate warms up linearly.
    ema_decay:
        Decay of the running mean of the weights that is evaluated and kept; 0 keeps the weights themselves.
    embedding_dim, init_std, hidden, cross_layers, low_rank, experts:
        The model's sizes.
    seed:
        Of the initial weights and the shuffle.
    device, threads:
        Where it runs, and on how many CPU threads (None: as many as torch takes).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "deepfm"
    batch_size: int = Field(default=1024, ge=1)
    epochs: int = Field(default=10, ge=1)
    patience: int = Field(default=0, ge=0)
    max_steps: int | None = Field(default=None, ge=1)
    rule: Rule = Rule.COWCLIP
    optimizer: OptimizerName = "cowclip"
    clip: ClipName = "cowclip"
    learning_rate: float = Field(default=8e-4, ge=0, allow_inf_nan=False)
    embedding_learning_rate: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    l2: float = Field(default=1e-5, ge=0, allow_inf_nan=False)
    l2_cross: float = Field(default=1e-5, ge=0, allow_inf_nan=False)
    ratio: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    zeta: float = Field(default=1e-5, ge=0, allow_inf_nan=False)
    warmup_epochs: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    embedding_dim: int = Field(default=10, ge=1)
    init_std: float = Field(default=1e-2, ge=0, allow_inf_nan=False)
    hidden: tuple[int, ...] = (400, 400, 400)
    cross_layers: int = Field(default=3, ge=1)
    low_rank: int = Field(default=32, ge=1)
    experts: int = Field(default=4, ge=1)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    device: Device = "auto"
    threads: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _pair(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Let the optimizer follow from the clip, or the clip from the optimizer, where one is not given."""
        optimizer, clip = values.get("optimizer"), values.get("clip")
        if optimizer is None and clip is not None:
            return {**values, "optimizer": "cowclip" if clip == "cowclip" else "adam"}
        if clip is None and optimizer is not None:
            return {**values, "clip": "cowclip" if optimizer == "cowclip" else "none"}
        if (optimizer, clip) == ("adam", "cowclip"):
            return {**values, "optimizer": "cowclip"}
        if (optimizer, clip) == ("cowclip", "none"):
            raise ValueError("--optimizer cowclip with --clip none: cowclip is adam with the clip cowclip")
        return values

    @classmethod
    def check(cls, **values: Any) -> Self:
        """Make a config of values that a user gave.

        Raises
        ------
        ConfigError
            Names the value that has no meaning.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigError.of_options(error) from error
