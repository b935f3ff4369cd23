# agent-world: one virtual environment, one command each for the demo and the tests.
#   make demo                        with python3
#   make demo PYTHON=python3.12      with another interpreter (3.11 or newer)
#   make test JOBS=4                 in four processes instead of two
#   make test EXTRAS=test,parity     with torch and transformers, for the parity tests (large)

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= test
JOBS   ?= 2

BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check install --quiet
MADE := $(VENV)/.made-$(notdir $(PYTHON))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo install test lint test-slow clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  variables: PYTHON=$(PYTHON) VENV=$(VENV) EXTRAS=$(EXTRAS) JOBS=$(JOBS)"

demo: $(VENV)/.base ## the main job end to end: themes -> environments -> tasks -> training -> arena, twice
	@$(BIN)/agent-world demo

install: $(VENV)/.base ## make the virtual environment and install the base dependencies

test: lint ## lint, types, import floors and all tests but the slow ones
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(VENV)/.test ## ruff, pyright and import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

test-slow: $(VENV)/.test ## the tests that take minutes
	@$(BIN)/python -m pytest -m slow --timeout 3600

clean: ## remove the virtual environment and the tools' caches (runs stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# --- the virtual environment: each stamp is newer than what it was made from ----------------------

CHECK = import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	"agent-world needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + \
	". Name another one: make PYTHON=python3.12 ...")
MINOR = import sys; print("%d.%d" % sys.version_info[:2])
WHICH = import sys; print(sys.version.split()[0], sys.base_prefix)

$(MADE):
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here; install Python 3.11 or newer, or: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c '$(CHECK)'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  v=$$($(PYTHON) -c '$(MINOR)'); \
	  echo "$(PYTHON) can't make virtual environments; on Debian or Ubuntu: apt-get install python$$v-venv" >&2; exit 2; }
	@new=$$($(PYTHON) -c '$(WHICH)'); old=$$($(BIN)/python -c '$(WHICH)' 2>/dev/null || true); \
	clear=; if [ "$$old" != "$$new" ]; then clear=--clear; fi; \
	echo "Making $(VENV) with Python $$new"; $(PYTHON) -m venv $$clear $(VENV)
	@rm -f $(VENV)/.made-*; touch $@

$(VENV)/.base: pyproject.toml $(MADE)
	@echo "Installing the base dependencies into $(VENV) (minutes the first time) ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/.test: $(VENV)/.base
	@echo "Installing what the tests need into $(VENV) ..."
	@$(PIP) -e '.[$(EXTRAS)]'
	@touch $@
