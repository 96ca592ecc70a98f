#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the examples on real ranks and on simulated meshes. `make demo` builds first.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/env.sh
export PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH}

export MPIEXEC
MPIEXEC=$(sed -n 's/^MESHFUSE_MPIEXEC:INTERNAL=//p' build/dev/CMakeCache.txt)
if [[ -n $MPIEXEC ]]; then
  echo "== examples/column_parallel.py on 2 MPI ranks"
  tools/mpirun -np 2 "$PY" examples/column_parallel.py
  echo "== examples/minilm.py on 4 MPI ranks"
  tools/mpirun -np 4 "$PY" examples/minilm.py
else
  echo "== no MPI found: the runs on MPI ranks are skipped"
fi
echo "== examples/column_parallel.py on a simulated mesh of 4 devices"
"$PY" examples/column_parallel.py --simulate 4
echo "== examples/minilm.py on a simulated mesh of 2 devices"
"$PY" examples/minilm.py --simulate 2
echo "== the demo has passed"
