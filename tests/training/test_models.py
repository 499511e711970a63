import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from stampede import ConfigError
from stampede.kernels import pairwise_sum
from stampede.training.loss import cross_entropy
from stampede.training.metrics import auc
from stampede.training.models import MODELS, CTRModel, build_model
from stampede.training.models.dcn import VectorCross
from stampede.training.models.dcn_v2 import MatrixCross
from stampede.training.models.dcn_v2_mix import MixtureCross
from stampede.training.models.layers import glorot_normal_
from stampede.training.optim import CowClip

NAMES = list(MODELS)
CROSSED = ["dcn", "dcn-v2", "dcn-v2-mix"]
OF_THE_PAPER = ["wide-deep", "deepfm", *CROSSED]  # test_models_formulas.py has the formulas of the others
WITHOUT_FIRST_ORDER = ["dlrm", "autoint", "finalnet"]


def small(name: str, *, n_dense: int = 2, fields: int = 3, **options: Any) -> CTRModel:
    values: dict[str, Any] = {
        "embedding_dim": 4,
        "hidden": [6, 5],
        "low_rank": 2,
        "experts": 2,
        "bottom_hidden": [3],
        "cin_layers": [3, 2],
        "attention_layers": 2,
        "attention_heads": 2,
        "attention_dim": 3,
    }
    return build_model(name, sizes=[5] * fields, n_dense=n_dense, **values | options)


def make_inputs(rows: int, *, n_dense: int = 2, fields: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, n_dense), torch.randint(0, 5, (rows, fields), dtype=torch.int32)


def randomise(model: torch.nn.Module) -> None:
    """Give every weight a value, zero biases and first-order weights too."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)


# --- formulas, against loops in float64 -----------------------------------------------------------


@pytest.mark.parametrize("fields", [1, 2, 5])
def test_pairwise_sum_is_the_sum_over_all_pairs_of_fields(fields: int) -> None:
    e = torch.randn(7, fields, 3, dtype=torch.float64)

    expected = torch.zeros(7, dtype=torch.float64)
    for f, g in itertools.combinations(range(fields), 2):
        expected += (e[:, f] * e[:, g]).sum(1)

    torch.testing.assert_close(pairwise_sum(e), expected)


def test_vector_cross_is_equation_3_of_dcn() -> None:
    cross = VectorCross(5, 3).double()
    randomise(cross)
    x0 = torch.randn(4, 5, dtype=torch.float64)

    for row, result in zip(x0, cross(x0), strict=True):
        x = row
        for w, b in zip(cross.weight, cross.bias, strict=True):
            x = torch.outer(row, x) @ w + b + x
        torch.testing.assert_close(result, x)


def test_matrix_cross_is_equation_1_of_dcn_v2() -> None:
    cross = MatrixCross(5, 3).double()
    randomise(cross)
    x0 = torch.randn(4, 5, dtype=torch.float64)

    for row, result in zip(x0, cross(x0), strict=True):
        x = row
        for w, b in zip(cross.weight, cross.bias, strict=True):
            x = row * (w @ x + b) + x
        torch.testing.assert_close(result, x)


def test_mixture_cross_is_a_gated_sum_of_low_rank_experts() -> None:
    cross = MixtureCross(5, 3, low_rank=2, experts=4).double()
    randomise(cross)
    x0 = torch.randn(4, 5, dtype=torch.float64)

    for row, result in zip(x0, cross(x0), strict=True):
        x = row
        for layer in range(3):
            gates = torch.softmax(torch.stack([gate @ x for gate in cross.gate]), 0)
            mixed = torch.zeros(5, dtype=torch.float64)
            for i in range(4):
                inner = torch.tanh(cross.c[layer, i] @ torch.tanh(cross.v[layer, i].T @ x))
                mixed = mixed + gates[i] * row * (cross.u[layer, i] @ inner + cross.bias[layer])
            x = mixed + x
        torch.testing.assert_close(result, x)


def logits_by_hand(model: CTRModel, name: str, dense: Tensor, ids: Tensor) -> Tensor:
    state = model.state_dict()
    rows = ids.long() + torch.arange(ids.shape[1]) * 5
    e = state["embedding.weight"][rows]
    x0 = torch.cat([e.reshape(len(ids), -1), dense], 1)
    deep = x0
    for i in range(2):
        weight, bias = (state[f"network.mlp.layers.{i}.{part}"] for part in ("weight", "bias"))
        deep = (deep @ weight.T + bias).clamp(min=0)
    top = torch.cat([model.network.cross(x0), deep], 1) if name in CROSSED else deep  # type: ignore[operator]
    logits: Tensor = (top @ state["network.output.weight"].T + state["network.output.bias"])[:, 0]
    logits = logits + state["first_order.weight"][rows].sum((1, 2))
    if dense.shape[1]:
        logits = logits + dense @ state["network.dense_linear.weight"]
    return logits + pairwise_sum(e) if name == "deepfm" else logits


@pytest.mark.parametrize("fields", [1, 3])
@pytest.mark.parametrize("n_dense", [0, 2])
@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_the_logit_is_the_formula(name: str, n_dense: int, fields: int) -> None:
    model = small(name, n_dense=n_dense, fields=fields).double()
    randomise(model)
    dense, ids = make_inputs(9, n_dense=n_dense, fields=fields)
    dense = dense.double()

    logits = model(dense, ids)

    assert logits.shape == (9,)
    torch.testing.assert_close(logits, logits_by_hand(model, name, dense, ids))


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_gets_the_gradient_of_a_numerical_difference(name: str) -> None:
    model = small(name, embedding_dim=2, hidden=[3]).double()
    randomise(model)
    dense, ids = make_inputs(4)
    names, weights = zip(*model.named_parameters(), strict=True)

    def function(*values: Tensor) -> Any:
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (dense.double(), ids))

    assert torch.autograd.gradcheck(function, weights, fast_mode=True)


@pytest.mark.parametrize("n_dense", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_reaches_every_weight(name: str, n_dense: int) -> None:
    model = small(name, n_dense=n_dense)
    randomise(model)

    torch.autograd.backward(model(*make_inputs(200, n_dense=n_dense)).square().sum())

    without = [
        key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()
    ]
    assert without == []


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_the_rows_beside_it(name: str) -> None:
    model = small(name).double()
    randomise(model)
    dense, ids = make_inputs(7)
    dense = dense.double()

    alone = torch.cat([model(dense[i : i + 1], ids[i : i + 1]) for i in range(7)])

    torch.testing.assert_close(model(dense, ids), alone)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_works(name: str) -> None:
    model = small(name)
    logits = model(torch.zeros(0, 2), torch.zeros(0, 3, dtype=torch.int64))
    torch.autograd.backward(logits.sum())

    assert logits.shape == (0,)


# --- names, groups, initial values ----------------------------------------------------------------


Shapes = dict[str, tuple[int, ...]]
TABLES: Shapes = {"embedding.weight": (15, 4), "first_order.weight": (15, 1)}
LINEAR: Shapes = {"network.dense_linear.weight": (2,)}


def mlp_shapes(name: str, *widths: int) -> Shapes:
    shapes: Shapes = {}
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        shapes[f"network.{name}.layers.{i}.weight"] = (after, before)
        shapes[f"network.{name}.layers.{i}.bias"] = (after,)
    return shapes


def output_shapes(width: int) -> Shapes:
    return {"network.output.weight": (1, width), "network.output.bias": (1,)}


DEEP = mlp_shapes("mlp", 14, 6, 5)
SHAPES: dict[str, Shapes] = {
    "wide-deep": {**TABLES, **LINEAR, **DEEP, **output_shapes(5)},
    "deepfm": {**TABLES, **LINEAR, **DEEP, **output_shapes(5)},
    "dcn": {
        **TABLES,
        **LINEAR,
        "network.cross.weight": (3, 14),
        "network.cross.bias": (3, 14),
        **DEEP,
        **output_shapes(5 + 14),
    },
    "dcn-v2": {
        **TABLES,
        **LINEAR,
        "network.cross.weight": (3, 14, 14),
        "network.cross.bias": (3, 14),
        **DEEP,
        **output_shapes(5 + 14),
    },
    "dcn-v2-mix": {
        **TABLES,
        **LINEAR,
        "network.cross.u": (3, 2, 14, 2),
        "network.cross.v": (3, 2, 14, 2),
        "network.cross.c": (3, 2, 2, 2),
        "network.cross.bias": (3, 14),
        "network.cross.gate": (2, 14),
        **DEEP,
        **output_shapes(5 + 14),
    },
    "fm": {**TABLES, **LINEAR, "network.dense_fields.vectors": (2, 4), "network.bias": (1,)},
    "dlrm": {
        "embedding.weight": (15, 4),
        **mlp_shapes("bottom", 2, 3, 4),
        **mlp_shapes("top", 4 + 6, 6, 5),
        **output_shapes(5),
    },
    "xdeepfm": {
        **TABLES,
        **LINEAR,
        "network.cin.weights.0": (3, 3 * 3),
        "network.cin.weights.1": (2, 3 * 3),
        **DEEP,
        **output_shapes(3 + 2 + 5),
    },
    "autoint": {
        "embedding.weight": (15, 4),
        "network.dense_fields.vectors": (2, 4),
        **{
            f"network.attention.{layer}.{part}": (6, inputs)
            for layer, inputs in enumerate([4, 6])
            for part in ("query", "key", "value", "residual")
        },
        **DEEP,
        **output_shapes(5 * 6 + 5),
    },
    "finalnet": {
        "embedding.weight": (15, 4),
        **{
            f"network.block.layers.{layer}.{part}.{kind}": shape
            for layer, (inputs, outputs) in enumerate([(14, 6), (6, 5)])
            for part in ("linear", "factor")
            for kind, shape in (("weight", (outputs, inputs)), ("bias", (outputs,)))
        },
        **output_shapes(5),
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_names_and_shapes_stay(name: str) -> None:
    shapes = {key: tuple(value.shape) for key, value in small(name).state_dict().items()}

    assert shapes == SHAPES[name]


@pytest.mark.parametrize("name", NAMES)
def test_without_dense_features_there_are_no_weights_for_them(name: str) -> None:
    names = small(name, n_dense=0).state_dict()

    assert not [key for key in names if "dense_linear" in key or "dense_fields" in key or "bottom" in key]


@pytest.mark.parametrize("name", NAMES)
def test_a_network_that_reads_no_first_order_weights_has_no_table_of_them(name: str) -> None:
    model = small(name)
    network = model.network
    dense, embeddings = torch.randn(4, 2), torch.randn(4, 3, 4)
    logits = [network(dense, embeddings, first_order) for first_order in (torch.zeros(4), torch.ones(4))]

    assert network.uses_first_order is (name not in WITHOUT_FIRST_ORDER)
    assert (model.first_order is not None) is network.uses_first_order
    torch.testing.assert_close(logits[0] + network.uses_first_order, logits[1])


@pytest.mark.parametrize("name", NAMES)
def test_parameter_groups_hold_every_weight_once_with_its_own_rate(name: str) -> None:
    model = small(name)

    groups = {
        group["name"]: group
        for group in model.parameter_groups(
            learning_rate=0.1, embedding_learning_rate=0.2, l2=0.3, l2_cross=0.4, clip="cowclip"
        )
    }

    grouped = [id(parameter) for group in groups.values() for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    facts = {key: (g["kind"], g["lr"], g["l2"], g.get("clip", "none")) for key, g in groups.items()}
    assert facts == {
        "embedding": ("embedding", 0.2, 0.3, "cowclip"),
        **({} if name in WITHOUT_FIRST_ORDER else {"first_order": ("first_order", 0.2, 0.3, "none")}),
        "dense": ("dense", 0.1, 0.0, "none"),
        **({"cross": ("dense", 0.1, 0.4, "none")} if name in CROSSED else {}),
    }


@pytest.mark.parametrize("name", CROSSED)
def test_the_cross_group_leaves_biases_and_gates_out(name: str) -> None:
    model = small(name)
    names = {id(parameter): key for key, parameter in model.network.named_parameters()}

    crossed = {names[id(parameter)] for parameter in model.network.cross_weights()}

    assert (
        crossed
        == {
            "dcn": {"cross.weight"},
            "dcn-v2": {"cross.weight"},
            "dcn-v2-mix": {"cross.u", "cross.v", "cross.c"},
        }[name]
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_every_initial_value(name: str) -> None:
    torch.manual_seed(5)
    first = small(name)
    torch.manual_seed(5)
    second = small(name)
    generators = [torch.Generator().manual_seed(6) for _ in range(2)]
    third, fourth = (small(name, generator=generator) for generator in generators)

    for a, b in ((first, second), (third, fourth)):
        assert all(torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items())
    assert not torch.equal(first.embedding.weight, third.embedding.weight)


@pytest.mark.parametrize("name", NAMES)
def test_a_generator_leaves_torchs_own_alone(name: str) -> None:
    before = torch.get_rng_state()

    small(name, generator=torch.Generator().manual_seed(6))

    assert torch.equal(torch.get_rng_state(), before)


def test_initial_values_are_those_of_the_reference() -> None:
    model = build_model("deepfm", sizes=[2000], n_dense=3)

    assert model.first_order is not None
    assert not model.first_order.weight.any()
    assert model.embedding.weight.std().item() == pytest.approx(1e-2, rel=0.05)
    assert [tuple(layer.weight.shape) for layer in model.network.mlp.layers] == [  # type: ignore[union-attr]
        (400, 13),
        (400, 400),
        (400, 400),
    ]
    assert not any(value.any() for key, value in model.state_dict().items() if key.endswith("bias"))


def test_glorot_normal_has_the_deviation_asked_for_and_is_cut_at_two() -> None:
    weight = glorot_normal_(torch.empty(300, 500), fan_in=500, fan_out=300)
    deviation = (2 / 800) ** 0.5

    assert weight.std().item() == pytest.approx(deviation, rel=0.02)
    assert weight.abs().max().item() <= 2 * deviation / 0.8796 + 1e-6


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_interaction_is_learned(name: str) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 6, (2000, 2))
    labels = (ids[:, 0] % 2 == ids[:, 1] % 2).long()  # no field tells anything alone
    model = build_model(name, sizes=[6, 6], n_dense=0, embedding_dim=4, hidden=[16], init_std=0.1)
    optimizer = CowClip(model.parameter_groups(learning_rate=0.02, embedding_learning_rate=0.02))
    dense = torch.zeros(500, 0)

    for _ in range(30):
        for start in range(0, 2000, 500):
            optimizer.zero_grad()
            batch = slice(start, start + 500)
            torch.autograd.backward(cross_entropy(model(dense, ids[batch]), labels[batch]))
            optimizer.step()

    scores = model(torch.zeros(2000, 0), ids).detach()
    area = auc(labels.numpy(), scores.numpy())
    assert area is not None
    assert area > 0.99


# --- errors ---------------------------------------------------------------------------------------


def test_an_unknown_model_names_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"'lr': choose one of wide-deep, deepfm, dcn, .*, finalnet$"):
        build_model("lr", sizes=[3], n_dense=0)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden": []},
        {"hidden": [4, 0]},
        {"cross_layers": 0},
        {"low_rank": 0},
        {"experts": 0},
        {"embedding_dim": 0},
        {"n_dense": -1},
        {"fields": 0},
        {"bottom_hidden": []},
        {"cin_layers": [3, 0]},
        {"attention_layers": 0},
        {"attention_heads": 0},
        {"attention_dim": 0},
    ],
)
def test_a_size_that_makes_no_model_is_a_config_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        small("dcn", **options)


def test_dlrm_needs_a_pair_of_vectors() -> None:
    with pytest.raises(ConfigError, match="two fields, or one and a dense feature"):
        small("dlrm", fields=1, n_dense=0)

    assert small("dlrm", fields=1, n_dense=1)(*make_inputs(3, fields=1, n_dense=1)).shape == (3,)
