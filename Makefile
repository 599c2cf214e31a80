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

# An hour or two. TEXT="FILE …" adds the language models (lmplz on the PATH), FSDD=FOLDER what trains on spoken digits.
BENCH := startup engine_overhead fbank normalise align align_stage accelerator gtc_codec sync_overhead train_faults \
	gtc_exchange train_network
bench: .venv/installed-dev
	@failed=; measure() { echo "== $$*"; name=$$1; shift; $(BIN)/python benchmarks/$$name.py "$$@" || failed="$$failed $$name"; }; \
	for name in $(BENCH); do measure $$name; done; \
	if [ -n "$(TEXT)" ]; then measure lm $(TEXT); measure lm_query $(TEXT); fi; \
	if [ -n "$(FSDD)" ]; then measure sync_wire $(FSDD); measure gtc_convergence $(FSDD); measure sync_convergence $(FSDD) --quick; fi; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

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
