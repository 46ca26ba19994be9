# Every verb sets the checkout up first (once; later runs skip it) and then calls the one command line, `rankhouse`.

# What the verbs read; override on the command line: make train DATA=/path/to/criteo.tsv NP=2 RECIPE=dlrm
DATA ?= data/criteo.tsv
NP ?= 2
RECIPE ?= dlrm
SPEC ?= criteo
RUN ?= first
STORE ?= store
MODEL ?= dlrm
ROWS ?= 1000000
FILE ?= $(DATA)
BENCH ?= all

rankhouse := .venv/bin/rankhouse
python := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup demo test data train export serve score bench lint check clean

help:  ## Show the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Install everything into .venv and build the C++ operations (a second run does nothing)
	@scripts/setup

demo: setup  ## The whole job: data, preprocess, train on 2 ranks, export, serve, score, check
	@$(rankhouse) demo

# Files are dealt out in the order of tests/conftest.py.
test:  ## Run all tests, in two processes
	@scripts/setup --browser
	@$(python) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

data: setup  ## Make a synthetic data set: ROWS=1000000 DATA=data/criteo.tsv
	@$(rankhouse) data synth $(DATA) --rows $(ROWS)

train: setup  ## Train: DATA=/path/to/criteo.tsv NP=2 RECIPE=dlrm SPEC=criteo RUN=first
	@$(rankhouse) train --data $(DATA) --np $(NP) --recipe $(RECIPE) --spec $(SPEC) --run $(RUN)

export: setup  ## Export a run as a version: RUN=first STORE=store MODEL=dlrm
	@$(rankhouse) export runs/$(RUN) --store $(STORE) --model $(MODEL)

serve: setup  ## Start Triton and the gateway: STORE=store MODEL=dlrm
	@$(rankhouse) serve --store $(STORE) --model $(MODEL)

score: setup  ## Send rows of a file to the gateway: FILE=data/criteo.tsv
	@$(rankhouse) score $(FILE) --model $(MODEL)

bench: setup  ## Measure side by side with plain Keras, Horovod and others: BENCH=all
	@$(rankhouse) bench $(BENCH)

lint: setup  ## Fix what tools can fix
	@.venv/bin/ruff check --fix -q . && .venv/bin/ruff format -q .
	@git ls-files -z '*.c' '*.cc' '*.cu' '*.h' '*.cuh' | xargs -0r .venv/bin/clang-format -i

check: setup  ## Verify style and types, change nothing
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .
	@git ls-files -z '*.c' '*.cc' '*.cu' '*.h' '*.cuh' | xargs -0r .venv/bin/clang-format --dry-run -Werror
	@.venv/bin/mypy

clean:  ## Remove builds, caches and what the demo made; .venv stays
	@rm -rf build runs/demo data/bench .mypy_cache .ruff_cache .pytest_cache
	@rm -f .venv/.stamp-build
