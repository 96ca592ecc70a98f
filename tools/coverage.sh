#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the C++ tests and the Python tests of one process with counters, and prints which lines and
# branches of csrc ran; fails under 90 % of the lines. A page per file is in build/coverage/html.
# `make coverage` builds first.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/env.sh
build=build/coverage
find $build -name '*.gcda' -delete
ctest --test-dir $build --output-on-failure --no-tests=error
PYTHONPATH=$build/python "$PY" -m pytest -q -p no:cacheprovider tests/python
mkdir -p $build/html
# Branches that only exceptions out of callees take are no branches of our text.
gcovr --root . --object-directory $build --filter csrc/ --merge-mode-functions=merge-use-line-0 --merge-lines \
  --exclude-throw-branches --exclude-unreachable-branches --gcov-ignore-parse-errors \
  --json $build/coverage.json --html-details $build/html/index.html --txt $build/coverage.txt \
  --print-summary --fail-under-line 90
