# `make demo` and `make test` set up what is missing first. See deploy/setup for the switches (PYTHON, ASSUME_YES, VENV).

VENV ?= .venv
BIN := $(VENV)/bin
UV ?= $(BIN)/uv
ARGS ?=

FAST := not slow and not chaos and not browser and not vllm

.PHONY: help setup demo test test-all test-vllm chaos lint format lock down clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## system packages and the Python environment
	@VENV=$(VENV) deploy/setup

demo: setup  ## three tasks on a real desktop; ARGS="--base-url … --model …" for your own model
	@$(BIN)/rollouts demo $(ARGS)

test: setup  ## the fast suite, with a real Temporal server, a real desktop, the real evaluator
	$(BIN)/python -m pytest -m "$(FAST)" $(ARGS)

test-all: setup  ## everything but the chaos suite and what needs vLLM
	$(BIN)/python -m pytest -m "not chaos and not vllm" $(ARGS)

chaos: setup  ## kill everything, and count
	RELIABILITY_REPORT=docs/reliability.md $(BIN)/python -m pytest tests/chaos $(ARGS)

test-vllm: setup  ## exact evidence against a real vLLM on this machine: VLLM_VENV=DIR
	VLLM_VENV=$(VLLM_VENV) $(BIN)/python -m pytest -m vllm $(ARGS)

lint: setup  ## ruff, pyright, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: setup  ## ruff format and its safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: setup  ## resolve requirements/lock.txt again
	$(UV) pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev \
		--generate-hashes --no-emit-index-url --no-annotate --no-header -o requirements/lock.txt

down:  ## end what `make demo` left running
	@$(BIN)/rollouts down

clean:  ## the environment and caches; evidence and state stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
