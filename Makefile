# One verb a target. `make demo` and `make test` work from a fresh clone: they make .venv and
# install what is missing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CODE   := polarless compute memory_pool storage bench tests
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo test check fmt lint types imports tests fast soak bench bench-quick sim sim-mutants clean \
        postgres postgres-optional

help:  ## what there is to type
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---------------------------------------------------------------------------- what others need

# The stamp is younger than pyproject.toml exactly when the environment fits it.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "polarless needs Python 3.11 or later; try: make PYTHON=python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

venv: $(VENV)/.installed  ## the environment alone

postgres:
	@scripts/install-postgres.sh

postgres-optional:
	@scripts/install-postgres.sh --optional

# ------------------------------------------------------------------------------------- running

demo: $(VENV)/.installed postgres-optional  ## a cluster, pgbench, kill -9, and what it cost
	$(BIN)/polarless demo $(ARGS)

bench: $(VENV)/.installed-bench postgres  ## the benchmarks, in full: an hour
	$(BIN)/python -P -m bench all --plot bench-results --out bench-results $(ARGS)

bench-quick: $(VENV)/.installed-bench postgres  ## the benchmarks, small: some five minutes
	$(BIN)/python -P -m bench all --quick --plot bench-results --out bench-results $(ARGS)

sim: $(VENV)/.installed  ## the whole cluster in one loop, by seed: ARGS="--seeds 1..2000"
	$(BIN)/python -m tests.sim $(ARGS)

sim-mutants: $(VENV)/.installed  ## does the simulation find deliberate bugs?
	$(BIN)/python -m tests.sim --mutants $(ARGS)

# ------------------------------------------------------------------------------------ checking

test: check  ## the same as check

check: lint types imports tests  ## everything that must hold before a merge

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed
	$(BIN)/mypy

imports: $(VENV)/.installed
	$(BIN)/lint-imports --no-logo

# After the cheap checks, also under make -j.
tests: $(VENV)/.installed postgres | lint types imports
	$(BIN)/pytest $(ARGS)

fast: $(VENV)/.installed  ## the tests that start no processes
	$(BIN)/pytest -m 'not cluster' $(ARGS)

soak: $(VENV)/.installed postgres  ## the long tests
	$(BIN)/pytest -m slow $(ARGS)

fmt: $(VENV)/.installed  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what builds and tests left; data directories stay
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .ruff_cache .pytest_cache \
	    .import_linter_cache bench-results
	find $(CODE) scripts -name __pycache__ -type d -prune -exec rm -rf {} +
