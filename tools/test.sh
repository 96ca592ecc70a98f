#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs every suite, and fails when one of them does. `make test` builds first.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source tools/env.sh
export PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH}
failed=()

# suite NAME COMMAND...
suite() {
  local name=$1
  shift
  echo "== $name"
  "$@" || failed+=("$name")
}

suite "C++ (ctest)" ctest --test-dir build/dev --output-on-failure --timeout 600 --no-tests=error
suite "Python, one process" "$PY" -m pytest tests/python

export MPIEXEC
MPIEXEC=$(sed -n 's/^MESHFUSE_MPIEXEC:INTERNAL=//p' build/dev/CMakeCache.txt)
for ranks in 2 4; do
  if [[ -n $MPIEXEC ]]; then
    suite "Python, $ranks MPI ranks" \
      timeout 1800 tools/mpirun -np $ranks "$PY" -m pytest -q --color=no -p no:cacheprovider \
      --mesh-backend=mpi tests/python/multidevice
  else
    echo "== no MPI found: the Python tests on $ranks MPI ranks are skipped"
  fi
done

# All of it on two ranks; on four what the other backends have to pass, too.
for job in "2 tests/python/multidevice" "4 tests/python/multidevice/test_c10d_conformance.py"; do
  read -r ranks tests <<< "$job"
  suite "Python, $ranks ranks of torchrun" \
    env OMP_NUM_THREADS=1 timeout 600 "$PY" -m torch.distributed.run --standalone \
    --nproc-per-node "$ranks" -m pytest -q --color=no -p no:cacheprovider --mesh-backend=c10d "$tests"
done

# Packaging, with what is compiled already. `make wheel` compiles as for a release.
if "$PY" -c 'import auditwheel, build, scikit_build_core' 2>/dev/null; then
  suite "Wheel, in a fresh environment" env OBJECTS=build/dev tools/check_wheel.sh
else
  echo "== requirements/wheel.txt is not installed: the wheel is not tried out"
fi

if [[ ${#failed[@]} != 0 ]]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "All suites passed."
