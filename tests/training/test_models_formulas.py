"""The models beyond the paper's, against their formulas: loops over fields, pairs and heads in numpy."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stampede.training.models import MODELS, NetworkOptions

Array = NDArray[np.float64]
Weights = dict[str, Array]


@dataclass(frozen=True)
class Row:
    """What a network sees of a row: dense features [n_dense], embeddings [F, d], the first-order sum."""

    dense: Array
    embeddings: Array
    first_order: float

    @property
    def joined(self) -> Array:
        return np.array([*(value for e in self.embeddings for value in e), *self.dense])

    def vectors(self, w: Weights) -> list[Array]:
        """Return the embeddings, and each dense feature times its vector."""
        return [
            *self.embeddings,
            *(x * v for x, v in zip(self.dense, w["dense_fields.vectors"], strict=True)),
        ]

    def linear(self, w: Weights) -> float:
        return self.first_order + dot(self.dense, w["dense_linear.weight"])


def dot(a: Array, b: Array) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def affine(w: Weights, name: str, x: Array) -> Array:
    rows = zip(w[f"{name}.weight"], w[f"{name}.bias"], strict=True)
    return np.array([dot(row, x) + float(bias) for row, bias in rows])


def relu(x: Array) -> Array:
    return np.array([max(float(value), 0.0) for value in x])


def mlp(w: Weights, name: str, x: Array, *, layers: int) -> Array:
    for layer in range(layers):
        x = relu(affine(w, f"{name}.layers.{layer}", x))
    return x


def output(w: Weights, x: Array) -> float:
    return float(affine(w, "output", x)[0])


def fm(row: Row, w: Weights, o: NetworkOptions) -> float:
    pairs = sum(dot(a, b) for a, b in combinations(row.vectors(w), 2))
    return float(w["bias"][0]) + row.linear(w) + pairs


def dlrm(row: Row, w: Weights, o: NetworkOptions) -> float:
    vectors = list(row.embeddings)
    features: list[float] = []
    if o.n_dense:
        x = mlp(w, "bottom", row.dense, layers=len(o.bottom_hidden) + 1)
        vectors = [x, *vectors]
        features += x.tolist()
    features += [dot(vectors[i], vectors[j]) for i in range(len(vectors)) for j in range(i)]
    return output(w, mlp(w, "top", np.array(features), layers=len(o.hidden)))


def xdeepfm(row: Row, w: Weights, o: NetworkOptions) -> float:
    x0 = list(row.embeddings)
    x, pooled = x0, []
    for layer, maps in enumerate(o.cin_layers):
        weight = w[f"cin.weights.{layer}"].reshape(maps, len(x), len(x0))
        nothing = np.zeros(o.embedding_dim)
        x = [
            sum((weight[h, i, j] * x[i] * x0[j] for i in range(len(x)) for j in range(len(x0))), nothing)
            for h in range(maps)
        ]
        pooled += [float(sum(each)) for each in x]
    deep = mlp(w, "mlp", row.joined, layers=len(o.hidden))
    return row.linear(w) + output(w, np.array([*pooled, *deep]))


def autoint(row: Row, w: Weights, o: NetworkOptions) -> float:
    width = o.attention_dim
    vectors = row.vectors(w)
    for layer in range(o.attention_layers):
        name = f"attention.{layer}"
        attended = []
        for e in vectors:
            heads: list[float] = []
            for h in range(o.attention_heads):
                q, k, v = (
                    w[f"{name}.{part}"][h * width : (h + 1) * width] for part in ("query", "key", "value")
                )
                scores = [dot(q @ e, k @ other) / math.sqrt(width) for other in vectors]
                chances = [math.exp(score - max(scores)) for score in scores]
                heads += [
                    sum(c * dot(v[i], other) for c, other in zip(chances, vectors, strict=True))
                    / sum(chances)
                    for i in range(width)
                ]
            attended.append(relu(np.array(heads) + w[f"{name}.residual"] @ e))
        vectors = attended
    deep = mlp(w, "mlp", row.joined, layers=len(o.hidden))
    return output(w, np.array([*(value for e in vectors for value in e), *deep]))


def finalnet(row: Row, w: Weights, o: NetworkOptions) -> float:
    x = row.joined
    for layer in range(len(o.hidden)):
        h = affine(w, f"block.layers.{layer}.linear", x)
        factor = affine(w, f"block.layers.{layer}.factor", x)
        x = relu(np.array([a + a * b for a, b in zip(h, factor, strict=True)]))
    return output(w, x)


FORMULAS: dict[str, Callable[[Row, Weights, NetworkOptions], float]] = {
    "fm": fm,
    "dlrm": dlrm,
    "xdeepfm": xdeepfm,
    "autoint": autoint,
    "finalnet": finalnet,
}

widths = st.lists(st.integers(1, 4), min_size=1, max_size=2).map(tuple)
options = st.builds(
    NetworkOptions,
    n_fields=st.integers(1, 4),
    n_dense=st.integers(0, 3),
    embedding_dim=st.integers(1, 4),
    hidden=widths,
    bottom_hidden=widths,
    cin_layers=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    attention_layers=st.integers(1, 2),
    attention_heads=st.integers(1, 2),
    attention_dim=st.integers(1, 3),
)


@pytest.mark.parametrize("name", FORMULAS)
@given(o=options, rows=st.integers(0, 3), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_logit_is_the_formula(name: str, o: NetworkOptions, rows: int, seed: int) -> None:
    if name == "dlrm" and (o.n_fields, o.n_dense) == (1, 0):
        return  # no pair: test_models.py
    generator = torch.Generator().manual_seed(seed)
    network = MODELS[name](o, generator=generator).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.7, generator=generator)
    dense, embeddings, first_order = (
        torch.randn(rows, *shape, generator=generator, dtype=torch.float64)
        for shape in ((o.n_dense,), (o.n_fields, o.embedding_dim), ())
    )

    logits = network(dense, embeddings, first_order)

    weights = {"dense_linear.weight": np.zeros(0), "dense_fields.vectors": np.zeros((0, o.embedding_dim))}
    weights |= {key: value.numpy() for key, value in network.state_dict().items()}
    expected = [
        FORMULAS[name](Row(x.numpy(), e.numpy(), float(linear)), weights, o)
        for x, e, linear in zip(dense, embeddings, first_order, strict=True)
    ]
    np.testing.assert_allclose(logits.detach().numpy(), expected, rtol=1e-9, atol=1e-9)


def test_every_model_beyond_the_papers_has_its_formula_here() -> None:
    assert set(MODELS) - {"wide-deep", "deepfm", "dcn", "dcn-v2", "dcn-v2-mix"} == set(FORMULAS)
