# demo: raw speech to a word error rate.  test: everything that CI runs.  check: style and types.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test faults check docs bench clean

demo: .venv/installed
	$(BIN)/megahour run recipes/demo.yaml

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Workers that stand still, machines that join and leave, disks that are full: five minutes beside the rest.
faults: .venv/installed-dev
	$(BIN)/pytest -m faults

check: .venv/installed-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: .venv/installed
	$(BIN)/megahour docs docs/stages.md

bench: .venv/installed-dev
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv runs build *.egg-info

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "megahour needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv || { rm -rf .venv; echo "no venv: on Debian, apt install python3-venv" >&2; exit 1; }

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ .venv/installed
