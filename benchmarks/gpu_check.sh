#!/bin/sh
# Everything that only a GPU can tell, in one run of under 8 minutes on one GPU, without a network:
#
#     benchmarks/gpu_check.sh [RESULT.json] [options; --help lists them]
#
# PYTHON names the interpreter (python3). It needs torch; CuPy and numba-cuda for the kernels; what else is
# missing leaves sections out, and the result says which. Packages of another folder: PYTHONPATH.
# Exit code: 0, or 1 where a section failed or a kernel is wrong.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$root/src:$root${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
exec "${PYTHON:-python3}" -m benchmarks.gpu_check "$@"
