# Start with `make demo`; `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AREA ?= batch
SF ?= 1
# Number of processes that run tests. They wait often, so three keep two cores busy.
WORKERS ?= 3
# What coverage is measured of.
TESTS ?= tests/unit
# Number of mutants to test; 0 means all.
SAMPLE ?= 0
SEED ?= 1

DOCS := .venv-docs
# The next version of dbt, in addition to the pinned one.
NEXT := .venv-dbt-1.12
NEXT_NEEDS := 'metricflow>=0.213,<1.0' opentelemetry-api 'python-dotenv>=1.2' 'click>=8.3'
# A dozen tests with it, for CI.
NEXT_TESTS := $(addprefix tests/functional/,adapter/test_basic.py::TestSimpleMaterializations \
    adapter/test_basic.py::TestIncremental adapter/test_basic.py::TestSnapshotTimestamp \
    adapter/test_empty.py test_builds.py::TestFailure test_catalogs.py::TestSecondForm test_dbt_1_12.py)

# The last digit of the commit's id tells which half of the longest tests runs.
SHARE ?= $(shell echo $$(( 0x0$$(git rev-parse HEAD 2>/dev/null | tail -c 2) % 2 )))/2

# Needed by unit tests. Not pinned, because they must work with old versions of the other packages.
UNIT_TESTS_NEED := confluent-kafka cryptography duckdb duckdb-extension-avro duckdb-extension-iceberg \
    grpcio-tools hypothesis 'moto[s3,server]' ptars pyruhvro pytest pytest-timeout pytest-xdist

SHOP := examples/shop
TPCH := examples/tpch
TPCH_DATA := $(TPCH)/.data/sf$(SF)

# Tests of what differs most between the embedded engine and a cluster.
CLUSTER_TESTS := $(addprefix tests/functional/,test_merge.py::TestMerge test_writes.py::TestOnWrite \
    test_writes.py::TestPythonModels test_writes.py::TestSchemaChanges test_strategies.py::TestStrategies \
    test_strategies.py::TestMicrobatch test_builds.py::TestPublish test_builds.py::TestFailure \
    test_functions.py::TestCalls)

# The first demo builds the shop as of March, later ones as of April, so that they find changes.
SHOP_TODAY ?= $(if $(wildcard $(SHOP)/lakehouse/catalog.db),2026-04-30,2026-03-31)

# Without bytecode, each of the many processes of the tests compiles dbt and Spark's client again,
# which takes longer than what most of them do.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-tpch demo-cluster demo-stream demo-pr demo-ledger test test-all test-embedded test-others unit unit-minimal
.PHONY: lint style types test-slow test-cluster
.PHONY: test-cluster-short test-dbt-1.12 test-dbt-1.12-short coverage engine-jar docs docs-check report-check lock mutants defects bench stop clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.dev-installed ## Set up .venv with everything that development and tests need

demo: $(VENV)/.installed ## Build the example shop and show its tables; run it twice
	SHOP_TODAY=$(SHOP_TODAY) $(BIN)/dbt build --project-dir $(SHOP) --profiles-dir $(SHOP)
	@$(BIN)/python $(SHOP)/show_lakehouse.py

demo-tpch: $(VENV)/.tpch-installed $(TPCH_DATA)/.done ## Build TPC-H and its 22 queries, and check the answers (SF=1)
	@start=$$(date +%s); \
	TPCH_DATA="$(CURDIR)/$(TPCH_DATA)" $(BIN)/dbt build --project-dir $(TPCH) --profiles-dir $(TPCH) && \
	$(BIN)/python $(TPCH)/check_answers.py --sf $(SF) && \
	echo "TPC-H at scale factor $(SF): built and checked in $$(( $$(date +%s) - start )) s."

demo-cluster: $(VENV)/.dev-installed ## Build the shop on a Spark cluster with a REST catalog and two users
	PYTHONPATH=. $(BIN)/python examples/cluster/demo.py

demo-stream: $(VENV)/.dev-installed ## Stream a changing shop through Kafka into tables
	PYTHONPATH=. $(BIN)/python examples/orders_cdc/demo.py

demo-pr: $(VENV)/.installed ## Build a change of the shop on the side, show the difference, publish it
	$(BIN)/python examples/pull_request/demo.py

demo-ledger: $(VENV)/.installed ## Read files, tag, branch and clone tables, in two catalogs
	$(BIN)/python examples/ledger/demo.py

# Most of the time goes to the first part. The second one uses what that leaves of two cores.
test: style ## Run the suite, but half of the functional and integration tests; the commit says which
	@echo "Share $(SHARE) of the functional and integration tests; SHARE=0/1 runs all of them."
	$(MAKE) --no-print-directory --jobs 2 test-embedded test-others

test-all: ## Run the whole suite
	$(MAKE) --no-print-directory test SHARE=0/1

# In the order of the files: by default those with few tests, which are the longest ones, come last.
test-embedded: $(VENV)/.dev-installed ## Run all tests that are not long on the embedded engine
	$(BIN)/pytest tests -m "not slow" --share $(SHARE) --numprocesses $(WORKERS) \
	    --dist loadfile --no-loadscope-reorder --durations 25

test-others: $(VENV)/.dev-installed ## Check types, and run a few tests on a cluster and with dbt-core 1.12
	$(MAKE) --no-print-directory types
	$(MAKE) --no-print-directory test-dbt-1.12-short
	$(MAKE) --no-print-directory test-cluster-short

unit: $(VENV)/.dev-installed ## Run the tests that need no Spark
	$(BIN)/pytest tests/unit

unit-minimal: ## Run the unit tests with the oldest versions that setup.py allows
	$(PYTHON) -m venv .venv-minimal
	.venv-minimal/bin/pip install --quiet --disable-pip-version-check uv
	.venv-minimal/bin/uv pip install --quiet --python .venv-minimal --resolution lowest-direct -e .
	.venv-minimal/bin/uv pip install --quiet --python .venv-minimal $(UNIT_TESTS_NEED)
	.venv-minimal/bin/pytest tests/unit --numprocesses $(WORKERS)

lint: style types ## Check style and types

style: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-installed
	$(BIN)/mypy dbt benchmarks

test-slow: $(VENV)/.dev-installed ## Run the long tests
	$(BIN)/pytest tests -m slow

test-cluster: $(VENV)/.dev-installed ## Run the functional tests on a Spark cluster with a REST catalog
	$(BIN)/pytest tests/functional -m "not slow" --method connect

test-cluster-short: $(VENV)/.dev-installed ## Run a few functional tests on a Spark cluster
	$(BIN)/pytest $(CLUSTER_TESTS) -m "not slow" --method connect

test-dbt-1.12: $(NEXT)/.installed ## Run the functional tests with dbt-core 1.12
	$(NEXT)/bin/pytest tests/functional -m "not slow" --numprocesses $(WORKERS) --dist loadfile

test-dbt-1.12-short: $(NEXT)/.installed ## Run a few functional tests with dbt-core 1.12
	$(NEXT)/bin/pytest $(NEXT_TESTS) -m "not slow"

coverage: $(VENV)/.dev-installed ## Lines and branches that tests reach (TESTS=tests for all of them)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(TESTS) -m "not slow" --quiet --numprocesses $(WORKERS) --dist loadfile
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

engine-jar: $(VENV)/.dev-installed ## Build the engine's jar from its Java sources (needs a JDK 17)
	$(BIN)/python -m tests.engine_jar

docs: $(DOCS)/.installed ## Build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

docs-check: docs ## Check the site in headless Chromium (needs chromium and chromedriver)
	$(DOCS)/bin/python docs/site/check.py build/site

report-check: $(VENV)/.dev-installed $(DOCS)/.installed ## Check the page of iceberg-stream report in headless Chromium
	$(BIN)/python -m tests.report_page build/report.html
	$(DOCS)/bin/python docs/site/check_report.py build/report.html

lock: $(BIN)/python ## Pin the requirements of setup.py and dev-requirements.txt that are not pinned yet
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile setup.py dev-requirements.txt --extra kafka --extra postgres --universal --python-version 3.10 \
	    --no-annotate --custom-compile-command "make lock" --quiet --output-file constraints.txt

defects: $(VENV)/.dev-installed ## Put past defects back, which random histories must find; takes hours
	$(BIN)/python -m tests.mutants.defects

mutants: $(VENV)/.dev-installed ## Measure how many small faults unit tests notice (SAMPLE=200 SEED=1)
	$(BIN)/python -m tests.mutants --sample $(SAMPLE) --seed $(SEED)

bench: $(VENV)/.dev-installed ## Run the benchmarks of an area (AREA=batch, connect, write, stream or read)
	$(BIN)/python -m benchmarks.run --area $(AREA)

stop: ## Stop the engines that the demos have left running
	@for project in $(SHOP) $(TPCH); do \
	    $(BIN)/iceberg-stream stop --project-dir $$project || exit 1; \
	done

clean: ## Remove the files of demos and tests, but not .venv
	@if [ -x $(BIN)/iceberg-stream ]; then $(MAKE) --no-print-directory stop || true; fi
	rm -rf $(SHOP)/lakehouse $(SHOP)/target $(SHOP)/logs $(SHOP)/.iceberg_stream
	rm -rf $(TPCH)/lakehouse $(TPCH)/target $(TPCH)/logs $(TPCH)/.iceberg_stream $(TPCH)/.data
	rm -rf examples/cluster/.data examples/orders_cdc/.data examples/pull_request/.data examples/ledger/.data
	rm -rf build dist logs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# A marker file records what is installed, so that a second run starts at once.

# Call with a folder of programs, and with arguments of `pip install`. Large environments are made in
# a third of the time by uv, which does not know pip's configuration: pip installs what it cannot.
# Unlike pip, uv compiles bytecode only if it is asked to. Its cache keeps 1.4 GB of PySpark's source
# for each environment until it is pruned.
install = @$(1)/pip install --quiet --disable-pip-version-check uv && \
    $(1)/uv pip install --quiet --compile-bytecode --python $(1)/python $(2) && \
    $(1)/uv cache prune --quiet || \
    $(1)/pip install --quiet --disable-pip-version-check $(2)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "Python 3.10 or newer is needed. Choose one: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot create virtual environments. On Debian and Ubuntu:"; \
	    echo "    sudo apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.py constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev-installed: setup.py dev-requirements.txt constraints.txt | $(BIN)/python
	$(call install,$(BIN),-c constraints.txt -e . -r dev-requirements.txt)
	@touch $(VENV)/.installed $@

$(DOCS)/.installed: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(call install,$(DOCS)/bin,-r docs/requirements.txt)
	@touch $@

# dbt-core 1.12 requires a parser whose build downloads files from outside PyPI; it runs without it.
$(NEXT)/.installed: setup.py dev-requirements.txt constraints.txt
	$(PYTHON) -m venv $(NEXT)
	$(call install,$(NEXT)/bin,-c constraints.txt -e . -r dev-requirements.txt)
	$(call install,$(NEXT)/bin,$(NEXT_NEEDS))
	$(call install,$(NEXT)/bin,--no-deps dbt-core==1.12.6)
	@touch $@

$(VENV)/.tpch-installed: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check 'tpchgen-cli>=4.0,<5'
	@touch $@

$(TPCH_DATA)/.done: | $(VENV)/.tpch-installed
	$(BIN)/tpchgen-cli parquet -s $(SF) --output-dir $(TPCH_DATA)
	@touch $@
