# Every target makes .venv on its own; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install demo docs check fix test test-slow test-oldest fuzz coverage bench bench-check results results-queue clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED)  ## make .venv with pinned dependencies

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=...") if sys.version_info < (3, 11) else None'
	@echo "Installing into $(VENV): about two minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(INSTALLED)  ## train and test a split model on handwritten digits, 4 parties
	$(BIN)/lightning-vfl fit --config data/digits --config protocol/mean --config trainer/demo
	$(BIN)/lightning-vfl test --config data/digits --config protocol/mean --trainer.accelerator cpu \
		--trainer.logger false --ckpt_path runs/demo/best.ckpt

check: $(INSTALLED) .lint/lightning_vfl  ## lint, format, types, import contracts, spelling, page of results, site, command-line smoke, golden runs, size
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPYPATH=.lint $(BIN)/mypy -p lightning_vfl
	MYPYPATH=.lint $(BIN)/mypy tests benchmarks examples docs/options.py docs/results/*.py
	cd .lint && ../$(BIN)/lint-imports --config ../pyproject.toml
	$(BIN)/python -m tests.circles  # no two modules import each other, for types neither
	$(BIN)/codespell
	$(BIN)/python docs/results/make_page.py --check
	$(BIN)/python docs/results/make_claims.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet  # strict: a broken link or reference fails
	$(BIN)/lightning-vfl --version
	$(BIN)/python -m lightning_vfl fit --help > /dev/null
	$(BIN)/python -m tests.readme_commands
	$(BIN)/python -m tests.golden  # small seeded trainings have the committed bits
	$(BIN)/python -m tests.size  # printed, and not enforced

# mypy and import-linter cannot follow a mapped package: they see the three folders as one tree here
.PHONY: .lint/lightning_vfl
.lint/lightning_vfl:
	@rm -rf .lint && mkdir -p $@
	@for entry in lightning_vfl/*; do ln -s ../../$$entry $@/; done
	@for wing in callbacks configs datamodules; do ln -s ../../$$wing $@/$$wing; done

fix: $(INSTALLED)  ## format and apply the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# worksteal: a worker that has finished takes tests of the other one; loadfile takes a fifth longer
# compiled files are kept even if PYTHONDONTWRITEBYTECODE is set: otherwise every process compiles all tests again
test: $(INSTALLED)  ## the test suite, about 3 minutes on two quiet cores
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n logical --dist worksteal

.flower: constraints-flower.txt  # Flower wants other versions than constraints.txt has: protobuf < 7, rich < 15, packaging < 26
	@$(PYTHON) -m venv $@
	@$@/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt flwr
	@touch $@

.nvflare: constraints.txt  # NVFlare brings some sixty packages, which nothing else here needs
	@$(PYTHON) -m venv $@
	@$@/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[align,nvflare]"
	@touch $@

test-slow: $(INSTALLED) .flower .nvflare  ## the tests of minutes: further cases, wheel in a clean environment, planted violations and bugs, fuzz
	$(BIN)/python -m pytest -m slow
	$(MAKE) fuzz
	$(BIN)/python -m tests.planted_bugs

test-oldest: $(INSTALLED)  ## train with the oldest releases of packages that pyproject.toml allows, about five minutes
	$(BIN)/python -m tests.oldest

fuzz: $(INSTALLED)  ## the property tests with twenty times the examples, at random; SEED=n repeats a run
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist worksteal -m "hypothesis and not slow" \
		--hypothesis-profile=fuzz $(if $(SEED),--hypothesis-seed=$(SEED))

coverage: $(INSTALLED)  ## the test suite with line coverage
	$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered

bench: $(INSTALLED)  ## what the speed claims rest on
	$(BIN)/python -m benchmarks.split_step
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.field
	$(BIN)/python -m benchmarks.fedvs_step
	$(BIN)/python -m benchmarks.dvfl_step
	$(BIN)/python -m benchmarks.cvfl_step
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.ddp
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.federation
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.align
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python -m benchmarks.secure_layer

bench-check: $(INSTALLED)  ## the ratios of a fresh run against docs/results, about an hour; NAMES="split_step field" for some
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python -m benchmarks.check $(NAMES)

docs: $(INSTALLED) .lint/lightning_vfl  ## the site of pages and docstrings, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

results: $(INSTALLED)  ## docs/results/README.md and claims.md from page.yaml, claims.yaml and tables/
	$(BIN)/python docs/results/make_page.py
	$(BIN)/python docs/results/make_claims.py

RESULTS_FOLDER ?= studies
results-queue: $(INSTALLED)  ## run the studies of docs/results/queue.yaml at the lowest priority; resumes; RESULTS_FOLDER=studies
	$(BIN)/python docs/results/run_queue.py $(RESULTS_FOLDER)

clean:  ## remove what make has made
	rm -rf $(VENV) .oldest .lint build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
