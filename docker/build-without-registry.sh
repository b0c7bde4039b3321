#!/usr/bin/env bash
# Build where no registry can be reached and no Docker engine runs: a Debian base made by debootstrap, then buildah with
# plain folders as storage and chroot for isolation. Needs root on Linux. Storage and base are in DIR; prints the image's name.
#   docker/build-without-registry.sh DIR            service.Dockerfile
#   docker/build-without-registry.sh DIR models     the stage of triton.Dockerfile that exports the models, random weights
# DEBIAN_MIRROR and TORCH_INDEX choose where packages come from. This machine's certificates and pip configuration,
# and the local folders that the latter names, are mounted read-only while building: the image gets empty mount points, no content.
set -euo pipefail

dir=$(realpath "${1:?usage: $0 DIR}")
root=$(realpath "$(dirname "$0")/..")
if [ "${2:-service}" = models ]; then
  image=photodup-models build=(--file "$root/docker/triton.Dockerfile" --target export --build-arg MODEL_PRETRAINED=random:0)
else
  image=photodup-service:cpu build=(--file "$root/docker/service.Dockerfile")
fi
suite=bookworm
quiet="nice -n 19 ionice -c3"
buildah="$quiet buildah --storage-driver vfs --root $dir/storage --runroot $dir/run"
mirror=${DEBIAN_MIRROR:-$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed -n 1p)}

if [ ! -f "$dir/base/.done" ]; then
  rm -rf "$dir/base"
  # shellcheck disable=SC2086
  $quiet debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
    "$suite" "$dir/base" ${mirror:+"$mirror"} >&2
  touch "$dir/base/.done"
fi
if ! $buildah inspect --type image localhost/debian-python >/dev/null 2>&1; then
  container=$($buildah from scratch)
  $buildah add --quiet "$container" "$dir/base" / >&2
  $buildah commit --quiet --rm "$container" localhost/debian-python >&2
fi

mounts=()
for path in /etc/ssl/certs /usr/local/share/ca-certificates; do
  if [ -d "$path" ]; then mounts+=(--volume "$path:$path:ro"); fi
done
for path in /etc/pip.conf "$HOME/.config/pip/pip.conf"; do
  if [ ! -f "$path" ]; then continue; fi
  inside=${path/#$HOME//root}
  mounts+=(--volume "$path:$inside:ro")
  # Folders of wheels, given as paths or as file:// addresses.
  while read -r folder; do
    while [ ! -d "$folder" ] && [ "$folder" != / ]; do folder=$(dirname "$folder"); done
    folder=${folder%/simple}  # an index's links lead to folders beside it
    case $folder in / | /etc | /etc/ssl*) ;; *) mounts+=(--volume "$folder:$folder:ro") ;; esac
  done < <(sed -E 's#[a-z]+://[^/ ]+#\n#g; s#file://##g' "$path" | grep -oE '(^|[ =])/[^ ]+' | tr -d ' =')
done

# Docker's format, because the OCI one has no place for HEALTHCHECK. Layers, so that a second build repeats only what changed.
$buildah bud --layers --format docker --isolation chroot --network host "${mounts[@]}" \
  --build-arg BASE_IMAGE=localhost/debian-python --build-arg "TORCH_INDEX=${TORCH_INDEX:-}" \
  "${build[@]}" --tag "$image" "$root" >&2
echo "$image"
