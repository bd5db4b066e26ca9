# Two commands, each alone on a fresh machine with Python 3.11 to 3.13: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test benchmark clean

install: .venv/installed

# Installed once, and again when what is to be installed changes.
.venv/installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "keras_vit needs Python 3.11 to 3.13, $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[cpu,viz,test]"
	@touch $@

demo: install
	$(BIN)/python -m trainers.demo --workdir=runs/demo

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest

benchmark: install
	$(BIN)/python -m trainers.benchmark

clean:
	rm -rf .venv build dist *.egg-info runs
