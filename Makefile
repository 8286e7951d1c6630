PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow lint docs clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/fromp run toy --out runs/demo

test: setup lint
	$(BIN)/python -m pytest -n 2

test-slow: setup
	$(BIN)/python -m pytest -n 2 -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup
	$(BIN)/python tools/fill_tables.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache *.egg-info
