# Two commands on a fresh machine: make demo, make test. Everything goes into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow bench lint format clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/bertvision demo

test: .venv/installed lint
	$(BIN)/pytest -n 2 --dist loadfile --durations 10 -m "not slow and not alone"
	$(BIN)/pytest -m "alone and not slow" --durations 10

test-slow: .venv/installed
	$(BIN)/pytest -m slow --timeout 3600

# Hours, alone on the machine; resumable. DATA: the directory of the official GLUE files, if the Hub cannot be reached.
# OTHER: a directory with banking77, trec and ag_news. What is missing is left out.
bench: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/peers.py --alone --data-dir "$(DATA)" --other-dir "$(OTHER)"

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright -p pyproject.toml

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info .pytest_cache .ruff_cache
