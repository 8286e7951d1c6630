PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: setup demo test test-slow lint docs notebooks site clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing fromp and everything that its tests need into .venv, once ..."
	@$(PYTHON) -m venv .venv
	@$(INSTALL) '.[dev]'
	@touch .venv/lab $@

.venv/lab: pyproject.toml constraints.txt
	@echo "Installing fromp and its laboratory into .venv, once: a minute or two ..."
	@$(PYTHON) -m venv .venv
	@$(INSTALL) '.[lab]'
	@touch $@

demo: .venv/lab
	@echo "Five tasks, one after another: first by plain training, then with FROMP. About a minute ..."
	@$(BIN)/fromp compare toy --methods finetune,fromp --out runs/demo

test: setup lint
	$(BIN)/python -m pytest -n 2

.venv/frameworks: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,frameworks,site]'
	touch $@

test-slow: setup .venv/frameworks
	$(BIN)/python -m pytest -n 2 -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: .venv/frameworks
	$(BIN)/python tools/notebooks.py

docs: setup
	$(BIN)/python tools/fill_tables.py

site: .venv/frameworks
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache *.egg-info
