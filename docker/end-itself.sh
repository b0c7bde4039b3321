#!/usr/bin/env bash
# Destroys the rented machine it runs on when its time is over: a laptop that is closed destroys nothing.
# Vast.ai gives every container its own id and a key that may destroy just that instance.
#   END_AT            seconds since 1970; nothing is done without it
#   VAST_API_URL      another address, for a test
set -uo pipefail

if [ -z "${END_AT:-}" ]; then
  exit 0
fi
if [ -z "${CONTAINER_ID:-}" ] || [ -z "${CONTAINER_API_KEY:-}" ]; then
  echo "end-itself: END_AT is set, but this is no rented container (CONTAINER_ID, CONTAINER_API_KEY): nothing to end" >&2
  exit 0
fi
until [ "$(date +%s)" -ge "$END_AT" ]; do
  left=$((END_AT - $(date +%s)))
  sleep "$((left > 60 ? 60 : left > 0 ? left : 1))"
done
echo "end-itself: the time is over; destroying instance ${CONTAINER_ID}" >&2
# For ever: giving up costs money. The key goes in through standard input, so that `ps` does not show it.
until printf 'header = "Authorization: Bearer %s"\n' "$CONTAINER_API_KEY" | curl --config - --silent --show-error \
  --fail --max-time 30 --request DELETE --header 'Content-Type: application/json' --data '{}' \
  "${VAST_API_URL:-https://console.vast.ai/api/v0}/instances/${CONTAINER_ID}/" >/dev/null; do
  sleep "${END_RETRY_S:-60}"
done
