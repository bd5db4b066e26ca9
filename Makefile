# Each alone on a fresh machine with Python 3.11 to 3.13: make demo, make test, make docs.
# Tests have four tiers: test, what you run while you think; test-all, with exports, XLA and every config; test-processes; test-release.
PYTHON ?= python3
BIN := .venv/bin
# Three files of tests at a time for two cores: some wait for processes of their own. They come in the order of
# tests/conftest.py, the longest first. A worker that crashes ends the tests.
PARALLEL ?= -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart=0

# What `test-lowest` holds the package to: the lowest Keras that setup.cfg admits, as written there, and the TensorFlow of TPUs.
LOWEST_KERAS := $(shell sed -n 's/^ *keras>=\([0-9.]*\),.*/\1/p' setup.cfg)
LOWEST := "keras==$(LOWEST_KERAS)" "tensorflow-cpu==2.20.*"
# And `test-newest`: the newest Keras and TensorFlow that setup.cfg admits.
NEWEST := --upgrade --upgrade-strategy eager

# Modules stay compiled, whatever the environment says: each process of the tests would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo docs lint test test-all test-processes test-release test-lowest test-newest test-tpu-program benchmark generate clean

install: .venv/installed

# Installed once, and again when what is to be installed changes.
.venv/installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "keras_vit needs Python 3.11 to 3.13, $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[cpu,test]"
	# The messages of TensorFlow Serving, for tests; what they require would put another TensorFlow over the one that is there.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "tensorflow-serving-api>=2.20,<2.22"
	@touch $@

demo: install
	$(BIN)/python -m trainers.demo --workdir=runs/demo

# The manual: build/site/index.html. The reference is generated from the installed package; Sphinx comes on first use.
docs: .venv/docs
	$(BIN)/python docs/_sphinx/stage.py build/docs
	$(BIN)/sphinx-build -q -W --keep-going -c docs/_sphinx build/docs build/site

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# TIERS=all runs all tiers in one session, as CI does: each session imports and collects everything once per worker. It skips
# tests marked `release` whose code has not changed since the commit in .ci/released, where all of them passed.
TIERS ?= quick
test: lint
	$(BIN)/python -m pytest $(PARALLEL) $(if $(filter all,$(TIERS)),--since=$(shell cat .ci/released),-m "not extended and not processes and not release")

# Everything that needs no process: the tests above, then exports, XLA and every config.
test-all: test
	$(BIN)/python -m pytest $(PARALLEL) -m "extended and not processes and not release"

# What starts processes of its own: the JAX backend, the wheel, the binaries' command lines.
test-processes: install
	$(BIN)/python -m pytest $(PARALLEL) -m processes

# What a release needs: kills, several devices and workers, the program for TPUs, the notebooks. Commit .ci/released afterwards.
test-release: install
	git diff --quiet HEAD
	$(BIN)/python -m pytest $(PARALLEL) -m release
	git rev-parse HEAD > .ci/released

# The tests with the oldest and the newest versions; TESTS narrows them: make test-lowest TESTS=tests/layers
test-lowest: OF = $(LOWEST)
test-newest: OF = $(NEWEST)
test-lowest test-newest: test-%: .venv-%/installed
	.venv-$*/bin/python -m pytest $(PARALLEL) $(TESTS)

.venv-lowest/installed .venv-newest/installed: .venv-%/installed: setup.cfg pyproject.toml Makefile
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[cpu,test]" $(OF)
	@touch $@

# What TPUStrategy compiles, lowered with the op kernels of TPUs and compiled for a TPU; needs none. TensorFlow is kept from the libtpu that
# jax compiles with: it would load it, and is not made for it.
test-tpu-program: .venv-tpu/installed
	TPU_LIBRARY_PATH=none .venv-tpu/bin/python -m pytest tests/distribution/test_tpu_program.py -s --durations=5

.venv-tpu/installed: setup.cfg pyproject.toml Makefile
	$(PYTHON) -m venv .venv-tpu
	.venv-tpu/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[plan]" pytest \
		"tensorflow-tpu==2.20.*" "keras==$(LOWEST_KERAS)"
	@touch $@

benchmark: install
	$(BIN)/python -m benchmarks.model

# Types of keyword arguments and tables in the docs, from the fields of the specs; the costs of all models.
generate: install
	PYTHONPATH=. $(BIN)/python tests/models/generated.py

clean:
	rm -rf .venv .venv-lowest .venv-newest .venv-tpu .mypy_cache build dist *.egg-info runs
