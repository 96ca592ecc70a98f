#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs a build into an empty folder; builds and runs examples/cpp against that.
#
#   cpp_package.sh BUILD     PY: the Python that it was configured with
set -euo pipefail
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "${1:?the folder of the build is missing}" --prefix "$prefix" >/dev/null
"$(dirname "$0")/../tools/cpp_example.sh" "$prefix"
