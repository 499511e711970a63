#!/bin/sh
# AUC at 64 and 128 times the base batch, by rule: the study of docs/results.md.
#
#   sh benchmarks/large_batch.sh OUT [REAL_LOG]
#
# 4,000,000 synthetic Criteo rows at the base batch of benchmarks/large_batch.toml (about an hour on 2 cores), and,
# where a log of real rows is named, the same rules on that. A study that was stopped goes on.
set -eu
out=$1
recipe=$(dirname "$0")/large_batch.toml

if [ ! -d "$out/synthetic_data" ]; then
    stampede synth criteo --rows 4000000 --out "$out/log.tsv" --force
    stampede prepare criteo "$out/log.tsv" --recipe "$recipe" --test-fraction 0.1 --out "$out/synthetic_data"
fi
stampede sweep "$out/synthetic_data" --recipe "$recipe" --batch-sizes 128,8192,16384 \
    --rules cowclip,linear,none --seeds 3 --threads 1 --jobs 2 --keep-checkpoints 1 \
    --out "$out/synthetic" --resume

if [ $# -gt 1 ]; then
    [ -d "$out/real_data" ] || stampede prepare criteo "$2" --recipe small --out "$out/real_data"
    stampede sweep "$out/real_data" --recipe small --batch-sizes 128,1024,8192,16384 \
        --rules cowclip,linear,none --seeds 2 --epochs 10 --patience 2 --hidden 64,64 --threads 1 \
        --keep-checkpoints 1 --out "$out/real" --resume
fi
