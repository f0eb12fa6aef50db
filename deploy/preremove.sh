#!/bin/sh
# Before removing, but not before an upgrade: the service drains and stops. dpkg
# says "remove", rpm says 0 packages will be left.
set -e
if [ -d /run/systemd/system ] && { [ "$1" = remove ] || [ "$1" = 0 ]; }; then
  systemctl disable --now muster.service
fi
