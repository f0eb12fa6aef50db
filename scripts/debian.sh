#!/usr/bin/env bash
# debian.sh PACKAGE: fetches a package of Debian or Ubuntu into build/debian without installing it,
# and prints the folder that holds its files, without documentation; if it is there already, it only
# prints that. It needs apt-get and dpkg-deb, and no rights. Several processes may call it at the
# same time.
set -euo pipefail
cd "$(dirname "$0")/.."

at=$PWD/build/debian/$1
mkdir -p "$at.new"
exec 9>"$at.lock"
flock 9
if [ ! -d "$at" ]; then
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "debian.sh: this system has no apt-get and dpkg-deb, so it cannot fetch $1" >&2
    exit 1
  fi
  cd "$at.new"
  options=(-qq -o APT::Sandbox::User=)
  if ! apt-get "${options[@]}" download "$1" >&2; then
    # The lists of packages are missing or old. Others go here: those of the system need root.
    mkdir -p lists/partial cache/archives/partial
    options+=(-o "Dir::State::Lists=$PWD/lists" -o "Dir::Cache=$PWD/cache")
    apt-get "${options[@]}" update >&2
    apt-get "${options[@]}" download "$1" >&2
  fi
  dpkg-deb -x ./*.deb files
  rm -rf files/usr/share/doc # some have Go files, which ./... would take for ours
  mv files "$at"
fi
rm -rf "$at.new"
echo "$at"
