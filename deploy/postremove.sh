#!/bin/sh
# Runs after the package is removed. Models, state and files that were added to /etc/muster stay.
# dpkg's purge removes the group, too.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ "$1" = purge ] && getent group muster-keys >/dev/null; then
  groupdel muster-keys
fi
