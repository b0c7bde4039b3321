#!/bin/sh
# Creates a kind cluster with the service's image and a metrics server, for notebook 09's CONTEXT. Not run here: it needs
# Docker.
#
# Usage: tools/cluster/kind.sh [delete]
#
# Needs docker, kind 0.31 or later and kubectl. Then:
#   papermill notebooks/09_scale_on_kind.ipynb out.ipynb -p CONTEXT kind-photodup
set -eu

cd "$(dirname "$0")/../.."
image=photodup-service:cpu
name=photodup # as k8s/kind.yaml has it; kubectl calls its context kind-photodup

if [ "${1:-}" = delete ]; then
    exec kind delete cluster --name "$name"
fi
for tool in docker kind kubectl; do
    command -v "$tool" >/dev/null || {
        echo "kind.sh: $tool is missing." >&2
        exit 2
    }
done

if ! kind get clusters | grep -x "$name" >/dev/null; then
    kind create cluster --config k8s/kind.yaml
fi
# With an attestation the image has several manifests, and `kind load` finds none (kind issues 3795 and 4236).
docker image inspect "$image" >/dev/null 2>&1 ||
    docker build --provenance=false -f docker/service.Dockerfile -t "$image" .
kind load docker-image "$image" --name "$name"
kubectl --context "kind-$name" apply -k k8s/metrics-server
kubectl --context "kind-$name" -n kube-system rollout status deployment/metrics-server --timeout=180s
echo "The cluster is there: papermill notebooks/09_scale_on_kind.ipynb out.ipynb -p CONTEXT kind-$name"
