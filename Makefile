PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo native test check lint clean

.venv/bin/python:
	$(PYTHON) -m venv .venv

# installed anew whenever pyproject.toml changes
.venv/.installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet -e .
	touch $@

.venv/.installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch .venv/.installed $@

demo: .venv/.installed          ## train RLPD on Pendulum with prior data, about two minutes
	$(BIN)/python -m rlx algo=rlpd env=pendulum dataset=minari

native: .venv/.installed        ## build the native nodes, which make runs faster; takes a C++ compiler
	$(BIN)/python -m rlx build-native

test: .venv/.installed-dev      ## all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test                ## what a change has to pass

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
