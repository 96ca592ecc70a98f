#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds examples/cpp against an installed meshfuse and runs it.
#
#   cpp_example.sh PREFIX    PREFIX: a folder that `cmake --install` filled, or the folder
#                            site-packages in which a wheel was installed
#
# The Python named by the variable PY says which torch is used.
set -euo pipefail
prefix=$(realpath "${1:?usage: see the head of this file}")
cd "$(dirname "$0")/.."
source tools/env.sh
: "${PY:=python3}"

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
generator=()
command -v ninja >/dev/null || generator=(-G "Unix Makefiles")
cmake -S examples/cpp -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release \
  -DPython_EXECUTABLE="$PY" -DCMAKE_PREFIX_PATH="$prefix" >"$build/log" || { cat "$build/log"; exit 1; }
cmake --build "$build" >"$build/log" || { cat "$build/log"; exit 1; }
"$build/column_parallel"
