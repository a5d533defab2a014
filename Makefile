# make demo, make test: each does all its own set-up in .venv. Needs Python 3.11 or newer and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test lint types pytest chaos fuzz docs hooks clean
help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("fedcom needs Python 3.11 or newer; this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/installed  ## compare six methods on embedded data, about a minute; a table, figures and a report
	$(BIN)/fedcom compare experiments/digits.toml --out runs/demo --force

test: lint types pytest  ## lint, types and tests

lint: $(VENV)/installed  ## ruff, check and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed  ## mypy, strict on src
	$(BIN)/mypy

pytest: $(VENV)/installed  ## the tests
	$(BIN)/pytest -n 2

chaos: $(VENV)/installed  ## kill runs 150 times, damage 200 checkpoints, start 20 runs at once; some minutes
	FEDCOM_CHAOS=1 $(BIN)/pytest tests/runs/test_resume.py

fuzz: $(VENV)/installed  ## decode a million hostile messages (MESSAGES=n for another number), loops bounds-checked
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/checked $(BIN)/python -m fuzz.decode $(MESSAGES)

docs: $(VENV)/installed  ## renew the command-line reference and the picture of the code; the docs as a site in site/
	$(BIN)/python docs/make_cli_reference.py
	$(BIN)/python docs/make_architecture.py
	$(BIN)/mkdocs build --strict --quiet

hooks: $(VENV)/installed  ## lint and types before each commit of this clone
	git config core.hooksPath .githooks

clean:  ## remove what make made
	rm -rf $(VENV) runs site .pytest_cache .mypy_cache .ruff_cache
