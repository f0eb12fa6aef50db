#!/bin/sh
# After removing. Models, state and what was put into /etc/muster stay; dpkg's
# purge takes the group too.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ "$1" = purge ] && getent group muster-keys >/dev/null; then
  groupdel muster-keys
fi
