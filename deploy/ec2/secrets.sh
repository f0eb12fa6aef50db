#!/bin/sh
# Brings the fleet's key of gossip and the agent's certificate from SSM's Parameter Store into memory
# (muster-secrets.service), for muster.service, which reads them as the group muster-keys. The
# machine's role may read these three parameters alone (stack.yaml). It fails if one of them
# cannot be had, and the service tries again.
set -eu

metadata=http://169.254.169.254/latest
get() { curl --silent --show-error --fail --max-time 10 "$@"; } # nothing else bounds a try
token=$(get --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 300" "$metadata/api/token")
ask() { get --header "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/$1"; }

fleet=${MUSTER_FLEET:-$(ask tags/instance/muster:fleet)} # keepers carry no tag
AWS_REGION=$(ask placement/region)
export AWS_REGION

umask 027
mkdir -p /run/muster-secrets
chgrp muster-keys /run/muster-secrets
for name in gossip.key agent.crt agent.key; do
  aws ssm get-parameter --with-decryption --name "/muster/$fleet/$name" \
    --query Parameter.Value --output text >"/run/muster-secrets/$name.new"
  chgrp muster-keys "/run/muster-secrets/$name.new"
  mv "/run/muster-secrets/$name.new" "/run/muster-secrets/$name"
done
