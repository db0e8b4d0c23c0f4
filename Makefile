# make run    sets up, runs one whole night over a log, shows the result      (LOG= FORMAT= AS_OF= ENGINE= ENGINE_URLS= PARAMS= OUT=)
# make ui     a real Airflow with everything, to look at and to try by hand  (LOG= FORMAT= PORT= OUT=)
# make test   every test, with a real Redis, real Airflow runs, a real vLLM   (NO_VLLM=1 leaves the vLLM stage out)
# make bench  the benchmarks, JSON under out/bench/                           (ONLY=name,…)
# make lint   formatting, lint, types

PYTHON ?= $(shell for p in python3 python3.12 python3.11; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
LOCKS  := docker/locks
LOCK_FLAGS := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
STAMP   = $(shell cksum 2>/dev/null < $(LOCKS)/$(1).txt | cut -d' ' -f1)
BASE   := $(VENV)/.base-$(call STAMP,control-plane)
DEV    := $(VENV)/.dev-$(call STAMP,dev)

LOG         ?=
FORMAT      ?= auto
AS_OF       ?=
ENGINE      ?= double
ENGINE_URLS ?=
PARAMS      ?=
OUT         ?= out
PORT        ?= 8080
ONLY        ?=
NO_VLLM     ?=

.DEFAULT_GOAL := help
.PHONY: help run ui test bench lint lock clean

help:
	@sed -n 's/^# //p' Makefile

$(BASE):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed and none is on the PATH; name one with make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "setting up $(VENV) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(LOCKS)/control-plane.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.base-* && touch $@

$(DEV): $(BASE)
	@echo "adding the test tools to $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(LOCKS)/dev.txt
	@rm -f $(VENV)/.dev-* && touch $@

run: $(BASE)
	@$(BIN)/warmup run --out "$(OUT)" --log "$(LOG)" --format "$(FORMAT)" --as-of "$(AS_OF)" --engine "$(ENGINE)" --engine-urls "$(ENGINE_URLS)" $(foreach p,$(PARAMS),--set $(p))

ui: $(DEV)
	@$(BIN)/warmup ui --out "$(OUT)" --log "$(LOG)" --format "$(FORMAT)" --port "$(PORT)"

test: $(DEV)
	@NO_VLLM="$(NO_VLLM)" $(BIN)/python -m pytest $(if $(NO_VLLM),-m "not real_engine")

bench: $(DEV)
	@$(BIN)/python -m tests.benchmarks --only "$(ONLY)"

lint: $(DEV)
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

lock:
	@uv pip compile $(LOCK_FLAGS) pyproject.toml --group dev $(LOCKS)/build.in -o $(LOCKS)/dev.txt
	@uv pip compile $(LOCK_FLAGS) -c $(LOCKS)/dev.txt pyproject.toml --extra celery --extra postgres $(LOCKS)/build.in -o $(LOCKS)/control-plane.txt
	@uv pip compile $(LOCK_FLAGS) -c $(LOCKS)/dev.txt pyproject.toml --extra celery --extra postgres --extra kubernetes $(LOCKS)/build.in -o $(LOCKS)/kubernetes.txt

clean:
	@rm -rf out .mypy_cache .ruff_cache .pytest_cache
