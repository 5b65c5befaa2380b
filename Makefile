# make demo    install into .venv, start a cluster with the bundled model, stream some answers
# make test    install into .venv, run every check and the whole test suite
# make stubs   generate the protobuf stubs again
# EXTRA=gpu    takes torch's CUDA build and Triton instead of the CPU build

PYTHON ?= python3
VENV ?= .venv
EXTRA ?= cpu
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed-$(EXTRA)
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: demo test check stubs clean redis
.DELETE_ON_ERROR:

demo: $(INSTALLED)-demo
	@$(BIN)/python examples/demo.py

test: $(INSTALLED)-dev redis check
	@echo "running the test suite (some minutes)"
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal --ignore tests/e2e
	@echo "running the end-to-end tests, which start real clusters one after another"
	@$(BIN)/python -m pytest -q tests/e2e

check: $(INSTALLED)-dev
	@echo "checking style, types, import contracts, protobuf stubs"
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache >$(VENV)/lint-imports.log || (cat $(VENV)/lint-imports.log; exit 1)
	@$(BIN)/python tools/generate_stubs.py --check
	@echo "compiling every Triton kernel for sm_80, sm_90 and sm_100 (a minute or two)"
	@$(BIN)/python -m baton_kernels.aot_check >$(VENV)/aot.log || (cat $(VENV)/aot.log; exit 1)

stubs: $(INSTALLED)-dev
	@$(BIN)/python tools/generate_stubs.py

$(VENV)/bin/python:
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

# torch first and alone: the CPU build has an index of its own, and pip must never choose another build.
$(VENV)/.torch-$(EXTRA): constraints.txt | $(VENV)/bin/python
	@echo "installing $(TORCH), $(EXTRA) build (a large download)"
ifeq ($(EXTRA),gpu)
	@$(PIP) install --quiet $(TORCH)
else
	@$(PIP) install --quiet --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu $(TORCH) 2>/dev/null \
		|| $(PIP) install --quiet $(TORCH)
endif
	@touch $@

$(INSTALLED)-demo: pyproject.toml constraints.txt $(VENV)/.torch-$(EXTRA)
	@echo "installing Baton and what it needs"
	@$(PIP) install --quiet --constraint constraints.txt --editable ".[$(if $(filter gpu,$(EXTRA)),gpu,all)]"
	@touch $@

$(INSTALLED)-dev: pyproject.toml constraints.txt $(VENV)/.torch-$(EXTRA)
	@echo "installing Baton, what it needs, and what its tests need"
	@$(PIP) install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

redis:
	@command -v redis-server >/dev/null || { \
		echo "installing redis-server"; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq >/dev/null && apt-get install -y -qq redis-server >/dev/null; \
		else \
			echo "redis-server is needed: sudo apt-get install redis-server" >&2; exit 1; \
		fi; }

clean:
	rm -rf $(VENV) build dist *.egg-info
