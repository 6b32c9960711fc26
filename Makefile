# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
NATIVE := $(wildcard src/bayesprune/*/native/*.c src/bayesprune/*/native/*.h)

.PHONY: help install demo docs test lint types imports unit test-slow test-gpu bench format clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED)  ## Create the environment in .venv (done by every other target as well)

$(INSTALLED): pyproject.toml constraints.txt hatch_build.py $(NATIVE)
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11 test")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)  ## Compress a network on embedded data, from training to summary, in about ten seconds
	$(BIN)/bayesprune compress --config configs/demo.yaml

docs: $(INSTALLED)  ## The documentation as a site in build/site; a warning is an error
	$(BIN)/python -m sphinx --quiet --fresh-env --write-all --fail-on-warning --keep-going --doctree-dir build/doctrees docs build/site
	@echo "open build/site/index.html"

test: lint types imports unit  ## Linters, type check, import rules and the default tests

lint: $(INSTALLED)  ## ruff: style and common mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)  ## mypy, strict
	$(BIN)/mypy

imports: $(INSTALLED)  ## import-linter: imports point one way
	$(BIN)/lint-imports

unit: $(INSTALLED)  ## The default tests, in two processes of one thread each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-slow: $(INSTALLED)  ## Tests that take minutes
	$(BIN)/python -m pytest -m slow

test-gpu: $(INSTALLED)  ## Tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

bench: $(INSTALLED)  ## Message passing beside its peers (creates .venv-peers), cost of a training step
	$(BIN)/python -m benchmarks.message_passing
	$(BIN)/python -m benchmarks.training_step

format: $(INSTALLED)  ## Format and fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the environment and everything built
	rm -rf $(VENV) .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/bayesprune/messages/native/*.so
