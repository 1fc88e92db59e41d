# make eval   sets everything up and runs the main job on the embedded model
# make test   sets everything up and runs linting, types and tests
# make oldest runs the tests of models with the oldest transformers; make test runs the most telling ones of them
# make lm-eval runs the tests of the model kvfw in lm-eval, which .venv does not contain
# make unit   runs the quick tests: those of parts, which need neither the embedded model nor other programs
# make docs   sets everything up and builds the documentation: docs/_build/html/VERSION, beside versions built before

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
OLDEST := .venv-oldest
LMEVAL := .venv-lm-eval
# A process per core; the tests of one file share costly fixtures, so they stay in one process.
PYTEST := -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile

.PHONY: eval test lint types unit whole oldest oldest-quick lm-eval docs clean

eval: $(READY)
	$(BIN)/kvfw eval --preset quick

test: lint types unit whole oldest-quick

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/python $(PYTEST) -m "not real and not slow"

whole: $(READY)
	$(BIN)/python $(PYTEST) -m "real or slow"

# The oldest supported transformers, in an environment of its own: every family, and the embedded model all the way.
oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python $(PYTEST) tests/model -m "not real"
	$(OLDEST)/bin/python -m pytest tests/model/session/test_end_to_end.py -m real

# What make test asks of it: sessions, caches and pins, on a few families that differ (and LongRoPE, which versions treat
# differently). The other families have passed with the newest transformers by then; make oldest runs them all.
QUICK := not test_families or longrope or (test_it_holds and (llama or gemma2 or gpt_neox or qwen3))
oldest-quick: $(OLDEST)/.ready
	$(OLDEST)/bin/python $(PYTEST) tests/model/session tests/model/cache tests/model/compat -m "not real" -k "$(QUICK)"

# lm-eval as kvfw[lm-eval] brings it, with a third of a gigabyte of its own: not in make test, whose time is short.
lm-eval: $(LMEVAL)/.ready
	$(LMEVAL)/bin/python -m pytest tests/harness/with_lm_eval.py

docs: $(READY)
	$(BIN)/python -m sphinx -q -n -W --keep-going -b html docs \
	  "docs/_build/html/$$($(BIN)/python -c 'from importlib.metadata import version; print(version("kvfw"))')"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvfw needs Python 3.11 or later; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

# What their constraints do not name is looked up in .venv. pip check sees that all fits together.
$(OLDEST)/.ready: constraints-oldest.txt
$(LMEVAL)/.ready: constraints-lm-eval.txt
$(OLDEST)/.ready $(LMEVAL)/.ready: $(READY)
	rm -rf $(@D)
	$(BIN)/python -m venv --without-pip $(@D)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	$(BIN)/pip --python $(@D)/bin/python install --quiet --disable-pip-version-check --no-deps \
	  --requirement constraints$(subst .venv,,$(@D)).txt
	$(BIN)/pip --python $(@D)/bin/python check
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(LMEVAL) docs/_build docs/parts docs/reference.rst .mypy_cache .pytest_cache .ruff_cache .hypothesis
