#!/bin/sh
# Ends a rented machine whose agent has drained (rented.conf calls it after the agent's end): its
# launch template makes EC2 end what powers off. It is the second safety against paying for what
# nobody uses; the first is the leader, which ends what it has drained.
#
# It powers off if the agent ended by itself, as it does when the leader or a notice has had it
# drain, or when it has found no fleet; not when it failed, or when somebody stops or restarts the
# service.
set -eu

if [ "${SERVICE_RESULT:-}" != success ]; then exit 0; fi # systemd starts it anew
# To systemd a death of SIGHUP or SIGPIPE is a success too, but nobody has had the agent drain.
if [ "${EXIT_CODE:-}" != exited ]; then exit 0; fi
job=$(systemctl show --property=Job --value muster.service)
if [ -n "$job" ] && [ "$job" != 0 ]; then exit 0; fi # somebody stops or restarts it
echo "muster: the agent has drained: powering off"
systemctl poweroff
