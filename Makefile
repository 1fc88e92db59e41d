# make eval   sets everything up and runs the main job on the embedded model
# make test   sets everything up and runs linting, types and tests
# make unit   runs the quick tests: those of parts, which need neither the embedded model nor other programs
# make docs   sets everything up and builds the documentation: docs/_build/html/index.html

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# A process per core; the tests of one file share costly fixtures, so they stay in one process.
PYTEST := $(BIN)/pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile

.PHONY: eval test lint types unit whole docs clean

eval: $(READY)
	$(BIN)/kvfw eval --preset quick

test: lint types unit whole

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(PYTEST) -m "not real and not slow"

whole: $(READY)
	$(PYTEST) -m "real or slow"

docs: $(READY)
	$(BIN)/python -m sphinx -q -n -W --keep-going -b html docs docs/_build/html

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvfw needs Python 3.11 or later; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) docs/_build docs/parts docs/reference.rst .mypy_cache .pytest_cache .ruff_cache .hypothesis
