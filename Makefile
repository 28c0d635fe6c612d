# The commands of this project. `make run` needs nothing but Python 3.11 to 3.13 and make.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help run test lint unit browser bench prove lock clean

PY ?= $(shell tools/find-python)
UV := .tools/bin/uv
BIN := .venv/bin
APP ?= examples.shop:app
export UV_PYTHON_DOWNLOADS := never
export UV_LINK_MODE := copy
COMPILE = $(UV) pip compile -q pyproject.toml --universal --generate-hashes --no-emit-index-url --no-header --no-annotate

help: ## Show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

run: .venv/.synced ## Run everything on this machine, with the examples
	@$(BIN)/harvest dev $(APP)

test: lint unit browser ## Every check and test

lint: .venv/.synced ## Style, types and import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: .venv/.synced ## Every test that needs no browser
	$(BIN)/pytest -q -n 2 --dist loadfile --ignore=tests/browser tests

browser: .venv/.synced ## Tests in a real browser; one is installed where that is possible
	path=$$($(BIN)/python tools/browser.py) && BROWSER_PATH="$$path" $(BIN)/pytest -q tests/browser

bench: .venv/.synced .venv-bench/.synced ## Measure, beside the floor and DBOS
	HARVEST_BENCH_PYTHON="$${HARVEST_BENCH_PYTHON:-.venv-bench/bin/python}" $(BIN)/python -m tests.bench $(ARGS)

prove: .venv/.synced ## Run the heavy tests of a part at full scale and write docs/proof: make prove PART=main-job
	@test -n "$(PART)" || { echo "make prove PART=main-job" >&2; exit 2; }
	path=$$($(BIN)/python tools/browser.py) && BROWSER_PATH="$$path" HARVEST_SCALE=full $(BIN)/python -m tests.prove $(PART)

lock: $(UV) ## Resolve the dependencies anew
	$(COMPILE) --group dev -o requirements.lock
	$(COMPILE) -c requirements.lock -o requirements-run.lock
	$(COMPILE) -c requirements.lock --group bench -o requirements-bench.lock

clean: ## Remove what was made here, but for the data in .harvest
	rm -rf .venv .venv-bench .tools dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache test-results
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(UV):
	@test -n "$(PY)" || { echo "Python 3.11 to 3.13 with its module venv is needed (on Debian: apt-get install" \
		"python3-venv); if it is elsewhere, say make PY=/path/to/python3" >&2; exit 2; }
	$(PY) -m venv .tools
	.tools/bin/python -m pip install -q --disable-pip-version-check 'uv>=0.9,<1'

.venv/.synced: $(UV) pyproject.toml requirements.lock
	test -x $(BIN)/python || $(UV) venv -q --python $(PY) .venv
	$(UV) pip sync -q -p $(BIN)/python --require-hashes requirements.lock
	$(UV) pip install -q -p $(BIN)/python --no-deps -e .
	@touch $@

.venv-bench/.synced: $(UV) requirements-bench.lock
	test -x .venv-bench/bin/python || $(UV) venv -q --python $(PY) .venv-bench
	$(UV) pip sync -q -p .venv-bench/bin/python --require-hashes requirements-bench.lock
	@touch $@
