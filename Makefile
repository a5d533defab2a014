# make demo, make test: each does all its own set-up in .venv. Needs Python 3.11 or newer and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
FLOWER := .venv-flower
HF := .venv-hf
CONSTRAINTS ?= constraints.txt
TORCH ?= 2.13.0
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder --durations=30  # a file's fixtures are made by one worker
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # or every process of a test would compile all modules anew

.PHONY: help demo test lint types loops pytest chaos flower hf deploy-test soak fuzz figures tutorials docs coverage release-check images hooks clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 13

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit("fedcom needs Python 3.11 or newer; this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) torch==$(TORCH)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

# It sees the packages of .venv behind its own, so that torch is not installed twice.
$(FLOWER)/installed: $(VENV)/installed constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(BIN)/python -c 'import pathlib, sysconfig; print(sysconfig.get_path("purelib")); print(pathlib.Path("src").resolve())' > $(FLOWER)/paths
	cp $(FLOWER)/paths $$($(FLOWER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fedcom.pth
	$(FLOWER)/bin/pip install --quiet --constraint constraints-flower.txt flwr
	@touch $@

$(HF)/installed: $(VENV)/installed constraints-hf.txt
	$(PYTHON) -m venv $(HF)
	$(BIN)/python -c 'import pathlib, sysconfig; print(sysconfig.get_path("purelib")); print(pathlib.Path("src").resolve())' > $(HF)/paths
	cp $(HF)/paths $$($(HF)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fedcom.pth
	$(HF)/bin/pip install --quiet --constraint constraints-hf.txt transformers peft
	@touch $@

demo: $(VENV)/installed  ## compare six methods on embedded data, about a minute; a table, figures and a report
	$(BIN)/fedcom compare experiments/digits.toml --out runs/demo --force

test: lint  ## lint, types and tests
	@$(MAKE) --no-print-directory -j2 types loops
	@$(MAKE) --no-print-directory pytest

lint: $(VENV)/installed  ## ruff, check and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed  ## mypy, strict on src
	$(BIN)/mypy

loops: $(VENV)/installed  ## compile the codecs' loops once, or each worker of the tests would
	$(BIN)/python -m tests.loops

pytest: $(VENV)/installed  ## the tests
	$(BIN)/pytest $(WORKERS)

chaos: $(VENV)/installed  ## every test in full: kill runs, damage checkpoints, lose messages of real clients; an hour or two
	FEDCOM_CHAOS=1 $(BIN)/pytest $(WORKERS)

flower: $(FLOWER)/installed  ## Flower in an environment of its own, as its pins are not ours

hf: $(HF)/installed  ## transformers and peft in an environment of their own, to compare with

deploy-test: $(FLOWER)/installed  ## 20 rounds over Flower, a SuperNode and the ServerApp killed; some minutes
	$(FLOWER)/bin/pip install --quiet --constraint constraints-flower.txt 'flwr[simulation]'
	FEDCOM_DEPLOY=1 $(BIN)/pytest tests/deployment

soak: $(FLOWER)/installed  ## random kills of real processes for an hour (MINUTES=n for another time), an alarm for leaks
	$(BIN)/python -m tests.soak $(or $(MINUTES),60)

fuzz: $(VENV)/installed  ## decode a million hostile messages, and as many calls and replies (MESSAGES=n for another number), loops bounds-checked
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/checked $(BIN)/python -m fuzz.decode $(MESSAGES)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/checked $(BIN)/python -m fuzz.calls $(MESSAGES)

figures: $(VENV)/installed  ## draw every figure of the docs anew from the numbers they keep
	$(BIN)/python docs/make_results.py
	$(BIN)/python -m docs.make_figures

tutorials: $(VENV)/installed  ## run the tutorials and keep what they put out; a minute or two
	$(BIN)/python docs/make_tutorials.py

docs: $(VENV)/installed  ## renew the command-line reference and the picture of the code; the docs as a site in site/
	$(BIN)/python docs/make_cli_reference.py
	$(BIN)/python docs/make_architecture.py
	$(BIN)/mkdocs build --strict --quiet

coverage: $(VENV)/installed  ## which lines of src the tests run (TESTS=tests/codecs for some); coverage.txt, worst first
	$(BIN)/coverage run --parallel-mode -m pytest $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --sort=cover > coverage.txt && tail -n 1 coverage.txt

release-check: $(VENV)/installed  ## a release's dry run: build, check, install the wheel, compare and report with it (TAG=v1.2.3)
	$(BIN)/python .ci/release_check.py $(if $(TAG),--tag $(TAG)) $(if $(BORROW),--borrow)

images:  ## images of the server and of a client, where Docker is
	docker build --target server --tag fedcom-server --file docker/Dockerfile .
	docker build --target supernode --tag fedcom-supernode --file docker/Dockerfile .

hooks: $(VENV)/installed  ## lint and types before each commit of this clone
	git config core.hooksPath .githooks

clean:  ## remove what make made
	rm -rf $(VENV) $(FLOWER) $(HF) runs site dist coverage.txt .coverage .pytest_cache .mypy_cache .ruff_cache
