#!/usr/bin/env bash
# Both servers of the all-in-one image. When either ends, the container ends: half a machine measures nothing.
set -euo pipefail

trap 'kill $(jobs -p) 2>/dev/null; wait; exit 143' TERM INT

env -u PHOTODUP_TRITON_CONTROL_KEY /opt/venv/bin/python3 -m photodup.serving.service &
start-triton --exit-on-error=false --http-port=8003 --grpc-port=8004 --metrics-port=8005 &

status=0
wait -n || status=$?
echo "start-all: one of the two servers ended with status ${status}; stopping the other" >&2
# Unquoted on purpose: one process id per word.
# shellcheck disable=SC2046
kill $(jobs -p) 2>/dev/null || true
wait || true
exit "$((status == 0 ? 1 : status))"
