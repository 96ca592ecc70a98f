#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# fuzz.sh SECONDS [TARGET...]: runs each fuzzer for so long, beginning with tests/fuzz/corpus and
# what earlier runs found (build/fuzz/corpus). An input that shows a fault is left in
# build/fuzz/findings, and the script fails. `make fuzz` builds first.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
seconds=${1:?usage: fuzz.sh SECONDS [TARGET...]}
shift
declare -A seeds=([parseIrText]=parse_ir [scheduleProgram]=schedule)
[[ $# != 0 ]] || set -- parseIrText scheduleProgram
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_odr_violation=0:detect_leaks=0
export OMP_NUM_THREADS=1
failed=()
mkdir -p build/fuzz/findings
for target in "$@"; do
  echo "== $target, $seconds s"
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  options=(-max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -print_final_stats=1
    -artifact_prefix=build/fuzz/findings/"$target"- -verbosity=1)
  [[ $target != parseIrText ]] || options+=(-dict=tests/fuzz/ir_text.dict -max_len=2000)
  [[ $target != scheduleProgram ]] || options+=(-max_len=256)
  log=build/fuzz/$target.log
  build/fuzz/tests/fuzz_"$target" "${options[@]}" "$corpus" "tests/fuzz/corpus/${seeds[$target]}" \
    >"$log" 2>&1 || failed+=("$target")
  grep -E '^(stat::|==|SUMMARY|artifact)|ERROR|meshfuse' "$log" | tail -40
done
if [[ ${#failed[@]} != 0 ]]; then
  printf 'FAILED: %s (build/fuzz/*.log, build/fuzz/findings)\n' "${failed[@]}"
  exit 1
fi
echo "No findings."
