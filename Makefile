# One list of commands, for people and for CI. Every target sets up what it needs.

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
DEMO_READY := $(VENV)/.demo-ready
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.ready-docs
SEEDS ?= 10000
# One more than two cores have: tests of real servers wait most of their time.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(max(3, os.cpu_count() or 1))')
BENCH ?= core

.DEFAULT_GOAL := help

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything that tests and tools need

# Both locks are installed by their hashes. The demo's has only what a run needs, in the same versions; without the pandas that
# the flights' package asks for, since only its files are read. boreal itself is installed in place, so that edits count at once.
$(DEMO_READY): requirements-demo.txt
	@test -n "$(PYTHON)" || { echo "boreal needs Python 3.11 or later: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --no-compile --no-deps --require-hashes -r requirements-demo.txt
	@touch $@

$(READY): $(DEMO_READY) pyproject.toml requirements-dev.txt
	$(PIP) install --quiet --require-hashes -r requirements-dev.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# On top of the other lock, whose versions it shares.
$(DOCS_READY): $(READY) requirements-docs.txt
	$(PIP) install --quiet --require-hashes -r requirements-docs.txt
	@touch $@

demo: $(DEMO_READY) ## run the flights with an airport cut off, and show what happens (under a minute, with its setup)
	PYTHONPATH=. $(BIN)/python examples/flights/demo.py out/demo

# Tests start some hundred Python processes. Without bytecode on disk, each compiles all that it imports again, which took up to
# half of its start: so it is written, even where the environment says otherwise, as images for containers often do.
test browser faults soak: export PYTHONDONTWRITEBYTECODE =

# The tests are collected once before: the workers would each rewrite the assertions of all of them, at the same time.
test: $(READY) ## run the tests
	$(BIN)/python -m services.hosting.fetch
	$(BIN)/python -m services.stack.class_archive & $(BIN)/python -m pytest --collect-only -q >/dev/null; wait $$!
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -q

browser: $(READY) ## run the tests in a browser, Chromium, and keep pictures of the pages in out/browser
	$(BIN)/python -m pytest -q -m "soak or not soak" tests/browser

vendor: ## make the dashboard's vendored files again (needs Node and npm)
	api/vendor/make.sh

faults: $(READY) ## break real processes in every known way, and write the figures of each to out/faults.md
	@mkdir -p out && rm -f out/faults.md
	BOREAL_FAULTS_TABLE=out/faults.md $(BIN)/python -m pytest -q -m "soak or not soak" tests/stack/test_faults.py tests/stack/test_sites.py tests/stack/test_worker_faults.py tests/stack/test_joined_workers.py tests/spark/test_deployment_faults.py

soak: $(READY) ## what `make test` leaves out: half an hour without an input, squeezed, the rarer faults, and more like cases
	$(BIN)/python -m pytest -q -s -m soak

thorough: export BOREAL_THOROUGH = 1
thorough: $(READY) ## run the random tests with ten times as many cases
	$(BIN)/python -m pytest -n $(WORKERS) -q tests/property tests/simulation tests/paper tests/blackbox tests/examples/test_flights.py tests/unit/embedded/live tests/unit/intake tests/unit/deployment tests/unit/boreal tests/unit/formats tests/unit/api/test_openapi.py tests/unit/api/test_any_request.py

lint: $(READY) ## check style
	$(BIN)/ruff check .

types: $(READY) ## check types: strictly, but for the tests
	$(BIN)/mypy

simulate: $(READY) ## run SEEDS (default 10,000) seeds of the simulator
	$(BIN)/boreal simulate --seeds $(SEEDS)

roles: SEEDS = 500
roles: $(READY) ## run SEEDS (default 500) seeds of the simulator of roles: threads, clients and all
	$(BIN)/python -m role_simulation --seeds $(SEEDS)

scenarios: $(READY) ## write the traces of tests/scenarios again, as they are now
	$(BIN)/python -m tests.scenarios.rewrite

bench: $(READY) ## measure, on this machine: BENCH=core
	$(BIN)/python -m boreal bench $(BENCH)

docs: $(DOCS_READY) ## write the reference pages from the code, and the documentation as a site to out/site
	$(BIN)/python -m boreal_cli.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

LOCK := $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --upgrade --no-header --no-emit-index-url \
	--no-emit-trusted-host --no-emit-find-links --no-annotate
WITH_PANDAS := $(foreach package,pandas python-dateutil pytz tzdata,--unsafe-package $(package))

# What the demo leaves out, pip-compile lists at the end, as a warning.
lock: $(READY) ## write all three locks again from pyproject.toml
	$(PIP) install --quiet pip-tools
	$(LOCK) --extra dev --extra stack --extra registry --extra otel --extra examples --allow-unsafe -o requirements-dev.txt pyproject.toml
	$(LOCK) --extra docs --allow-unsafe -c requirements-dev.txt -o requirements-docs.txt pyproject.toml
	$(LOCK) --extra examples $(WITH_PANDAS) -c requirements-dev.txt -o requirements-demo.txt pyproject.toml
	awk '/^# WARNING:/ { exit } NF' requirements-demo.txt > requirements-demo.new
	mv requirements-demo.new requirements-demo.txt

clean: ## remove .venv, caches and results
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help setup demo test browser vendor faults soak thorough lint types simulate roles scenarios bench docs lock clean
