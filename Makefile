# make help lists the targets. The virtual environment is made when a target first needs it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TFM := $(BIN)/tfm
# The pip that comes with Python may be years old, and then takes twice as long to read what a package index offers.
# Packages are built with the setuptools that then is there, not with another copy for each; what it warns of in
# others' packages is none of the user's business.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALL = $(PIP) --upgrade pip setuptools && $(PIP) --no-compile --no-build-isolation -e
# Compiled here, as tests turn warnings of the compiler into errors: by all cores, where pip uses one. A file that was
# written for a newer Python does not compile, which is no error. What libraries have for their own tests, and parts of
# them that nobody asks for, are more than a third of all.
UNUSED := /_?tests?/|/testing/|/transformers/models/|/ray/(rllib|data|serve|tune|train|llm|dashboard)/
UNUSED := $(UNUSED)|/devtools/|/mypyc?/|/onnxruntime/transformers/
COMPILE = $(BIN)/python -W ignore -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib || true
# test processes that run at once; each uses one thread
JOBS ?= auto
# COVERAGE=1 measures branch coverage and holds it to its floor, as CI does; the tests then take up to twice as long
COVERAGE ?=

PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# where this is set, each process of a test would compile all that it imports anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-medium test-slow lint docs bench clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11; set PYTHON=… to a newer one" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) '.[train,plots]'
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) '.[dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) '.[bench]'
	@$(COMPILE)
	@touch $@

demo: $(VENV)/.installed  ## train a small German-English translator, score it, use it, draw it
	$(TFM) demo

test: $(VENV)/.installed-dev  ## the quick tests; with COVERAGE=1 branch coverage and its floor
	$(PYTEST) $(if $(filter 1,$(COVERAGE)),--cov --cov-report=term)

test-medium: $(VENV)/.installed-dev  ## those that take longer than a second
	$(PYTEST) -m "medium and not slow and not gpu"

test-slow: $(VENV)/.installed-dev  ## the slow tests, and those for a GPU where there is one
	$(PYTEST) -m "slow or gpu"

lint: $(VENV)/.installed-dev  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict --num-workers auto

docs: $(VENV)/.installed-dev  ## write docs/cli.md and docs/config.md anew from the code
	$(BIN)/python docs/generate.py

bench: $(VENV)/.installed-bench  ## the benchmarks of this CPU; BENCH_OPTIONS=--write puts them into docs/benchmarks.md
	@set -e; for name in attention training loss_memory loading; do \
		echo "== $$name"; $(BIN)/python benchmarks/$$name.py $(BENCH_OPTIONS); done

clean:  ## remove what tools made; the virtual environment, data and checkpoints stay
	rm -rf build dist *.egg-info .coverage .coverage.* htmlcov .hypothesis .mypy_cache .mypy_worker.* .pytest_cache .ruff_cache
