#!/bin/sh
# Runs after the package is installed. It makes the group that may read keys. It neither enables nor
# starts the service, which has no models yet. After an upgrade it restarts a running service.
set -e
getent group muster-keys >/dev/null || groupadd --system muster-keys
chgrp muster-keys /etc/muster
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart muster.service
fi
