# Everything sets itself up in .venv: all it needs is Python 3.11 or newer.
#
#   make demo      real Criteo rows -> dataset -> DeepFM with CowClip -> exact test AUC
#   make test      tests, lint, types, import contracts, documentation, build
#   make lint      lint, types and import contracts alone
#   make docs      the documentation as a site, in site/; make docs-serve shows it while it is written
#   make bench     the benchmark of a training step; the others in benchmarks/ take arguments
#   make env-nvtabular   what `stampede prepare --engine nvtabular` needs; its tests run where that is
#   make env-gpu   cudf-polars, to ask whether the plans of `--engine polars-gpu` would run on a GPU: a minute
#                  and 3 GB, on any x86_64 machine; its tests run where that is
#   make env-peers   DeepCTR-Torch and FuxiCTR, for `python -m benchmarks.peers`: 2 GB; its test runs where that is
#
# PYTHON names the interpreter, NVTABULAR_PYTHON that of NVTabular's packages (3.11); PIP_ARGS is handed to pip,
# for example to take the CPU build of torch.

PYTHON ?= python3
PIP_ARGS ?=
VENV ?= .venv
NVTABULAR_PYTHON ?= python3.11
NVTABULAR_VENV := .venv-nvtabular
GPU_VENV := .venv-gpu
PEERS_VENV := .venv-peers
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt

.PHONY: demo test lint docs docs-serve bench env-nvtabular env-gpu env-peers clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@PATH="$(abspath $(BIN)):$$PATH" sh ./demo.sh

test: lint $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -q
	rm -rf build dist
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/python tests/check_wheel.py dist

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html through a web server: make docs-serve"

docs-serve: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/step.py

env-nvtabular: $(NVTABULAR_VENV)/.installed

env-gpu: $(GPU_VENV)/.installed

env-peers: $(PEERS_VENV)/.installed

clean:
	rm -rf $(VENV) $(NVTABULAR_VENV) $(GPU_VENV) $(PEERS_VENV) build dist demo site .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Stampede needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Stampede and PyTorch into $(VENV): minutes, the first time"
	$(INSTALL) -e '.[all]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the tools for development into $(VENV)"
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed

# What is there for development has it too.
$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	@test -e $(VENV)/.installed-dev || { echo "installing Stampede and mkdocs into $(VENV)"; \
		$(INSTALL) -e '.[all,docs]'; }
	@touch $@

$(NVTABULAR_VENV)/.installed: requirements-nvtabular.txt
	@$(NVTABULAR_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "NVTabular's packages need Python 3.11: make NVTABULAR_PYTHON=/path/to/python3.11 $@"; exit 1; }
	$(NVTABULAR_PYTHON) -m venv $(NVTABULAR_VENV)
	$(NVTABULAR_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r $<
	$(NVTABULAR_VENV)/bin/python -W ignore -c 'import nvtabular'
	@touch $@

# What stampede.pipeline imports, and cudf-polars with its Dask engine; no torch.
$(GPU_VENV)/.installed: constraints-gpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Stampede needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $@"; exit 1; }
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c $< \
		cudf-polars-cu13 dask-cuda numpy polars pydantic zstandard
	$(GPU_VENV)/bin/python -c 'import cudf_polars.engine.dask'
	@touch $@

# DeepCTR-Torch is not imported here: its import asks PyPI for a newer version of itself.
$(PEERS_VENV)/.installed: requirements-peers.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "the peers need Python 3.11 or newer: make PYTHON=/path/to/python3.11 $@"; exit 1; }
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		-c constraints.txt -r $<
	$(PEERS_VENV)/bin/python -c 'import fuxictr.pytorch.models'
	@touch $@
