# One list of commands, for people and for CI. Every target sets up what it needs.

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.ready-docs
SEEDS ?= 10000
BENCH ?= core

.DEFAULT_GOAL := help

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything that tests and tools need

# The lock is installed by its hashes; boreal itself is installed in place, so that edits count at once.
$(READY): pyproject.toml requirements-dev.txt
	@test -n "$(PYTHON)" || { echo "boreal needs Python 3.11 or later: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# On top of the other lock, whose versions it shares.
$(DOCS_READY): $(READY) requirements-docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.txt
	@touch $@

demo: $(READY) ## run the flights with an airport cut off, and show what happens (about a minute)
	$(BIN)/python examples/flights/demo.py out/demo

test: $(READY) ## run all tests
	$(BIN)/python -m services.hosting.fetch
	$(BIN)/python -m pytest -n auto --dist loadgroup -q

faults: $(READY) ## break real processes in every known way, and write the figures of each to out/faults.md
	@mkdir -p out && rm -f out/faults.md
	BOREAL_FAULTS_TABLE=out/faults.md $(BIN)/python -m pytest -q -m "soak or not soak" tests/stack/test_faults.py tests/stack/test_sites.py tests/spark/test_deployment_faults.py

soak: $(READY) ## what `make test` leaves out: half an hour without an input, squeezed, and the rarer faults
	$(BIN)/python -m pytest -q -s -m soak tests/stack tests/spark

lint: $(READY) ## check style
	$(BIN)/ruff check .

types: $(READY) ## check types: strictly in the pure rooms
	$(BIN)/mypy --strict boreal sunion operators reconcile formats intake logs deployment
	$(BIN)/mypy embedded services spark_jobs simulation bench boreal_cli

simulate: $(READY) ## run SEEDS (default 10,000) seeds of the simulator
	$(BIN)/boreal simulate --seeds $(SEEDS)

scenarios: $(READY) ## write the traces of tests/scenarios again, as they are now
	$(BIN)/python -m tests.scenarios.rewrite

bench: $(READY) ## measure, on this machine: BENCH=core
	$(BIN)/python -m boreal bench $(BENCH)

docs: $(DOCS_READY) ## write the reference pages from the code, and the documentation as a site to out/site
	$(BIN)/python -m boreal_cli.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

LOCK := pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --upgrade --no-header \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-annotate

lock: $(READY) ## write requirements-dev.txt and requirements-docs.txt from pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-tools
	$(BIN)/$(LOCK) --extra dev --extra stack --extra examples -o requirements-dev.txt pyproject.toml
	$(BIN)/$(LOCK) --extra docs --constraint requirements-dev.txt -o requirements-docs.txt pyproject.toml

clean: ## remove .venv, caches and results
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help setup demo test faults soak lint types simulate scenarios bench docs lock clean
