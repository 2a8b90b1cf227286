# What people and CI run alike. A fresh clone needs Python 3.11 or newer and make; the rest goes into .venv.

PYTHON ?= python3
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip -qq --disable-pip-version-check install

# The stamps carry a checksum of what they were installed from: nothing is installed, or asked of the network,
# until one of these two files says something else.
KEY := $(shell cat pyproject.toml constraints-dev.txt | cksum | cut -d ' ' -f 1)
MADE := $(VENV)/.made
READY := $(VENV)/.ready-$(KEY)
DEV_READY := $(VENV)/.dev-ready-$(KEY)
TRIALS := build/fault-trials.jsonl
PAGE_READY := frontend/node_modules/.ready-$(shell cksum < frontend/package-lock.json | cut -d ' ' -f 1)
NPM := cd frontend && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm
# The lowest version of Ray that pyproject.toml allows.
RAY ?= $(shell sed -n 's/^ray = \["ray>=\([0-9.]*\),.*/\1.0/p' pyproject.toml)
RAY_VENV := .venv-ray-$(RAY)
RAY_READY := $(RAY_VENV)/.ready-$(KEY)
RAY_TESTS := $(addprefix tests/cluster/test_,runs.py cluster_connection.py ray_data.py rows_served.py trainer_datasets.py)
NOT_HAD := not installed: tests that need it are skipped, and say so; to try again: rm $(DEV_READY)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-cluster test-ray fuzz mutation fresh release-check lint types format docs frontend page-tools screenshots bench bench-peers \
  bench-results chaos reliability clean

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24
	@echo
	@echo "  make PYTHON=python3.12 ...        use another Python for .venv"
	@echo "  make test PART=data               run one part; the parts are in tools/run_parts.py"
	@echo "  make test ARGS='-k journal'       hand arguments to pytest"
	@echo "  make bench ARGS='--without ray'   leave a peer out; make bench PEERS='torchrun lightning' makes only theirs"
	@echo "  make chaos ARGS='--chaos-scale 5' five times as many seeds"

demo: $(READY)  ## run examples/demo.py
	@$(RUN) examples/demo.py $(ARGS)

# Hundreds of tests start processes of their own: compile the package once, for all of them.
test: $(DEV_READY)  ## run the tests that a change needs, in 8 minutes; PART=data runs one part
	@$(RUN) -m compileall -q src
	@$(RUN) tools/run_parts.py $(addprefix --part ,$(PART)) $(ARGS)

test-all: $(DEV_READY)  ## run the rest: what is too slow for make test
	@$(RUN) -m compileall -q src
	@$(RUN) tools/run_parts.py --slow $(addprefix --part ,$(PART)) $(ARGS)

# As root; from Debian: slurm-wlm munge iproute2 iptables redis-server. What is missing is skipped, with the reason.
# One seed of each fault; make chaos tries twenty.
test-cluster: $(DEV_READY)  ## run the tests that need hosts or schedulers, which are made out of network namespaces
	@$(RUN) -m pytest -m chaos --chaos-scale 0.05 tests/hosts tests/schedulers $(ARGS)

# In an environment of its own. Jobs are submitted on a host that is made for it, as root.
test-ray: $(RAY_READY)  ## run what a cluster needs with another version of Ray: RAY=2.60.0; without it, the lowest
	@$(RAY_VENV)/bin/python -m pytest -W ignore:Tip:FutureWarning -m "not slow and not chaos" $(RAY_TESTS) $(ARGS)
	@$(RAY_VENV)/bin/python -m pytest -m chaos tests/schedulers/test_ray_jobs.py $(ARGS)

fuzz: $(DEV_READY)  ## run the property tests with fresh seeds and more examples; failures are kept in .hypothesis
	@$(RUN) -m pytest -q -n 2 -m "hypothesis and not ray" --hypothesis-profile=fuzz tests $(ARGS)

mutation: $(DEV_READY)  ## plant small bugs, and count how many of them the tests notice
	@$(PIP) -c constraints-dev.txt --group mutation
	@$(RUN) tools/mutation.py $(ARGS)

fresh: $(DEV_READY)  ## a new clone follows the first guide, in an environment of its own (some minutes)
	@$(RUN) -m pytest -m fresh tests/docs $(ARGS)

# In environments of its own, from the package index. ARGS='--each-extra --lowest' and others: see ARGS=--help.
release-check: $(MADE)  ## build wheel and sdist, and try the wheel with each Python that is found
	@$(RUN) tools/check_release.py $(ARGS)

lint: $(DEV_READY)  ## check style, formatting and spelling
	@$(RUN) -m ruff check --no-cache .
	@$(RUN) -m ruff format --no-cache --check .
	@$(RUN) -m codespell_lib src docs examples benchmarks frontend/src *.md

types: $(DEV_READY)  ## check types
	@$(RUN) -m mypy

format: $(DEV_READY)  ## mend what ruff can mend
	@$(RUN) -m ruff check --fix-only .
	@$(RUN) -m ruff format .

# A broken link, a page that is in no contents, a public name without a docstring: each is a warning, and fails it.
.PHONY: docs
docs: $(DEV_READY)  ## build the documentation's site into build/docs
	@$(RUN) -m sphinx -q -E -W --keep-going -n -d build/docs-made docs build/docs $(ARGS)
	@echo "$(CURDIR)/build/docs/index.html"

frontend: $(PAGE_READY) $(DEV_READY)  ## generate and check the types of the dashboard's page, build it, and run its unit tests
	@$(RUN) frontend/api_types.py
	@$(NPM) run --silent types
	@$(NPM) run --silent build
	@$(NPM) run --silent test

page-tools: $(PAGE_READY)  ## install what builds the page, from npm's registry; without it its tests are left out

screenshots: $(DEV_READY)  ## take the pictures of docs/images, with the browser that is installed
	@PACELINE_SCREENSHOTS=docs/images PACELINE_NEED_BROWSER=1 $(RUN) -m pytest -q tests/browser/test_screenshots.py $(ARGS)

bench: $(DEV_READY) bench-peers  ## run the timings, ours and the peers' in one run
	@$(RUN) benchmarks/all.py $(ARGS)

bench-peers:  ## make the environments that the peers run in
	@PYTHON=$(PYTHON) benchmarks/peers/make_env.sh $(PEERS)

bench-results: $(DEV_READY)  ## keep the last results: NAME=two-cores; the table and the plots of the docs with them
	@$(RUN) benchmarks/keep.py $(NAME)

# Two sessions: where Ray is initialised in the process, all runs are on its cluster.
chaos: $(DEV_READY)  ## run the long tests, with real kills (hours)
	@mkdir -p build && rm -f $(TRIALS)
	@$(RUN) -m pytest -m "chaos and not ray" -n 2 --fault-trials=$(TRIALS) tests $(ARGS); ended=$$?; \
	  $(RUN) -m pytest -m "chaos and ray" --fault-trials=$(TRIALS) $(FAULT_TABLE) tests $(ARGS) && exit $$ended

reliability: FAULT_TABLE := --fault-table=docs/reliability.md
reliability: chaos  ## the same, and put its table into docs/reliability.md

clean:  ## remove .venv and the peers', caches and builds
	@rm -rf $(VENV) .venv-* build dist frontend/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests tools examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(MADE):
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; name another: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) --version) is too old: Paceline needs 3.11 or newer; name another: make PYTHON=python3.12 ..."; exit 1; }
	@echo "== creating $(VENV) =="
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade 'pip>=25.1'  # the first that installs dependency groups
	@touch $@

$(READY): | $(MADE)
	@echo "== installing paceline and torch (CPU build, 192 MB); a few minutes the first time =="
	@$(PIP) -c constraints-dev.txt -e '.[torch]'
	@touch $@

$(DEV_READY): | $(READY)
	@echo "== installing the test tools =="
	@$(PIP) -c constraints-dev.txt --group dev
	@echo "== installing the frameworks to test with (1 GB) =="
	@$(PIP) -c constraints-dev.txt --group frameworks
	@$(PIP) -c constraints-dev.txt --group integrations || echo "$(NOT_HAD)"
	@# Without what it asks for: that is the large wheel of TensorFlow, and the one for CPUs is there.
	@$(PIP) -c constraints-dev.txt --no-deps tf_keras || echo "$(NOT_HAD)"
	@touch $@

$(RAY_READY):
	@echo "== installing paceline and ray $(RAY) into $(RAY_VENV) =="
	@rm -rf $(RAY_VENV)
	@$(PYTHON) -m venv $(RAY_VENV)
	@grep -v '^ray==' constraints-dev.txt > $(RAY_VENV)/constraints.txt
	@$(RAY_VENV)/bin/python -m pip -qq --disable-pip-version-check install -c $(RAY_VENV)/constraints.txt \
	  -e '.[ray]' 'ray[default]==$(RAY)' hypothesis pytest pytest-timeout
	@touch $@

# Node comes with a Python package: nothing of it has to be on the machine.
$(PAGE_READY): | $(DEV_READY)
	@echo "== installing what builds the dashboard's page (72 MB) =="
	@$(NPM) ci
	@touch $@
