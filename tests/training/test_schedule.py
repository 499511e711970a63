import pytest
import torch
from torch.optim import Optimizer

from stampede import ConfigError
from stampede.training.optim import CowClip, LinearWarmup, warmup_rate


def make_optimizer() -> CowClip:
    return CowClip(
        [
            {"params": [torch.nn.Parameter(torch.zeros(3, 2))], "kind": "embedding", "lr": 0.5},
            {"params": [torch.nn.Parameter(torch.zeros(3, 1))], "kind": "first_order", "lr": 0.5},
            {"params": [torch.nn.Parameter(torch.zeros(4))], "kind": "dense", "lr": 1.0},
            {"params": [torch.nn.Parameter(torch.zeros(4))], "kind": "dense", "lr": 2.0},
        ]
    )


def rates(optimizer: Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def test_dense_rates_rise_from_1e8_to_the_full_rate_and_the_tables_rates_stay() -> None:
    optimizer = make_optimizer()
    schedule = LinearWarmup(optimizer, warmup_steps=4)

    seen = []
    for _ in range(6):
        seen.append(rates(optimizer))
        schedule.step()

    assert [row[:2] for row in seen] == [[0.5, 0.5]] * 6
    assert [row[2] for row in seen] == pytest.approx([1e-8, 0.25, 0.5, 0.75, 1.0, 1.0], rel=1e-7)
    assert [row[3] for row in seen] == pytest.approx([1e-8, 0.5, 1.0, 1.5, 2.0, 2.0], rel=1e-7)


def test_no_warm_up_is_the_full_rate_from_the_first_step() -> None:
    optimizer = make_optimizer()
    schedule = LinearWarmup(optimizer, warmup_steps=0)

    assert rates(optimizer) == [0.5, 0.5, 1.0, 2.0]
    schedule.step()
    assert rates(optimizer) == [0.5, 0.5, 1.0, 2.0]


def test_the_rate_is_the_formula() -> None:
    assert warmup_rate(0, learning_rate=0.1, warmup_steps=10) == 1e-8
    assert warmup_rate(3, learning_rate=0.1, warmup_steps=10) == pytest.approx(1e-8 + (0.1 - 1e-8) * 0.3)
    assert warmup_rate(10, learning_rate=0.1, warmup_steps=10) == 0.1
    assert warmup_rate(0, learning_rate=0.1, warmup_steps=0) == 0.1


def test_a_rate_set_by_hand_after_the_warm_up_stays() -> None:
    optimizer = make_optimizer()
    schedule = LinearWarmup(optimizer, warmup_steps=1)
    schedule.step()
    optimizer.param_groups[2]["lr"] = 0.125

    schedule.step()

    assert rates(optimizer)[2] == 0.125


def test_a_resumed_warm_up_goes_on_where_it_was() -> None:
    optimizer = make_optimizer()
    schedule = LinearWarmup(optimizer, warmup_steps=5)
    schedule.step()
    schedule.step()

    resumed_optimizer = make_optimizer()
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    resumed = LinearWarmup(resumed_optimizer, warmup_steps=5)
    resumed.load_state_dict(schedule.state_dict())

    for _ in range(5):
        assert rates(resumed_optimizer) == rates(optimizer)
        schedule.step()
        resumed.step()


def test_negative_steps_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match="-1"):
        LinearWarmup(make_optimizer(), warmup_steps=-1)


def test_the_state_of_another_optimizer_is_a_config_error() -> None:
    schedule = LinearWarmup(make_optimizer(), warmup_steps=5)

    with pytest.raises(ConfigError, match="1 groups"):
        schedule.load_state_dict({"step": 1, "warmup_steps": 5, "rates": [1.0]})
