# Everything sets itself up in .venv: all it needs is Python 3.11 or newer.
#
#   make demo      real Criteo rows -> dataset -> DeepFM with CowClip -> exact test AUC
#   make test      tests, lint, types, import contracts, build
#   make lint      lint, types and import contracts alone
#   make bench     the benchmarks in benchmarks/
#
# PYTHON names the interpreter; PIP_ARGS is handed to pip, for example to take the CPU build of torch.

PYTHON ?= python3
PIP_ARGS ?=
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt

.PHONY: demo test lint bench clean
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

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/step.py

clean:
	rm -rf $(VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Stampede needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed
