#!/bin/sh
# Runs before the package is removed. It stops the service, which drains first; not before an upgrade.
# On removal dpkg gives the argument "remove", and rpm gives 0, the number of packages left.
set -e
if [ -d /run/systemd/system ] && { [ "$1" = remove ] || [ "$1" = 0 ]; }; then
  systemctl disable --now muster.service
fi
