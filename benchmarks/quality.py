"""Compare the recipe `small` with logistic regression on the same rows: test AUC and log loss of both.

    python benchmarks/quality.py criteo_137k.tsv.gz --seeds 0,1,2

The last tenth of the rows, in file order, is the test. Logistic regression (scikit-learn, one-hot ids, L2) is
fitted on all earlier rows; DeepFM takes its validation rows from them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse
from sklearn.linear_model import LogisticRegression

from stampede.pipeline import Dataset
from stampede.pipeline.dataset import Split
from stampede.training.metrics import auc, log_loss
from stampede.workflows.prepare import PrepareRequest, run_prepare
from stampede.workflows.train import run_train


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", help="raw Criteo rows")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _compare(options.log, Path(folder), [int(seed) for seed in options.seeds.split(",")], options.threads)


def _compare(log: str, folder: Path, seeds: list[int], threads: int | None) -> None:
    whole = _prepare(log, folder / "whole", valid_fraction=0.0)
    best = max((_logistic_regression(whole, strength) for strength in (0.03, 0.1, 0.3)), key=lambda m: m[0])
    print(f"{'logistic regression, best of three strengths':<46} AUC {best[0]:.5f}  log loss {best[1]:.5f}")

    dataset = _prepare(log, folder / "dataset")
    figures = []
    for seed in seeds:
        given = {"seed": seed} if threads is None else {"seed": seed, "threads": threads}
        _, result = run_train(
            dataset.path, out=folder / f"run{seed}", recipe="small", given=given, force=False, say=print
        )
        assert result.test is not None
        assert result.test.auc is not None
        assert result.test.logloss is not None
        figures.append((result.test.auc, result.test.logloss))
        name = f"DeepFM, recipe small, seed {seed}, best epoch {result.best_epoch}"
        print(f"{name:<46} AUC {figures[-1][0]:.5f}  log loss {figures[-1][1]:.5f}", flush=True)
    means = [statistics.fmean(column) for column in zip(*figures, strict=True)]
    print(f"{f'mean of {len(seeds)} seeds':<46} AUC {means[0]:.5f}  log loss {means[1]:.5f}")


def _prepare(log: str, out: Path, **given: float) -> Dataset:
    values = {"split": "sequential", **given}
    return run_prepare(PrepareRequest("criteo", [log], out, "small", values), force=False).dataset


def _logistic_regression(dataset: Dataset, strength: float) -> tuple[float, float]:
    sizes = list(dataset.sizes.values())
    offsets = np.cumsum([0, *sizes[:-1]])

    def one_hot(split: Split) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
        frame = dataset.scan(split).collect()
        columns = frame.select(dataset.fields).to_numpy() + offsets
        starts = np.arange(len(columns) + 1) * columns.shape[1]
        ones = np.ones(columns.size, np.float32)
        matrix = scipy.sparse.csr_matrix((ones, columns.ravel(), starts), shape=(len(columns), sum(sizes)))
        return matrix, frame["label"].to_numpy()

    features, labels = one_hot("train")
    model = LogisticRegression(C=strength, max_iter=300).fit(features, labels)
    features, labels = one_hot("test")
    scores = model.predict_proba(features)[:, 1]
    area, loss = auc(labels, scores), log_loss(labels, scores)
    assert area is not None
    assert loss is not None
    return area, loss


if __name__ == "__main__":
    main()
