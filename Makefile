# The tasks of development; `make` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
# Tests start hundreds of programs: Python compiles the source once, also where the environment forbids it to keep the result.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# The stamps record what is installed: everything for development, only what a run needs, or also the systems
# with which benchmarks compare.
DEV := $(VENV)/.installed-dev
RUN := $(VENV)/.installed-run
BENCH := $(VENV)/.installed-bench
# The environment of another Python, for test-newest.
NEWEST_VENV := .venv-newest
NEWEST ?=

DIR ?=
ARGS ?=
SEEDS ?= 1000
SEED_BASE ?= 0
# Tests wait for servers for a third of their time, so three workers keep two cores busy.
JOBS ?= 3
# The image of Debian that container images are built on.
BASE ?= debian:bookworm-slim
IN_CONTAINERS := tests/contract/test_store.py tests/contract/test_registry.py \
  tests/integration/test_cluster_whole.py tests/integration/test_dev_cluster.py
# Optimized as far as in a wheel: the C compiler takes minutes for it.
COPY := $(CURDIR)/build/compiled
# How far the C compiler optimizes the modules that are tested: not at all, or as in a wheel in make test-long.
LEVEL ?= 0
TESTED_COPY := $(CURDIR)/build/compiled-$(LEVEL)
FOLDER = $(if $(DIR),--dir '$(DIR)')

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------- environment

$(BIN)/python:
	@python=$$(tools/python.sh); echo "creating $(VENV) with $$python ..."; "$$python" -m venv $(VENV)

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing foqs and its tools into $(VENV) ..."
	@$(PIP) install -e '.[server,spark,dev]' -c constraints.txt
	@touch $(DEV) $(RUN)

$(BENCH): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing foqs and the systems of the benchmarks into $(VENV) ..."
	@$(PIP) install -e '.[server,bench]' -c constraints.txt
	@touch $(BENCH) $(RUN)

$(RUN): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing foqs from this folder into $(VENV), with the versions of constraints.txt ..."
	@$(PIP) install -e '.[server]' -c constraints.txt
	@touch $(RUN)

.PHONY: install
install: $(DEV) ## fill .venv with everything for development

.PHONY: system-packages
system-packages: ## install the system packages that the tests need
	@tools/system_packages.sh

.PHONY: constraints
constraints: ## renew constraints.txt (needs uv)
	@{ echo "# Versions only: what make install uses. Renew with: make constraints"; \
	  uv pip compile pyproject.toml --all-extras --universal --upgrade --quiet --no-emit-index-url \
	    --no-header --no-annotate --python-version 3.11; } > constraints.new || { rm constraints.new; exit 1; }
	@mv constraints.new constraints.txt

# -------------------------------------------------------------- run and see

.PHONY: run
run: $(RUN) ## start a queue, drive real work through it, keep serving (DIR=folder of files)
	@$(BIN)/python -m foqs.demo --serve $(FOLDER) $(ARGS)

.PHONY: demo
demo: $(RUN) ## the same, then stop; exit 0 if every item is accounted for
	@$(BIN)/python -m foqs.demo $(FOLDER) $(ARGS)

# -------------------------------------------------------- check, test, measure

.PHONY: check
check: $(DEV) ## lint, format, types, imports between packages, generated files, documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/idl.py --check
	@$(BIN)/python tools/contract.py --check
	@$(BIN)/python tools/calls.py --check
	@$(BIN)/python tools/columns.py --check
	@$(BIN)/python tools/diagram.py --check
	@$(BIN)/python tools/speed_chart.py --check
	@$(BIN)/python tools/dashboards.py --check
	@$(MAKE) --no-print-directory docs

.PHONY: dist
dist: $(DEV) ## build the source archive, the plain and the compiled wheel into dist/, twice, and compare the bytes
	@tools/system_packages.sh compile
	@rm -rf dist
	@$(BIN)/python tools/dist.py --compiled --check dist

.PHONY: sbom
sbom: $(DEV) ## write dist/foqs.cdx.json: what an installed foqs[server,spark] consists of (CycloneDX)
	@$(BIN)/python tools/sbom.py dist/foqs.cdx.json

.PHONY: image-packages
image-packages: $(DEV) ## put the wheel and all that it needs into dist/, for configs/docker/Dockerfile
	@rm -rf dist
	@$(BIN)/python tools/dist.py dist
	@$(PIP) download -d dist "$$(echo dist/foqs-*-none-any.whl)[server]" -c constraints.txt

.PHONY: image
image: image-packages ## build the container image foqs (BASE=another image of Debian)
	@engine=$$(command -v docker || command -v podman) || { echo "neither docker nor podman is installed" >&2; exit 1; }; \
	  BUILDAH_FORMAT=docker "$$engine" build -f configs/docker/Dockerfile --build-arg BASE=$(BASE) --build-arg PIP_NO_INDEX=1 -t foqs .

.PHONY: docs
docs: $(DEV) ## build the documentation into site/; dead links fail
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.PHONY: test
test: system-packages $(DEV) ## everything but the long tests; with ARGS without test-newest, test-compiled and test-containers
	@$(MAKE) --no-print-directory -j2 test-plain test-beside

# Meanwhile run the checks, and tests that wait for servers less. Their output is in a file until they end.
BESIDE := check $(if $(ARGS),,test-newest test-compiled test-containers)

.PHONY: test-plain
test-plain: $(DEV)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not long and not containers' $(ARGS)

.PHONY: test-beside
test-beside: $(DEV)
	@mkdir -p build; log=build/test-beside.log; \
	echo "beside the tests run: $(BESIDE) (see $$log)"; code=0; \
	for target in $(BESIDE); do $(MAKE) --no-print-directory JOBS=2 "$$target" || code=$$?; done >"$$log" 2>&1; \
	cat "$$log"; exit $$code

.PHONY: test-unit
test-unit: $(DEV) ## the tests that start no server
	@$(BIN)/python -m pytest tests/unit tests/support $(ARGS)

# Tests take the plain Python, which a compiled module from before the last edit would hide.
test-plain test-unit test-newest test-containers test-regions test-long test-sqs sim: export FOQS_PURE := 1

.PHONY: test-sqs
test-sqs: $(DEV) ## the tests of the SQS server: ours, moto's, kombu's, AWS' signature vectors (also part of make test)
	@$(BIN)/python -m pytest -rP tests/unit/sqs tests/sqs $(ARGS)

# What reads the source, what only perf/ and tools/ need, and whether planted mistakes are found: equal on each Python.
NOT_NEWEST := $(addprefix --ignore tests/unit/,perf tools test_document_names.py test_file_names.py test_glossary.py test_import_circles.py)

# Without database servers and ZooKeeper, whose tests take most of the time.
.PHONY: test-newest
test-newest: $(DEV) ## the unit and contract tests, and Django's project, with the newest Python beside that of .venv (NEWEST=PYTHON names one)
	@tests=(-m 'not long and not once and not mysql and not postgres and not zookeeper' -k 'not planted_mistake' $(NOT_NEWEST) \
	  tests/unit tests/contract tests/integration/test_docs_django.py); \
	own=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	newest='$(NEWEST)'; newest=$${newest:-$$(tools/python.sh beside "$$own")}; \
	if [[ -z $$newest ]]; then \
	  count=$$($(BIN)/python -m pytest -q --collect-only "$${tests[@]}" | grep -oE '^[0-9]+' | tail -1); \
	  echo "test-newest: $$count tests were not run with another Python than $$own, because none was found: name one with NEWEST=PYTHON"; \
	  exit 0; fi; \
	tools/venv.sh $(NEWEST_VENV) "$$newest" '.[server,test]'; \
	$(NEWEST_VENV)/bin/python -m pytest -n $(JOBS) --hypothesis-profile few --dist worksteal "$${tests[@]}" $(ARGS)

.PHONY: compile
compile: $(DEV) ## compile the hot modules beside their sources (make compile-clean removes them)
	@tools/system_packages.sh compile
	@$(BIN)/python tools/compile.py

.PHONY: compile-clean
compile-clean: ## remove the compiled modules
	@python3 tools/compile.py --clean

# What costs seconds and shows a rule is compiled too in make test-long only.
ALSO_COMPILED = $(if $(filter 0,$(LEVEL)),and not once)

# The packages with compiled modules, those that call them directly, and bad values of every field of every call. Whether
# planted mistakes are found, and what MySQL 9 does, the plain tests show.
COMPILED_TESTS := $(addprefix tests/unit/,core queue rpc runtime shard store cluster sqs testing) tests/contract/test_store*.py \
  'tests/behaviour/test_bad_fields.py::test_bad_field_is_named_and_changes_nothing[fake]'

.PHONY: test-compiled
test-compiled: system-packages $(DEV) ## the unit and contract tests of the compiled modules, in a copy of the tree
	@tools/system_packages.sh compile
	@$(BIN)/python tools/compile.py --copy $(TESTED_COPY) --level $(LEVEL)
	@cd $(TESTED_COPY) && export FOQS_PURE=0 PYTHONPATH=$(TESTED_COPY):$(TESTED_COPY)/client && \
	  $(CURDIR)/$(BIN)/python -m foqs --version && \
	  $(CURDIR)/$(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile few --dist worksteal -m 'not long $(ALSO_COMPILED) and not takes_source and not zookeeper' \
	    -k 'not mysql9 and not planted_mistake' $(COMPILED_TESTS) $(ARGS)

# The files of the second call run with servers in containers in place of those of packages.
.PHONY: test-containers
test-containers: $(DEV) ## the tests in containers, by the engine that DOCKER_HOST names (BASE=another image of Debian)
	@code=0; $(BIN)/python -m tests.support.engine_check || code=$$?; \
	if [[ $$code == 3 ]]; then \
	  echo "test-containers: not run, because no Docker-compatible engine answers: set DOCKER_HOST to its socket"; exit 0; fi; \
	[[ $$code == 0 ]]; \
	tools/system_packages.sh containers; \
	export BASE_IMAGE='$(BASE)'; \
	$(BIN)/python -m pytest -m containers tests/containers $(ARGS); \
	TEST_IN_CONTAINERS=1 $(BIN)/python -m pytest -m 'mysql or zookeeper' $(IN_CONTAINERS) $(ARGS)

REGION_TESTS := tests/unit/shardmgr $(addprefix tests/integration/test_,promotion.py region_drain.py region_loss.py region_rebuild.py replication_tls.py server_of_hosts.py takeover_barrier.py)

.PHONY: test-regions
test-regions: system-packages $(DEV) ## the tests of databases with a server in each region, with the long ones
	@$(BIN)/python -m pytest -rP $(REGION_TESTS) $(ARGS)

# Side by side what needs the processor; then one by one what kills, measures or starts many processes.
SIDE_BY_SIDE := $(addprefix tests/,simulation unit contract behaviour)

.PHONY: test-long
test-long: system-packages $(DEV) $(BENCH) ## the long tests, with the systems of the benchmarks
	@tools/system_packages.sh race
ifdef ARGS
	@$(BIN)/python -m pytest -m long $(ARGS)
else
	@code=0; \
	$(BIN)/python -m pytest -m long -n $(JOBS) --dist worksteal $(SIDE_BY_SIDE) || code=$$?; \
	$(BIN)/python -m pytest -m long $(addprefix --ignore ,$(SIDE_BY_SIDE)) || code=$$?; \
	$(MAKE) --no-print-directory test-compiled LEVEL=2 || code=$$?; \
	exit $$code
endif

.PHONY: pictures
pictures: system-packages $(DEV) ## take the pictures of docs/console.md again
	@FOQS_PICTURES=docs/pictures $(BIN)/python -m pytest -m long tests/integration/test_console_pictures.py $(ARGS)

.PHONY: sim
sim: $(DEV) ## the seeded simulation (SEEDS=1000 SEED_BASE=0; ARGS=--fleet: of several hosts)
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --base $(SEED_BASE) $(ARGS)

.PHONY: bench
bench: $(BENCH) ## measure: the table of ratios, about half an hour (ARGS='--rows single idle' for a part of it)
	@tools/system_packages.sh bench
	@$(BIN)/python -m perf.bench $(ARGS)

.PHONY: race
race: $(DEV) $(BENCH) ## measure: every other queue in one race, two hours (ARGS=--short: 20 minutes)
	@tools/system_packages.sh race || echo "the race goes on without what is missing" >&2
	@tools/system_packages.sh compile
	@$(BIN)/python tools/compile.py --copy $(COPY)
	@mkdir -p perf/results
	@cd $(COPY) && PERF_RESULTS=$(CURDIR)/perf/results PYTHONPATH=$(COPY):$(COPY)/client $(CURDIR)/$(BIN)/python -m perf.race $(ARGS)

.PHONY: bench-all
bench-all: $(BENCH) ## measure: every question in perf/
	@tools/system_packages.sh bench
	@for question in limit end_to_end profile bench; do echo "== perf.$$question"; $(BIN)/python -m perf.$$question; done

.PHONY: idl
idl: system-packages $(DEV) ## generate the Python code of thrift/foqs.thrift
	@$(BIN)/python tools/idl.py

.PHONY: clean
clean: ## remove .venv and caches; data folders stay
	@rm -rf $(VENV) $(NEWEST_VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage dist build site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
