# demo: raw speech to a word error rate.  test: everything that CI runs.  check: style and types.
# Another interpreter has an environment of its own: make test PYTHON=python3.13
PYTHON ?= python3
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin

# Where it is set, each of the processes that the suite starts would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Python 3.13 on the PATH or, since pyenv's command for it works only where that version is chosen, pyenv's own.
NEWEST ?= $(lastword python3.13 $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.13*/bin/python3.13))

.PHONY: demo test newest smoke suite faults mutants check style types site docs bench sbom hashes clean

demo: $(VENV)/installed
	$(BIN)/megahour run demo

# Beside each other: mypy works for half a minute on one core, and some tests wait for others' processes.
test: $(VENV)/installed-dev
	$(MAKE) --no-print-directory --jobs 4 style types site suite

# With the newest Python, where there is one: every module, and the first steps of a recipe. The whole suite with it is
# make test PYTHON=python3.13.
newest:
	@if $(NEWEST) -c '' 2>/dev/null; then $(MAKE) --no-print-directory smoke PYTHON=$(NEWEST); \
	else echo "no $(NEWEST) on the PATH: nothing was tried with it"; fi

smoke: $(VENV)/installed
	$(BIN)/python -W error::SyntaxWarning tests/import_all.py
	rm -rf $(VENV)/smoke && $(BIN)/megahour run demo run=$(VENV)/smoke --until recordings

suite: $(VENV)/installed-dev
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

# Workers that stand still, machines that join and leave, disks that are full, and kills at more moments than `test` has
# time for: a quarter of an hour beside the rest.
faults: $(VENV)/installed-dev
	$(BIN)/pytest -m faults

# Small changes of the code that a test should notice, MUTANTS of each folder; some hours on two cores with
# MUTANTS=12, most of it to find out what each test calls, which is kept.
MUTANTS ?= 40
SEED ?= 0
mutants: $(VENV)/installed-dev
	$(BIN)/python tests/mutants --each $(MUTANTS) --seed $(SEED)

check: style types

style: $(VENV)/installed-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

site: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/site

# The pages as a site, in site/; a broken link or an unknown name fails.
docs: $(VENV)/installed-dev
	$(BIN)/megahour docs docs/stages.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# An hour or two. TEXT="FILE …" adds the language models (lmplz on the PATH), FSDD=FOLDER what trains on spoken digits.
BENCH := startup engine_overhead fbank normalise align align_stage accelerator gtc_codec sync_overhead train_faults \
	gtc_exchange metrics train_network loader loader_audio train_continue plan_train
bench: $(VENV)/installed-dev
	@failed=; measure() { echo "== $$*"; name=$$1; shift; $(BIN)/python benchmarks/$$name.py "$$@" || failed="$$failed $$name"; }; \
	for name in $(BENCH); do measure $$name; done; \
	if [ -n "$(TEXT)" ]; then measure lm $(TEXT); measure lm_query $(TEXT); measure gtc_transformer $(firstword $(TEXT)) --minutes 30; fi; \
	if [ -n "$(FSDD)" ]; then measure sync_wire $(FSDD); measure gtc_convergence $(FSDD); measure sync_convergence $(FSDD) --quick; fi; \
	$(BIN)/python benchmarks/table.py; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

# What megahour[all] is made of, by version and licence, in CycloneDX's form: sbom.cdx.json.
sbom: $(VENV)/installed
	$(PYTHON) -m venv .venv-sbom && .venv-sbom/bin/pip install --quiet cyclonedx-bom
	.venv-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o sbom.cdx.json $(BIN)/python

# After a change of constraints.txt or of the dependencies: constraints-hashed.txt, without torch and what its builds for CUDA bring.
hashes:
	$(PYTHON) -m venv .venv-hashes && .venv-hashes/bin/pip install --quiet uv
	.venv-hashes/bin/uv pip compile pyproject.toml --extra all -c constraints.txt --generate-hashes --universal \
		--python-version 3.11.9 --no-header --no-annotate --quiet -o .venv-hashes/all.txt
	sed '/^#/!d' constraints-hashed.txt > .venv-hashes/new.txt
	awk '/^[a-z]/ { keep = !/^(torch==|triton==|nvidia-|cuda-)/ } keep' .venv-hashes/all.txt >> .venv-hashes/new.txt
	mv .venv-hashes/new.txt constraints-hashed.txt

clean:
	rm -rf .venv .venv-* runs build dist site *.egg-info

# With a newer pip: the one that comes with Python 3.11 takes twice the CPU time for so many packages.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "megahour needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no venv: on Debian, apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade -c constraints.txt pip

# Bytecode of three gigabytes would take a minute; what is imported has it from then on.
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/installed
