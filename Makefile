# Two commands on a fresh machine: make demo, make test. Everything goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Files are compiled by compileall, which uses all cores. Packages may hold templates that are not valid Python.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
COMPILE := ($(BIN)/python -m compileall -q -j 0 .venv/lib src > /dev/null || true)

.PHONY: demo test test-parallel test-slow bench docs dist lint format clean

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) -e '.[lab,onnx,serve]'
	$(COMPILE)
	touch $@

.venv/dev: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	$(COMPILE)
	touch .venv/installed $@

demo: .venv/installed
	$(BIN)/bertvision demo

# pyright uses one core for half a minute, so that the checks run beside the tests.
test: .venv/dev
	$(MAKE) -j 2 lint test-parallel
	$(BIN)/pytest tests/serving -m "alone and not slow" --durations 10

test-parallel: .venv/dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 10 -m "not slow and not alone"

test-slow: .venv/dev
	$(BIN)/pytest -m slow --timeout 3600

# Hours, alone on the machine; resumable. DATA: the directory of the official GLUE files, if the Hub cannot be reached.
# OTHER: a directory with banking77, trec and ag_news. What is missing is left out.
bench: .venv/dev
	$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/peers.py --alone --data-dir "$(DATA)" --other-dir "$(OTHER)"

.venv/docs: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) -e '.[docs]'
	$(COMPILE)
	touch .venv/installed $@

# The site: docs/_build/html/index.html. Notebooks are executed once and kept; the Hub is not used.
docs: .venv/docs
	HF_HUB_OFFLINE=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going -b html docs docs/_build/html

# The wheel and the source archive of a release (docs/release.md).
dist: .venv/dev
	$(PIP) -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/pyright -p pyproject.toml

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist docs/_build *.egg-info src/*.egg-info .pytest_cache .ruff_cache
