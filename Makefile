# The front door. Every verb does its own set-up first; `make help` lists them.
#
#   PYTHON=/path/to/python3.11   the interpreter .venv is made with
#   ARGS="..."                   more arguments for demo, test, unit, sim, soak-sim, integration and cov
#   SOAK_FROM=100000             the first seed of soak-sim
#   JOBS=n                       processes that run the tests (default: one more than processors,
#                              as many tests wait for another process)
#   MACHINES=20000 SEED=1        how many machines soak-model plays, and the seed of the first 200
#   KILLS=25 SEED=1              how often soak-kill kills, and its seed
#   FAILOVERS=200 SEED=1         how many failovers soak-failover and soak-patroni make, and the seed
#   MINUTES=10 RUNS=1 SEED=1 FORM=two|forwarder|activated STREAM=dir
#                              how long chaos lasts, how often, and what goes through it
#   FAST_PATHS=on|off          whether messages may take the fast path in sim, soak-sim, model,
#                              soak-model and chaos
#   ENGINE=files|postgresql    where the stores of model, chaos and integration are
#   FILES=1000                 how many files demo-files sends
#   MODULES=brokerd/broker/queues.py TESTS="tests/unit/broker tests/integration/broker" SAMPLE=20
#                              the modules of mutants, the tests to try them with, and how many
#   LINES=20000000             how many lines report-month makes
#   CYCLES=20 SEED=1             how often soak-netns breaks everything, and its seed

PYTHON =
ARGS =
SOAK_FROM = 100000
JOBS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
MACHINES = 20000
MINUTES = 10
RUNS = 1
FORM = two
STREAM =
CYCLES = 20
KILLS = 25
FAILOVERS = 200
SEED = 1
TARGET = peer_frames
MODULES = brokerd/broker/queues.py
TESTS = tests/unit/broker tests/integration/broker
SAMPLE = 20
LINES = 20000000
FILES = 1000
FAST_PATHS = on
ENGINE = files
BIN = .venv/bin
CODE = $(wildcard brokerd spark_jobs tools migrations tests)
SET_UP = @python=$$(tools/find-python "$(PYTHON)") && "$$python" tools/setup.py $(if $(PYTHON),--named)
NO_FAST_PATHS = $(if $(filter off,$(FAST_PATHS)),--no-fast-paths)
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup
INTEGRATION = $(wildcard tests/contract tests/integration tests/migration tests/acceptance tests/abuse tests/netns tests/spark)

# Whatever the environment says: demo and test start these sources many times, compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-files test fmt lint types imports unit mutants sim soak-sim model soak-model integration cov rules check reference docs docs-serve lock sbom clean set-up wheels first-reply deb deb-test image-test set-up-batch set-up-fuzz fuzz soak-netns soak-kill soak-failover soak-patroni chaos report-cluster report-month report-day report-kill

help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1 \2/p' Makefile | while read -r verb text; do printf '  make %-12s %s\n' "$$verb" "$$text"; done

set-up-batch:
	$(SET_UP) batch

set-up: ## .venv with everything that is locked; the other verbs do this themselves
	$(SET_UP) dev

demo: set-up-batch ## two instances converse, are killed in mid-stream, and the report shows it
	@$(BIN)/brokerd demo $(ARGS)

demo-files: set-up-batch ## the same with FILES=1000 files of Python itself, 300,000 lines, compared by their hashes
	@$(BIN)/brokerd demo --input "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" --pattern '*.py' --limit-files $(FILES) --no-report $(ARGS)

test: set-up ## the whole test suite
	@$(PYTEST) --durations=15 $(ARGS)

unit: set-up ## the tests that need no loop, file or socket
	@$(if $(wildcard tests/unit),$(PYTEST) tests/unit $(ARGS),echo "no tests/unit yet")

sim: set-up ## the seeded simulation, all of it: 2,000 seeds, 300 virtual hours, 20,000 crashes
	@$(BIN)/python -m tests.engine.simulation --whole tests/simulation/seeds.txt $(NO_FAST_PATHS) $(ARGS)

soak-sim: set-up ## seeds from SOAK_FROM on, until stopped; those that fail leave build/simulation/seed-N
	@$(BIN)/python -m tests.engine.simulation --soak $(SOAK_FROM) $(NO_FAST_PATHS) $(ARGS)

model: set-up ## random programs of several clients, held against the reference model
	@$(PYTEST) tests/model --durations=5 --engine=$(ENGINE) $(NO_FAST_PATHS) $(ARGS)

soak-model: set-up ## the same with MACHINES=20000 of them
	@$(BIN)/python -m tests.model.soak --machines $(MACHINES) --seed $(SEED) $(NO_FAST_PATHS) $(ARGS)

soak-netns: set-up ## cuts, flapping and kills of three real daemons in network namespaces
	@$(BIN)/python -m tests.netns.soak --cycles $(CYCLES) --seed $(SEED) $(ARGS)

soak-kill: set-up ## kills of a daemon, its readers and an activator under load: KILLS=25 SEED=1
	@$(BIN)/python -m tests.kills.soak --kills $(KILLS) --seed $(SEED) $(ARGS)

soak-failover: set-up ## failovers of daemons and PostgreSQL servers under load: FAILOVERS=200 SEED=1
	@$(BIN)/python -m tests.kills.failovers --failovers $(FAILOVERS) --seed $(SEED) $(ARGS)

soak-patroni: set-up ## the same where Patroni decides which server is the primary: FAILOVERS=200 SEED=1
	@$(BIN)/python -m tests.kills.patroni --failovers $(FAILOVERS) --seed $(SEED) $(ARGS)

chaos: set-up ## real traffic under faults, held against the stream: MINUTES=10 RUNS=1 SEED=1 FORM=two
	@$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) --runs $(RUNS) --seed $(SEED) --form $(FORM) $(if $(STREAM),--stream $(STREAM)) --engine=$(ENGINE) $(NO_FAST_PATHS) $(ARGS)

set-up-fuzz:
	$(SET_UP) fuzz

fuzz: set-up-fuzz ## coverage-guided fuzzing, a minute: TARGET=peer_frames; ARGS=-runs=10000000 for more
	@$(BIN)/python -m tests.fuzz $(TARGET) $(ARGS)

mutants: set-up ## small mistakes in MODULES, one at a time: which of them no test in TESTS notices
	@$(BIN)/python -m tools.mutation $(MODULES) --tests $(TESTS) --sample $(SAMPLE) --seed $(SEED) $(ARGS)

report-cluster: set-up ## the report on a real standalone Spark cluster and here: the same bytes
	@$(BIN)/python -m tests.spark.cluster

report-month: set-up ## a month of LINES=20000000 lines with faults planted, through the whole report
	@$(BIN)/python -m tests.spark.whole_month --lines $(LINES) build/report-month

report-day: set-up ## one day of ten million lines through the whole report: time and memory
	@$(BIN)/python -m tests.spark.whole_month --days 1 --lines 10000000 build/report-day

report-kill: set-up ## the report's job killed at each of its stages and run again: the same bytes
	@$(BIN)/python -m tests.spark.killed $(ARGS)

integration: set-up ## the tests with real sockets, files, processes and Spark
	@$(if $(INTEGRATION),$(PYTEST) $(INTEGRATION) --durations=15 --engine=$(ENGINE) $(ARGS),echo "no integration tests yet")

cov: set-up ## the whole test suite with branch coverage, as text and in build/coverage-html
	@$(PYTEST) --cov --cov-report=term --cov-report=html $(ARGS)

fmt: set-up ## put the code into shape
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

lint: set-up ## ruff, codespell, and what docstrings have to say
	@$(BIN)/ruff check .
	@$(BIN)/python -m tools.wording
	@$(BIN)/ruff format --check .
	@$(BIN)/codespell
	@$(BIN)/python -m tools.raises

types: set-up ## mypy, strict
	@$(BIN)/mypy $(CODE)

imports: set-up ## who may import whom
	@PYTHONPATH=. $(BIN)/lint-imports --no-logo

rules: set-up ## which rules of docs/spec have a test
	@$(BIN)/python -m tools.rules

check: set-up ## everything that takes seconds: before each commit
	@$(BIN)/python -m tools.lock --check
	@$(MAKE) --no-print-directory lint types imports rules unit

reference: set-up ## write docs/reference/ from the code
	@$(BIN)/python -m tools.reference

docs: set-up ## the documentation as a site in build/site; a dead link or anchor fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

docs-serve: set-up ## the site on 127.0.0.1:8000, built anew when a page changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

lock: set-up ## make requirements/*.txt from pyproject.toml; ARGS=--upgrade moves the pins
	@$(BIN)/python -m tools.lock $(ARGS)

wheels: set-up ## source archive and wheels of a release in dist/, checked, and installed where it can be
	@$(BIN)/python -m tools.release $(ARGS)

first-reply: set-up ## an empty environment, the wheels of dist/, the README's two programs: the seconds it takes
	@$(BIN)/python -m tools.release.first_reply build/first-reply $(ARGS)

deb: set-up ## the Debian package in dist/, for this machine's Python
	@$(BIN)/python -m tools.package.deb $(ARGS)

deb-test: set-up ## installs, upgrades, removes and purges the package in a root of its own; needs root
	@$(BIN)/python -m pytest -q tests/packages/debian.py $(ARGS)

image-test: set-up ## carries out deploy/Dockerfile in a root of its own and runs the daemon; needs root
	@$(BIN)/python -m pytest -q tests/packages/image.py $(ARGS)

sbom: set-up ## the bill of materials (CycloneDX) of what users install, in build/sbom
	@$(BIN)/python -m tools.sbom $(ARGS)

clean: ## remove what was built and cached; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	find brokerd tests tools migrations spark_jobs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
