# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
# Sourced by the scripts here: makes PY absolute, puts its programs (cmake, ninja, mpirun) on PATH.
if [[ -n ${PY:-} ]]; then
  given=$PY
  PY=$("$given" -c 'import sys; print(sys.executable)') || {
    echo "meshfuse: $given is not a Python that runs" >&2
    exit 1
  }
  PATH=$(dirname "$PY"):$PATH
  # The programs of a package that was installed elsewhere than the interpreter (pip install --user).
  command -v cmake >/dev/null ||
    PATH=$PATH:$("$PY" -c 'import cmake; print(cmake.CMAKE_BIN_DIR)' 2>/dev/null || true)
  command -v ninja >/dev/null ||
    PATH=$PATH:$("$PY" -c 'import ninja; print(ninja.BIN_DIR)' 2>/dev/null || true)
  export PY PATH
fi
