# Each target sets up what it needs in .venv; a second run installs nothing again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check bench clean

demo: $(STAMP)
	$(BIN)/shoal train cifar10 --data digits --backend gloo --nproc-per-node 2 --batch-size 64 --learning-rate 0.05 \
	  --num-epochs 6 --validate-every 1 --log-every-iters 2 --num-workers 0 --output-path output-demo

test: $(STAMP)
	scripts/install-browser
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python bench/run.py

clean:
	rm -rf $(VENV) .venv-bench output-demo

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Shoal needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Shoal and its tools into $(VENV); torch alone is some gigabytes, so this takes minutes the first time."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)
