# hpc_kit. `make help` lists the targets; the words behind ## are their help.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# make submit JOB=ddp_4node ARGS="--set resources.nodes=2" WAIT=1 PYTHON=/opt/python/bin/python CLUSTER=env/mine.toml
JOB ?=
ID ?=
ARGS ?=
WAIT ?=
PYTHON ?=
CLUSTER ?=

KIT := .venv/bin/hpc-kit
RUN := .venv/bin/python -m
OPTIONS = $(if $(CLUSTER),--cluster $(CLUSTER)) $(ARGS)

.PHONY: help venv dev submit render check status logs cancel list test coverage test-slow lint types golden docs bench \
	slurm-up slurm-down test-slurm test-faults clean

help: ## show this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

venv:
	@env/make_venv.sh $(if $(PYTHON),'$(PYTHON)')

dev:
	@env/make_venv.sh --dev $(if $(PYTHON),'$(PYTHON)')

submit: venv ## submit JOB; with WAIT=1, or on the embedded Slurm, follow it to its end
	@$(KIT) submit $(JOB) $(if $(WAIT),--wait) $(OPTIONS)

render: venv ## print the sbatch script of JOB
	@$(KIT) render $(JOB) $(OPTIONS)

check: venv ## find faults in JOB before it is queued
	@$(KIT) check $(JOB) $(OPTIONS)

status: venv ## states of all jobs, of JOB (all of that name) or of ID
	@$(KIT) status $(or $(ID),$(JOB)) $(OPTIONS)

logs: venv ## output of JOB (its latest run) or of ID; without both, of the latest run
	@$(KIT) logs $(or $(ID),$(JOB)) $(OPTIONS)

cancel: venv ## cancel JOB (all of that name) or ID
	@$(KIT) cancel $(or $(ID),$(JOB)) $(OPTIONS)

list: venv ## list jobs, clusters and templates
	@$(KIT) list $(ARGS)

# Four processes on two cores, because tests also wait. Each process gets a few tests at a time and in order: none is left
# with many long tests, and tests that share a fixture of their module mostly run in one process.
TOGETHER := --numprocesses=4 --maxschedchunk=8

# Without compiled files, each of the hundreds of processes compiles all that it imports.
test test-slow: export PYTHONDONTWRITEBYTECODE =
test: dev ## the fast tests (about 5 minutes on 2 cores; no root, no network); see test-slow and test-slurm
	@$(RUN) pytest -q -m 'not slow and not real' --ignore=tests/cluster $(TOGETHER) $(ARGS)

coverage: export COVERED = $(CURDIR)
coverage: override ARGS += --cov --cov-report=term:skip-covered
coverage: test ## make test with line coverage; fails below 90 %

test-slow: dev ## the slow tests: real training of every strategy, MPI, many processes
	@$(RUN) pytest -q -m 'slow and not real' --ignore=tests/cluster $(ARGS)

lint: dev ## format and lint: ruff, shellcheck
	@$(RUN) ruff format --check . && $(RUN) ruff check .
	@if command -v shellcheck >/dev/null; then shellcheck env/*.sh .ci/run .ci/package; \
	elif [ -n "$$HPC_KIT_REQUIRE_ORACLES" ]; then echo "shellcheck is missing" >&2; exit 1; \
	else echo "shellcheck is missing: the shell is not checked (Debian: apt-get install shellcheck)" >&2; fi

types: dev ## mypy --strict on package, programs, tests and benchmarks
	@$(RUN) mypy

golden: dev ## regenerate the golden scripts, the schemas and the generated pages of docs/; read the diff
	@$(RUN) tests.golden

docs: dev ## build the documentation as a site with a search, in build/site
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict
	@echo "read it: .venv/bin/python -m http.server --directory build/site, then http://localhost:8000"

slurm-up: dev ## start a real Slurm of four hosts on this machine, for test-slurm (root; Debian's packages)
	@$(RUN) tests.cluster up

slurm-down: dev ## stop it and remove everything
	@$(RUN) tests.cluster down

test-faults: dev ## faults at random times on jobs with [restart]: FAULTS=25 SEED=1 MINUTES=10, REAL=1 for the real Slurm (root)
	@$(RUN) tests.faults --faults $(or $(FAULTS),25) --seed $(or $(SEED),1) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(REAL),--real) $(ARGS)

test-slurm: dev ## the tests on the real Slurm (root; skipped without)
	@$(RUN) pytest -q -m 'not slow' tests/cluster tests/conformance $(ARGS)

bench: dev ## measure start-up times, as ratios
	@.venv/bin/python bench/startup.py $(ARGS)

clean: ## remove .venv, build and caches (runs/ stays)
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
