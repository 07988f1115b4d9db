# Two commands: `make demo` sets up and runs, `make test` sets up and tests.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
TESTS ?= tests
FAST := -m "not slow and not chaos and not vllm and not browser"

.PHONY: setup system demo test test-all chaos lint format lock bench clean

setup: system $(STAMP)

system:
	@deploy/install-system-packages.sh

$(STAMP): requirements/lock.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found: install one, or call make PYTHON=/path/to/python3.11"; exit 6; }
	@echo "Python environment: $(PYTHON), about a minute"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/lock.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: setup
	@$(BIN)/rollouts demo $(ARGS)

test: setup
	$(BIN)/python -m pytest $(FAST) $(TESTS)

test-all: setup
	$(BIN)/python -m pytest -m "not chaos and not vllm" $(TESTS)

chaos: setup
	$(BIN)/python -m pytest tests/chaos

bench: setup
	$(BIN)/python -m osworld_rollouts.desktops.benchmark

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Needs uv. Hashes for every supported Python, no registry addresses.
lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --generate-hashes \
		--no-emit-index-url --no-annotate --no-header -o requirements/lock.txt

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
