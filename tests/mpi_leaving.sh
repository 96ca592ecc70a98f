#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# How jobs end: mpi_leaving.sh <mpirun> <comm_mpi_test>. No job may hang, and the exit code must be
# what the program wanted.
mpirun=$1
program=$2
failures=0
set -o pipefail

# expect <how> <exit code, or "nonzero"> <most seconds> <text that must be printed, or ""> [none]
expect() {
  local how=$1 wanted=$2 limit=$3 text=$4 silent=$5 output code start=$SECONDS verdict=ok
  output=$(timeout 50 "$mpirun" -np "${ranks:-2}" "$program" "--leave=$how" 2>&1 | tr -d '\0')
  code=$?
  local seconds=$((SECONDS - start))
  if [[ $wanted == nonzero ]]; then
    ((code != 0 && code != 124)) || verdict="exit code $code"
  else
    ((code == wanted)) || verdict="exit code $code, not $wanted"
  fi
  ((seconds <= limit)) || verdict="took $seconds s, more than $limit"
  [[ -z $text || $output == *"$text"* ]] || verdict="did not print: $text"
  [[ -z $silent || $output != *meshfuse* ]] || verdict="was not silent"
  printf '%-16s -np %d: %s (code %d, %d s)\n' "$how" "${ranks:-2}" "$verdict" "$code" "$seconds"
  if [[ $verdict != ok ]]; then
    failures=$((failures + 1))
    printf '%s\n' "$output"
  fi
}

for ranks in 2 4; do
  expect return 0 10 "" silent
  expect exit3 3 10 "of $ranks exited with status 3"
  expect skewed 0 15 "" silent
  expect kill nonzero 10 ""
  expect throw nonzero 10 "nobody catches this"
  expect fail nonzero 10 "rank $((ranks - 1)) failed"
  expect fail-while-busy nonzero 10 "meshfuse: rank $((ranks - 1)) left after an error: bad input"
  expect leave-early nonzero 10 "rank $((ranks - 1)) left the group"
done
exit $((failures != 0))
