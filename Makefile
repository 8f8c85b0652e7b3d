# Every target sets up .venv by itself; nothing but Python >= 3.10 with its venv module is needed.

VENV    ?= .venv
# Tests often wait, for a process, a browser, a server: three keep two cores busy; the long proofs,
# which wait more, leave a sixth of them idle with three.
WORKERS ?= 3
SLOW_WORKERS ?= 4
SAMPLE  ?= sample_traces/moe_8_ranks
BENCH   ?=
FUZZ    ?=

BIN   := $(VENV)/bin
READY_DEMO := $(VENV)/.ready-demo
READY := $(VENV)/.ready
READY_SLOW := $(VENV)/.ready-slow
DOCS_VENV := .venv-docs
READY_DOCS := $(DOCS_VENV)/.ready

# The newest usable interpreter: recent enough, and able to make a virtual environment.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3.10 python3; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' \
		>/dev/null 2>&1 && { command -v "$$python"; break; }; done)

# What only checks and tests need is compiled as it is imported: to compile all of it would take as
# long as to install it.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PIP_INSTALL_FOR_TESTS := $(PIP_INSTALL) --no-compile

# Where the environment forbids to keep bytecode, each process would compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow fuzz check docs messages bench screenshots timeline

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The venv is made again when its interpreter is gone, and filled again when pyproject.toml changes.
# What a user of the command line installs, and no more.
$(READY_DEMO): pyproject.toml
	@test -n "$(PYTHON)" || { \
		echo "no Python >= 3.10 with the venv module found; on Debian and Ubuntu:" >&2; \
		echo "    apt-get install python3 python3-venv" >&2; \
		echo "or name one: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON)" >&2
	@"$(BIN)/python" -c "" 2>/dev/null || "$(PYTHON)" -m venv --clear "$(VENV)"
	@"$(BIN)/python" -m pip --version >/dev/null 2>&1 || "$(BIN)/python" -m ensurepip
	@PYTHONWARNINGS=ignore "$(BIN)/python" $(PIP_INSTALL) --editable .
	@touch "$@"

# Groups of pyproject.toml need pip 25.1.
$(READY): $(READY_DEMO)
	@"$(BIN)/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(VENV) is of Python 3.10; tests and checks need 3.11 or newer, in an environment of" >&2; \
		echo "their own: make VENV=.venv-tests PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@"$(BIN)/python" $(PIP_INSTALL_FOR_TESTS) --upgrade 'pip>=25.1'
	@PYTHONWARNINGS=ignore "$(BIN)/python" $(PIP_INSTALL_FOR_TESTS) \
		--editable '.[dashboard,exporter]' --group dev
	@touch "$@"

# The long proofs run on a Ray cluster of their own and on real models, too.
$(READY_SLOW): $(READY)
	@PYTHONWARNINGS=ignore "$(BIN)/python" $(PIP_INSTALL_FOR_TESTS) \
		--editable '.[dashboard,exporter,cluster]' --group dev --group torch --group notebooks --group object
	@touch "$@"

demo: $(READY_DEMO)  ## report on the committed sample of a MoE job
	@"$(BIN)/npuscope" report $(SAMPLE) --store build/demo-store

# Each worker takes a part of the tests in their order, so that what a module shares is made once, and
# who has done takes half of what another one still has.
test: $(READY)  ## everything but the long proofs, in under 4 minutes on 2 cores
	@"$(BIN)/python" -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

# What a file's tests share may take a minute to make: it is made by one worker.
test-slow: $(READY_SLOW)  ## the long proofs
	@"$(BIN)/python" -m pytest -n $(SLOW_WORKERS) --dist loadfile -m slow || test $$? -eq 5  # 5: no test is marked slow

# Goes on where an interrupted run was. FUZZ="sqlite --count 500" takes less; see tests/prove/fuzz/run.py.
fuzz: $(READY)  ## 10,000 damaged files for each reader; failures stay below build/fuzz
	@"$(BIN)/python" -m tests.prove.fuzz.run $(FUZZ)

check: $(READY)  ## formatting, lint, types, import contracts, translations
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/ruff" check .
	@"$(BIN)/mypy" --num-workers auto
	@"$(BIN)/lint-imports"
	@"$(BIN)/python" -m tests.dashboard.locale.extraction --check
	@$(MAKE) --no-print-directory timeline OUT=build/timeline.js
	@cmp dashboard/timeline_component/timeline.js build/timeline.js || { \
		echo "the bundle is not what its source makes: make timeline" >&2; exit 1; }

# Users need no Node: the bundle is committed. Its source is beside it.
timeline: OUT ?= dashboard/timeline_component/timeline.js
timeline:  ## the timeline's bundle made anew from its source, with Node
	@cd dashboard/timeline_component && npm ci --silent --no-audit --no-fund \
		&& npm run --silent build -- --log-level=warning --outfile="$(CURDIR)/$(OUT)" --allow-overwrite

# The site needs neither npuscope installed nor the network; warnings are errors.
$(READY_DOCS): pyproject.toml
	@"$(DOCS_VENV)/bin/python" -c "" 2>/dev/null || "$(PYTHON)" -m venv --clear "$(DOCS_VENV)"
	@"$(DOCS_VENV)/bin/python" $(PIP_INSTALL_FOR_TESTS) --upgrade 'pip>=25.1'
	@"$(DOCS_VENV)/bin/python" $(PIP_INSTALL_FOR_TESTS) --group docs
	@touch "$@"

docs: $(READY_DOCS)  ## the site of the docs, in build/site
	@"$(DOCS_VENV)/bin/python" docs/site_source.py
	@NO_MKDOCS_2_WARNING=1 "$(DOCS_VENV)/bin/python" -m mkdocs build --strict

# Untranslated texts are then empty in dashboard/locale/*/LC_MESSAGES/npuscope.po: to be filled.
messages: $(READY)  ## catalogs of translations brought up to date; LANGUAGE_CODE=fr begins one
	@"$(BIN)/python" -m tests.dashboard.locale.extraction $(if $(LANGUAGE_CODE),--new $(LANGUAGE_CODE))

# BENCH=--full takes the sizes of the targets: hours, and some 20 GB below build/.
bench: $(READY)  ## benchmarks, each printed as a ratio to a named peer or limit
	@for script in bench/*/*_bench.py; do \
		echo "== $$script"; \
		"$(BIN)/python" -m "$$(echo "$${script%.py}" | tr / .)" $(BENCH) || exit 1; done

screenshots: $(READY)  ## the README's pictures of the dashboard, taken anew with Chromium
	@"$(BIN)/python" -m tests.dashboard.app.screenshots
