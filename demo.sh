#!/bin/sh
# The whole job on 9,000 real Criteo rows: prepare, train, evaluate, predict. `make demo` runs it.
set -eu
out=${1:-demo}
rows=$(dirname "$0")/tests/data/criteo_9k.tsv.gz

echo "== prepare: raw rows to ids and counts (this recipe turns numbers into buckets)"
stampede prepare criteo "$rows" --recipe small --out "$out/dataset" --force
echo
echo "== train: DeepFM with CowClip"
stampede train "$out/dataset" --recipe small --model deepfm --out "$out/run" --force
echo
echo "== evaluate: the best epoch on the test split"
stampede evaluate "$out/run" --split test
echo
echo "== predict: the same rows as raw text, scored in order"
stampede predict "$out/run" "$rows" --out "$out/scores.csv" --force
head -n 4 "$out/scores.csv"
echo
echo "The command is in .venv: activate it with '. .venv/bin/activate', then go on with README.md, \"Quick start\"."
