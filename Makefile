# Everything a developer runs. `make demo` and `make test` need nothing but a Python: they make
# their own environment first, and again when pyproject.toml or the pins change.

PYTHON ?= python3
PYTHON_OLDEST ?= python3.10
VENV ?= .venv
VENV_OLDEST ?= .venv-oldest

# More than eight TensorFlow processes need more memory than they save time.
PYTEST_PARALLEL ?= -n auto --maxprocesses 8 --dist worksteal
PYTEST_ARGS ?=

export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-oldest check format docs notebooks build check-dist clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.installed ## Make the environment in .venv with the package and its tools

demo: venv ## Fit the snelson data and draw the figures into results/snelson
	$(VENV)/bin/python -m gpflow_gpnet.experiments snelson --out results/snelson

test: venv ## Run the tests, all but the slow ones
	$(VENV)/bin/python -m pytest $(PYTEST_PARALLEL) $(PYTEST_ARGS)

test-slow: venv ## Run the slow tests
	$(VENV)/bin/python -m pytest $(PYTEST_PARALLEL) -m slow $(PYTEST_ARGS)

test-oldest: $(VENV_OLDEST)/.installed ## Run the tests on the oldest supported versions
	$(VENV_OLDEST)/bin/python -m pytest $(PYTEST_PARALLEL) $(PYTEST_ARGS)

check: venv ## Check style and types
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy

format: venv ## Put the code in order
	$(VENV)/bin/python -m ruff check --fix .
	$(VENV)/bin/python -m ruff format .

docs: $(VENV)/.docs ## Build the documentation site into docs/_build/html
	$(VENV)/bin/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

notebooks: $(VENV)/.notebooks ## Execute the notebooks anew (all, or NOTEBOOKS="01 07")
	$(VENV)/bin/python notebooks/run.py $(NOTEBOOKS)

build: venv ## Build the wheel and the source archive into dist
	rm -rf build dist
	$(VENV)/bin/python -m build

check-dist: build ## Install the wheel, then the source archive, in a clean environment and use it
	rm -rf .venv-dist
	$(VENV)/bin/python -m venv .venv-dist
	$(call pip,.venv-dist) --no-compile -c constraints.txt dist/*.whl
	cd dist && ../.venv-dist/bin/python -I ../tests/installed.py
	$(call pip,.venv-dist) --force-reinstall --no-deps dist/*.tar.gz
	cd dist && ../.venv-dist/bin/python -I ../tests/installed.py
	rm -rf .venv-dist

clean: ## Remove all that make made, the environments too
	rm -rf build dist results/snelson docs/_build docs/tutorials/*.ipynb *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf $(VENV) $(VENV_OLDEST) .venv-ci .venv-ci-oldest .venv-dist
	find gpflow_gpnet tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call pip,FOLDER) install quietly into an environment
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check

# $(call make_venv,PYTHON,FOLDER,CONSTRAINTS,EXTRAS)
define make_venv
	@$(1) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' || { \
	  echo "Python 3.10, 3.11 or 3.12 is needed, and $(1) is not one." \
	    "Name one with PYTHON=..., or with PYTHON_OLDEST=... for test-oldest." >&2; exit 1; }
	$(1) -m venv $(2)
	$(call pip,$(2)) -c $(3) -e '.[$(4)]'
	@touch $@
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call make_venv,$(PYTHON),$(VENV),constraints.txt,dev)

# The extras docs and notebooks, added where they are needed
$(VENV)/.docs $(VENV)/.notebooks: $(VENV)/.%: $(VENV)/.installed
	$(call pip,$(VENV)) -c constraints.txt -e '.[$*]'
	@touch $@

$(VENV_OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(call make_venv,$(PYTHON_OLDEST),$(VENV_OLDEST),constraints-oldest.txt,test)
