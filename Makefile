# Weft: `make help` lists what can be made.
# Another interpreter: `make PYTHON=python3.12 test`.

PYTHON := python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq -c constraints.txt

# Images of containers often forbid Python to keep what it has compiled. Then each of the hundreds of
# processes that the tests start would compile Weft anew, and each worker every test.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test tests check lint types site clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.torch ## train a small GPT on four processes, then compare the schedules
	@printf '\n%s\n\n' 'Four processes train a small GPT on the text that Weft ships (CPU, no network):'
	@$(BIN)/weft train
	@printf '\n%s\n\n' 'Every schedule on 4 devices with 8 microbatches, timed with unit costs:'
	@$(BIN)/weft compare -d 4 -n 8
	@printf '\n%s\n\n' '1F1B: after the warm-up, each device alternates a forward and a backward:'
	@$(BIN)/weft draw 1f1b -d 4 -n 8
	@printf '\n%s\n\n' 'Interleaved 1F1B: two stages on each device, so warm-up and cool-down shrink:'
	@$(BIN)/weft draw interleaved-1f1b -d 4 -n 8 -k 2
	@printf '\n%s\n\n' 'ZB-V: the backward split into I and W, so that W fills the bubbles:'
	@$(BIN)/weft draw zbv -d 4 -n 8

# One more than there are cores: some tests wait for processes that they have started. Neighbours
# stay together as long as they can, since they share what is made for a module.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)

# What takes a second comes first; mypy keeps one core busy for most of a minute, and runs beside the
# tests. These build the site themselves, as strictly as `make site` does (tests/test_site.py).
test: lint ## install, run the linters and all tests, which build the site
	@$(MAKE) --no-print-directory -j 2 types tests

tests: $(VENV)/.all
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal

check: lint types site ## run the linters and build the site, without the tests

lint: $(VENV)/.all
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.all
	$(BIN)/mypy

site: $(VENV)/.all ## build the documentation into site/
	$(BIN)/mkdocs build --strict

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist runs site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# With torch, enough for `make demo`; and everything, the tools included.
$(VENV)/.torch: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo 'Installing Weft and torch into $(VENV)'
	@$(PIP) -e '.[torch,tensorboard]'
	@touch $@

$(VENV)/.all: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo 'Installing Weft, torch and the development tools into $(VENV)'
	@$(PIP) -e '.[all]'
	@touch $(VENV)/.torch $@

$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) > /dev/null || \
	  { echo 'Weft needs Python 3.11 or newer, and $(PYTHON) is not on the path.' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Weft needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version)." >&2; \
	    echo 'Name another one: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
