# acache: everything a newcomer needs, in an environment of its own (.venv). Needs Python 3.11 or newer.
#
#   make demo            real kernels, N cold processes, one compile each (cuTile's compiler, no GPU needed)
#   make test            all tests; those of a compiler that is not there are skipped
#   make test-compilers  the tests of the real compilers, which may not be skipped
#   make test-wheel      a part of the tests against the built wheel instead of the checkout
#   make soak            what takes too long for every change: 1,000 rounds of kills
#   make lint            ruff, mypy --strict, import-linter
#   make clean           remove what these made
#
# PYTHON=python3.13 picks the interpreter, DEMO_ARGS="--processes 4" and PYTEST_ARGS="-k lease" are passed on.

PYTHON ?= python3
VENV ?= .venv
DEMO_ARGS ?=
PYTEST_ARGS ?=
WHEEL_TESTS ?= tests/unit tests/compilers

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WHEEL := build/wheel
NO_COMPILERS := not gcc and not tileiras and not nvrtc and not nvcc
# Where the wheels of CUDA put their programs.
CUDA_BIN := import sysconfig; print(sysconfig.get_path("platlib") + "/nvidia/cu13/bin")

.DEFAULT_GOAL := test
.PHONY: demo test test-compilers test-wheel soak lint clean

demo: $(VENV)/.demo
	$(BIN)/acache demo $(DEMO_ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-compilers: $(VENV)/.test $(VENV)/.demo $(VENV)/.nvcc
	PATH="$$PATH:$$($(BIN)/python -c '$(CUDA_BIN)')" ACACHE_TEST_REQUIRE=gcc,tileiras,nvrtc,nvcc \
		$(BIN)/python -m pytest -m "gcc or tileiras or nvrtc or nvcc" $(PYTEST_ARGS)

# The tests are copied away from the checkout, whose package they would import instead.
test-wheel: $(VENV)/.pip
	rm -rf $(WHEEL)
	mkdir -p $(WHEEL)/dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(WHEEL)/dist .
	$(PYTHON) -m venv $(WHEEL)/venv
	$(WHEEL)/venv/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	cp -r tests examples docs pyproject.toml $(WHEEL)/
	cd $(WHEEL) && venv/bin/python -m pip install --quiet --disable-pip-version-check --group test \
		"$$(echo dist/*.whl)[cli,trio]"
	cd $(WHEEL) && ACACHE_TEST_REQUIRE= venv/bin/pytest -m "$(NO_COMPILERS)" $(WHEEL_TESTS)
	cd $(WHEEL) && venv/bin/acache demo --help >/dev/null

soak: $(VENV)/.test
	ACACHE_CRASH_ROUNDS=1000 $(BIN)/python -m pytest -s tests/crash $(PYTEST_ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find acache tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is one thing installed; a changed pyproject.toml installs anew.

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "acache needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25.1"
	touch $@

$(VENV)/.demo: $(VENV)/.pip pyproject.toml
	$(PIP) --editable ".[cli,cuda,tile,trio]"
	touch $@

$(VENV)/.test: $(VENV)/.pip pyproject.toml
	$(PIP) --editable ".[cli,trio]" --group test
	touch $@

$(VENV)/.nvcc: $(VENV)/.pip pyproject.toml
	command -v nvcc >/dev/null || $(PIP) --group nvcc
	touch $@

$(VENV)/.lint: $(VENV)/.pip pyproject.toml
	$(PIP) --editable ".[cli,trio]" --group lint
	touch $@
