#!/usr/bin/env bash
# container.sh: runs the image that `make image` has made in two containers, by Debian's runc, and looks
# at them. Where it cannot, it says so and ends well.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

# The second has the system calls that container engines allow by default.
if ! runc=$(scripts/debian.sh runc) || ! common=$(scripts/debian.sh golang-github-containers-common); then
  echo "container: skipped: no runc"
  exit 0
fi
python3 scripts/test/container/container.py --runc "$runc/usr/sbin/runc" \
  --seccomp "$common/usr/share/containers/seccomp.json"
