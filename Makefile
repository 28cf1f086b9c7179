# Each target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help quickstart test mutants lint format types bench lab coverage docs dist clean

help:            ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/ —/'

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dates]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --no-compile --editable '.[dev]'
	@touch $@

# The tests of web pages need a browser. Where it cannot be installed, they are skipped and say so.
$(VENV)/.browser: $(VENV)/.dev
	@command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium >/dev/null 2>&1 || true
	@touch $@

quickstart: $(VENV)/.core      ## translate with the bundled model; train a small model in two minutes and use it
	$(BIN)/qkv run en-fr "The cat chased the mouse." "I love you very much."
	$(BIN)/qkv train dates
	$(BIN)/qkv run runs/dates "Dienstag, 4. Mai 2021" "le 14 juillet 1989" "7 March 1994" "2 de octubre de 2030"
	@echo 'To train on your own file, with one pair per line (source, tab, target):'
	@echo '  $(BIN)/qkv init translate pairs.tsv && $(BIN)/qkv train translate.toml'

test: $(VENV)/.browser         ## run all tests
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist worksteal

coverage: $(VENV)/.browser     ## run all tests and report line coverage
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term-missing:skip-covered

mutants: $(VENV)/.dev          ## plant 200 small faults in a copy of the core, and list those that no test finds
	$(BIN)/python bench/mutants.py --sample 200

lint: $(VENV)/.dev             ## check the style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev            ## check the types
	$(BIN)/mypy --num-workers 2

format: $(VENV)/.dev           ## fix the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev            ## run the benchmarks; bench/RESULTS.md has the latest results
	OMP_NUM_THREADS=2 $(BIN)/python bench/start.py
	OMP_NUM_THREADS=2 $(BIN)/python bench/text.py
	OMP_NUM_THREADS=2 $(BIN)/python bench/data_cache.py
	OMP_NUM_THREADS=2 $(BIN)/python bench/batches.py
	OMP_NUM_THREADS=2 $(BIN)/python bench/train.py dates
	OMP_NUM_THREADS=2 $(BIN)/python bench/checkpoint.py
	OMP_NUM_THREADS=2 $(BIN)/python bench/decode_cpu.py
	@echo 'on a GPU: bench/kernels.py, bench/train.py, bench/checkpoint.py, bench/decode.py'

lab: $(VENV)/.core             ## run all claims of the lab (hours on two cores) and write docs/lab
	$(BIN)/qkv lab --all --again --out docs/lab/results
	$(BIN)/qkv lab --book docs/lab

docs: $(VENV)/.dev             ## build the site from the pages and the code; open site/index.html
	$(PIP) --editable '.[docs]'
	$(BIN)/python docs/build_site.py

dist: $(VENV)/.dev             ## build the sdist and the wheel, twice, and check what they contain
	$(PIP) 'setuptools>=77'
	$(BIN)/python release/dist.py

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
