#!/usr/bin/env bash
# Triton on /models, with what only its operator should do restricted: loading models (which runs their Python),
# shared memory, tracing and logging need a header with a key, over HTTP and gRPC. SECURITY.md says what that defends.
#   start-triton [ARGUMENT OF tritonserver]...
# PHOTODUP_TRITON_CONTROL_KEY   the key: models can be loaded and changed by whoever has it. Without one, a key is made
#                               that nobody is told, and models cannot be changed at all.
# PHOTODUP_MODEL_REPOSITORY     another folder than /models
set -euo pipefail

parts=model-repository,shared-memory,trace,logging
header=photodup-control-key
if [ -n "${PHOTODUP_TRITON_CONTROL_KEY:-}" ]; then
  key=$PHOTODUP_TRITON_CONTROL_KEY
  if ! [[ $key =~ ^[A-Za-z0-9_-]{16,256}$ ]]; then
    echo "start-triton: PHOTODUP_TRITON_CONTROL_KEY should be 16 to 256 letters, digits, '-' and '_':" \
      "make one with \`openssl rand -hex 32\`." >&2
    exit 64
  fi
  control=(--model-control-mode=explicit "--load-model=*")
else
  key=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
  control=(--model-control-mode=none)
fi
unset PHOTODUP_TRITON_CONTROL_KEY # models run as Triton's children

# The colon is right: the help of Triton 2.51 shows a comma there, which it refuses.
exec tritonserver "--model-repository=${PHOTODUP_MODEL_REPOSITORY:-/models}" "${control[@]}" \
  "--http-restricted-api=${parts}:${header}=${key}" "--grpc-restricted-protocol=${parts}:${header}=${key}" \
  --allow-sagemaker=false --allow-vertex-ai=false "$@"
