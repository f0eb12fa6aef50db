#!/bin/sh
# After installing: the group that may read keys. The service is neither enabled
# nor started: it has no models yet. After an upgrade a running one restarts.
set -e
getent group muster-keys >/dev/null || groupadd --system muster-keys
chgrp muster-keys /etc/muster
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart muster.service
fi
