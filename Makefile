# Each target sets up what it needs: `make test` works on a machine with only Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: setup check format test test-slow test-browser test-cluster test-cluster-short chaos bench run notebooks docs
.PHONY: dist clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $(READY)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow and not cluster"

# Jobs of a real Slurm on this machine. Without root or Debian's packages they are skipped, and say so.
test-cluster: $(READY)
	tests/cluster/slurm.sh install
	tests/cluster/slurm.sh postgresql
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster tests/cluster

SHORT := $(patsubst %,tests/cluster/test_%.py,short daemons install)

test-cluster-short: $(READY)
	tests/cluster/slurm.sh install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SHORT)

AXE_VERSION := 4.14.1
AXE := $(VENV)/axe-core-$(AXE_VERSION)/node_modules/axe-core/axe.min.js

test-browser: $(READY) $(AXE)
	command -v chromium || command -v chromium-browser || $(SUDO) apt-get install -y chromium
	SACCADE_AXE=$(abspath $(AXE)) $(BIN)/python -m pytest -m browser

$(AXE): $(READY)
	npm install --silent --prefix $(VENV)/axe-core-$(AXE_VERSION) axe-core@$(AXE_VERSION)

chaos: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos $(CHAOS)

bench: $(READY)
	$(BIN)/saccade bench attention --preset cpu --out results/attention

run: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/saccade compare digits-quick --attention softmax,taylorshift,performer \
		--seeds 2 --jobs 2 --out runs/digits-$$(date +%Y%m%d-%H%M%S)

# Executes what has changed, and rewrites the pages that are made from code.
notebooks: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/build.py
	$(BIN)/python docs/reference.py

docs: $(READY)
	$(BIN)/python docs/make_site.py

# PYTHONS: further interpreters to install the wheel with, such as "python3.12 python3.13"
dist: $(READY)
	$(BIN)/python packaging/dist.py $(PYTHONS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
