# Ringside. `make help` lists the commands; each of them sets up what it needs first.

PLAN ?= plans/local.yaml
# More arguments for ringside compare, such as ARGS="-o results/mine".
ARGS ?=
PYTHON ?= python3
# auto: GPU operations over NCCL where a GPU is present, else CPU. Or: cpu, nccl. A missing nvcc is downloaded for the build.
HOROVOD_OPERATIONS ?= auto
# GPUs to compile for, such as 80,90 on a login node without one. Empty: those of this machine.
COMPUTE_CAPABILITIES ?=
# Tests wait for processes as long as they compute, so one more than two cores; those that make a lab share a worker.
WORKERS ?= 3
# Unit tests only compute.
QUICK_WORKERS ?= 2
# commit: a twelfth of the costly tests, another twelfth for each commit. all: every test and every case.
DRAW ?= commit
# More arguments for pytest, such as PYTEST_ARGS="tests/unit -x".
PYTEST_ARGS ?=
# Of `make gpu-bundle`: what `pip freeze` prints on the machine that is packed for.
HAS ?= packages.txt
# Of `make versions`.
PYTHONS ?= python3.11 python3.12 python3.13
TORCHES ?= oldest newest
VERSIONS_TESTS ?= tests/unit tests/launch $(addprefix tests/distributed/test_,contract.py mpi_process_group.py compare.py standalone.py)

# The exact versions that are installed, and where.
CONSTRAINTS := install/constraints.txt
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
HOROVOD_STATE := $(VENV)/ringside-horovod.json
NO_HOROVOD := grep -qs '"status": "missing"' $(HOROVOD_STATE)
UV := $(BIN)/uv --quiet --no-progress
BUILD_HOROVOD := $(BIN)/python -m install.build_horovod --operations $(HOROVOD_OPERATIONS) --compute-capabilities '$(COMPUTE_CAPABILITIES)'
INSTALL_SOURCES := $(filter-out install/__init__.py,$(wildcard install/*.py))

# Images for Python often set it, and then every process here compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup compare quick test gpu gpu-bundle check docs frameworks picture versions format clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf 'make %-11s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## create .venv: torch, Open MPI, Horovod, everything pinned

$(STAMP): pyproject.toml $(CONSTRAINTS) $(INSTALL_SOURCES)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Ringside needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another one: make setup PYTHON=python3.12")'
	@echo "Setting up $(VENV): the first time takes a few minutes, most of them compiling Horovod"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) uv
	@echo "Installing torch and the other packages"
	@$(UV) pip install --compile-bytecode --python $(BIN)/python --constraint $(CONSTRAINTS) --build-constraint $(CONSTRAINTS) --editable '.[mpi,build,dev]'
	@$(BUILD_HOROVOD) || $(NO_HOROVOD)
	@touch $@

compare: setup ## compare Horovod and DDP on this machine (PLAN=plans/local.yaml)
	@$(BIN)/ringside compare $(PLAN) --available $(ARGS)

quick: check ## run the checks and the unit tests that start no process and take no time
	@$(BIN)/python -m pytest --numprocesses $(QUICK_WORKERS) -m 'not process and not browser and not slow' tests/unit $(PYTEST_ARGS)

test: check ## run the checks and the tests; skipped tests are listed with the reason
	@RINGSIDE_DRAW=$(DRAW) $(BIN)/python -m pytest --numprocesses $(WORKERS) --no-loadscope-reorder $(PYTEST_ARGS)

gpu: ## try everything on this machine's GPUs, and pack what came out: ten minutes
	@nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || { echo "make gpu: nvidia-smi shows no GPU here; ringside doctor says what is missing" >&2; exit 2; }
	@$(MAKE) --no-print-directory setup HOROVOD_OPERATIONS=nccl
	@$(BIN)/python -m install.build_horovod --operations nccl --compute-capabilities '$(COMPUTE_CAPABILITIES)'
	@$(BIN)/python benchmarks/gpu_proof.py $(ARGS)

gpu-bundle: setup ## pack what a machine without network lacks for make gpu (HAS=packages.txt, its pip freeze)
	@$(BIN)/python -m benchmarks.gpu_bundle --has '$(HAS)' $(ARGS)

check: setup ## lint, formatting, types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(VENV)/.docs ## build the pages into build/site
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

frameworks: $(VENV)/.frameworks ## install the frameworks that a test of scripts trains by

$(VENV)/.docs $(VENV)/.frameworks: $(VENV)/.%: $(STAMP)
	@$(UV) pip install --python $(BIN)/python --constraint $(CONSTRAINTS) --build-constraint $(CONSTRAINTS) --editable '.[$*]'
	@touch $@

picture: ## make README's picture of a report (REPORT=results/NAME/report.html; needs chromium)
	@chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1100,780 \
	  --screenshot=$(CURDIR)/reports/example.png file://$(abspath $(REPORT))

versions: .versions/oldest.txt .versions/newest.txt ## test the oldest torch of pyproject.toml and the newest on each Python that is here (PYTHONS, TORCHES)
	@failed=; for torch in $(TORCHES); do for python in $(PYTHONS); do \
	  venv=.versions/$$python-$$torch; \
	  $$python -c '' 2>/dev/null || { echo "== $$python is not here: skipped"; continue; }; \
	  $(MAKE) --no-print-directory setup VENV=$$venv PYTHON=$$python CONSTRAINTS=.versions/$$torch.txt && \
	  echo "== $$($$venv/bin/python -V), torch $$($$venv/bin/python -c 'import torch; print(torch.__version__)')" && \
	  $$venv/bin/python -m pytest -q --numprocesses $(WORKERS) --no-loadscope-reorder $(VERSIONS_TESTS) || failed="$$failed $$python-$$torch"; \
	done; done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

.versions/newest.txt: install/constraints.txt
	@mkdir -p $(@D)
	@cp $< $@

.versions/oldest.txt: pyproject.toml install/constraints.txt
	@mkdir -p $(@D)
	@grep -vE '^(torch|torchvision|triton|nvidia-.*|cuda-.*)==' install/constraints.txt >$@
	@sed -nE 's/^ *"(torch|torchvision)>=([^"]*)",/\1==\2/p' pyproject.toml >>$@

format: setup ## let ruff format the sources
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean: ## remove .venv and caches in the checkout; results and the cache of Horovod wheels stay
	rm -rf $(VENV) .versions .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
