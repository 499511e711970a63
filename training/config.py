"""Everything that decides what a training run does, checked where a user's input enters."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from stampede import ConfigError
from stampede.training.scaling import Rule

OptimizerName = Literal["adam", "cowclip", "helen", "adagrad", "sgd"]
ClipName = Literal["none", "global", "field", "column", "adaptive-field", "cowclip"]
UpdateName = Literal["dense", "touched"]
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["float32", "tf32", "bf16"]
LoaderName = Literal["auto", "device", "stream"]
OnNan = Literal["stop", "skip"]

RESUMABLE = ("epochs", "max_steps", "threads", "checkpoint_every", "keep_checkpoints")
"""What may change when a run is resumed: how long it goes on, and what does not decide its numbers."""

_UNITS = {"s": 1, "m": 60, "h": 3600}


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
    clip_norm:
        The limit of the clips ``global``, ``field`` and ``column``.
    update:
        Which rows of the tables a step updates: all (``dense``, the paper's) or the batch's (``touched``).
    rho, bound:
        Of ``helen``.
    learning_rate, embedding_learning_rate, l2, l2_cross:
        Rates of the dense weights and of the tables; L2 strength on the tables and on cross layers.
    ratio, zeta:
        r and zeta of CowClip.
    warmup_epochs:
        Epochs over which the dense rate warms up linearly.
    ema_decay:
        Decay of the running mean of the weights that is evaluated and kept; 0 keeps the weights themselves.
    embedding_dim, init_std, hidden, cross_layers, low_rank, experts, bottom_hidden, cin_layers, \
attention_layers, attention_heads, attention_dim:
        The model's sizes; see :class:`stampede.training.models.NetworkOptions`.
    seed:
        Of the initial weights and the shuffle.
    device, threads:
        Where it runs, and on how many CPU threads (None: as many as torch takes).
    precision:
        Of the matrix products; weights, tables and the update stay float32.
    accumulate:
        Into how many pieces a batch is cut, at least; the step is that of the whole batch.
    compiles:
        Whether the network goes through ``torch.compile``.
    cuda_graph:
        Whether a GPU replays the step as one CUDA graph.
    loader, loader_memory:
        Whether the split lies on the device or streams from disk, and the bytes that streaming may take up.
    train_split, valid_split, test_split:
        Names of the splits to train on, to choose the best epoch by, and to test it on; ``none`` for no such
        split, and one of the last two that the dataset does not have is left out.
    checkpoint_every:
        Steps (``5000``) or time (``90s``, ``10m``, ``2h``) between checkpoints, besides those of epochs.
    keep_checkpoints:
        How many of the latest are kept, besides the best.
    on_nan:
        Whether a batch whose loss or gradients are not finite stops the run, or is left out and counted.
    init_from:
        The run whose best epoch this one began with; None for initial weights.
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
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    update: UpdateName = "dense"
    rho: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    bound: float = Field(default=0.3, ge=0, le=1)
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
    bottom_hidden: tuple[int, ...] = (512, 256, 64)
    cin_layers: tuple[int, ...] = (128, 128)
    attention_layers: int = Field(default=3, ge=1)
    attention_heads: int = Field(default=2, ge=1)
    attention_dim: int = Field(default=32, ge=1)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    device: Device = "auto"
    threads: int | None = Field(default=None, ge=1, le=1024)
    precision: Precision = "float32"
    accumulate: int = Field(default=1, ge=1)
    compiles: bool = False
    cuda_graph: bool = True
    loader: LoaderName = "auto"
    loader_memory: int = Field(default=1 << 30, ge=1)
    train_split: str = "train"
    valid_split: str = "valid"
    test_split: str = "test"
    checkpoint_every: str = "10m"
    keep_checkpoints: int = Field(default=2, ge=1)
    on_nan: OnNan = "stop"
    init_from: str | None = None

    def fixed(self) -> dict[str, Any]:
        """Return the values that a resumed run may not change, as JSON has them."""
        return self.model_dump(mode="json", exclude=set(RESUMABLE))

    @property
    def checkpoint_steps(self) -> int | None:
        """Steps between checkpoints; None where time counts."""
        return int(self.checkpoint_every) if self.checkpoint_every.isdigit() else None

    @property
    def checkpoint_seconds(self) -> float | None:
        """Seconds between checkpoints; None where steps count."""
        every = self.checkpoint_every
        return None if every.isdigit() else float(every[:-1]) * _UNITS[every[-1]]

    @field_validator("checkpoint_every")
    @classmethod
    def _is_interval(cls, value: str) -> str:
        number = value[:-1] if value[-1:] in _UNITS else value
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            raise ValueError("it must be a number of steps such as 5000, or a time such as 90s, 10m or 2h")
        return value

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
        if optimizer == "cowclip" and clip != "cowclip":
            raise ValueError(f"--optimizer cowclip with --clip {clip}: cowclip is adam with the clip cowclip")
        if optimizer == "helen" and clip != "none":
            raise ValueError(f"--optimizer helen with --clip {clip}: helen clips nothing")
        return values

    @model_validator(mode="after")
    def _fit(self) -> Self:
        """Refuse values that do nothing, or contradict each other."""
        if self.clip in ("global", "field", "column") and self.clip_norm is None:
            raise ValueError(f"--clip {self.clip} needs --clip-norm, the largest norm to let pass")
        if self.clip_norm is not None and self.clip not in ("global", "field", "column"):
            raise ValueError(f"--clip-norm is of --clip global, field and column, not of {self.clip}")
        if self.optimizer == "helen" and self.update != "dense":
            raise ValueError("--optimizer helen updates every row: --update touched does not go with it")
        return self

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
