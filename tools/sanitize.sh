#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the C++ tests, and the Python tests of one process, with the address and undefined-behaviour
# sanitizers; fails when one of them reports anything. `make sanitize` builds first. Arguments are
# pytest's, in place of tests/python.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source tools/env.sh
failed=()
export UBSAN_OPTIONS=print_stacktrace=1
# One definition rule: the precompiled header puts the same inline variables into every library.
export ASAN_OPTIONS=detect_odr_violation=0:strict_string_checks=1:detect_stack_use_after_return=1

echo "== C++ (ctest)"
ctest --test-dir build/asan -L unit --output-on-failure --no-tests=error || failed+=("C++")

# Python itself is built without the sanitizers: their libraries have to come first. It leaves
# objects behind at its end on purpose, so that leaks are looked for in the C++ tests alone.
echo "== Python, one process"
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' build/asan/CMakeCache.txt)
preload=$("$compiler" -print-file-name=libasan.so):$("$compiler" -print-file-name=libstdc++.so.6)
[[ $# != 0 ]] || set -- tests/python
# Left out: what measures time or memory, which the sanitizers multiply, and processes that may open
# no more files, as UBSan opens one to tell whether an object's memory can be read.
for test in test_import.py::test_import_time test_reuse.py::test_many_sizes \
  test_reuse.py::test_many_definitions test_c10d_job_end.py::test_process_that_cannot_join; do
  set -- "$@" --deselect "tests/python/$test"
done
env LD_PRELOAD="$preload" ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" PYTHONPATH=build/asan/python \
  "$PY" -m pytest -q -p no:cacheprovider "$@" || failed+=("Python")

if [[ ${#failed[@]} != 0 ]]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "No findings."
