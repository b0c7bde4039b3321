#!/usr/bin/env bash
# On the machine with the GPU and no network: unpack what was brought, make the environments, measure step by step.
#
#   far_side.sh STEP…        the steps in this order; what is done already is not done again
#   far_side.sh all          every step
#   far_side.sh detach STEP… the same in a session of its own, which outlives this command; look again with `bundle`
#
# Steps: environment parity fp32 fp16 tensorrt graphs compile servers notebooks full bundle. After each call what there is so
# far lies in KIT_OUT/records.tar.gz. README.md beside this file explains the rest.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export KIT_PYTHON=${KIT_PYTHON:-python3}         # the Python that has PyTorch
export KIT_WORK=${KIT_WORK:-$PWD/gpu-kit-work}   # stays on this machine between the calls
export KIT_OUT=${KIT_OUT:-$PWD/gpu-kit-out}      # goes home after each call
export KIT_DEVICE=${KIT_DEVICE:-cuda}
export MODEL_PRETRAINED=${MODEL_PRETRAINED:-random:0}
mkdir -p "$KIT_WORK/logs" "$KIT_WORK/done" "$KIT_OUT"
KIT_WORK=$(cd "$KIT_WORK" && pwd); KIT_OUT=$(cd "$KIT_OUT" && pwd)

# Seconds of each step. A step that needs fewer leaves them to the next; `full` gets what all others leave.
declare -A budget_s=([environment]=120 [parity]=45 [fp32]=45 [fp16]=90 [tensorrt]=240 [graphs]=90 [compile]=180 [servers]=270 [notebooks]=600 [full]=0)
order=(environment parity fp32 fp16 tensorrt graphs compile servers notebooks full)
call_s=$(awk "BEGIN {print int(60 * ${KIT_MINUTES:-28})}")

install_wheels() {  # GROUP FOLDER
  "$KIT_PYTHON" -m pip install -q --no-index --no-deps --no-compile --disable-pip-version-check --upgrade \
    --target "$2" "$KIT_WORK/$1"/wheels/*.whl
}

make_environment() {
  local archive group
  for archive in "$here"/*.tar.gz; do
    group=$KIT_WORK/$(basename "$archive" .tar.gz)
    [ ! "$archive" -nt "$group/.unpacked" ] || { mkdir -p "$group" && tar -xzf "$archive" -C "$group" && touch "$group/.unpacked" && rm -f "$KIT_WORK"/done/*; } || return 1
  done
  [ -e "$KIT_WORK/core/.unpacked" ] || { echo "core.tar.gz is not here: bring it first."; return 1; }
  [ -e "$KIT_WORK/site/.made" ] || { install_wheels core "$KIT_WORK/site" && touch "$KIT_WORK/site/.made"; } || return 1
  for group in onnx notebooks; do
    if [ -d "$KIT_WORK/$group/wheels" ] && [ ! -e "$KIT_WORK/site-$group/.made" ]; then
      install_wheels $group "$KIT_WORK/site-$group" && touch "$KIT_WORK/site-$group/.made" || return 1
    fi
  done
  if [ -d "$KIT_WORK/triton/wheels" ] && [ ! -e "$KIT_WORK/venv-triton/.made" ]; then
    # Not --system-site-packages: where KIT_PYTHON is an environment itself, that would leave its packages out.
    "$KIT_PYTHON" -m venv --without-pip "$KIT_WORK/venv-triton" || return 1
    local site
    site=$(echo "$KIT_WORK"/venv-triton/lib/python3*/site-packages)
    install_wheels triton "$site" || return 1
    "$KIT_PYTHON" - "$KIT_WORK/site-onnx" "$KIT_WORK/site" > "$site/photodup-kit.pth" <<'PYTHON' || return 1
import sys, sysconfig
print("\n".join(sys.argv[1:]))
print("\n".join(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))))
PYTHON
    touch "$KIT_WORK/venv-triton/.made"
  fi
}

measure() {  # STEP SECONDS
  export PHOTODUP_ROOT=$KIT_WORK/core/tree PHOTODUP_TRITON_VENV=$KIT_WORK/venv-triton
  export PYTHONPATH=$KIT_WORK/site:$PHOTODUP_ROOT/lib PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
  PYTHONPATH=$KIT_WORK/site-onnx:$PYTHONPATH:$KIT_WORK/site-notebooks
  cd "$PHOTODUP_ROOT" || return 1
  KIT_STEP_S=$2 timeout -k 20 "$2" "$KIT_PYTHON" tools/gpu_kit/steps.py "$1" &
  at_work=$!  # in a process group of its own: no signal to this script's reaches it
  wait $at_work
}

bundle() {  # all that was measured so far
  mkdir -p "$KIT_WORK/core/tree/results"
  tar -czf "$KIT_OUT/records.tar.gz" --exclude='.*' --exclude=results/published \
    -C "$KIT_WORK/core/tree" results -C "$KIT_WORK" logs
  [ $? -le 1 ] || return 1  # 1: a log grew meanwhile
  echo "bundle: $KIT_OUT/records.tar.gz"
}

run_step() {  # STEP SECONDS
  local log=$KIT_WORK/logs/$1.log began=$SECONDS
  echo "$1: $2 of the $((call_s - SECONDS)) s that this call has left"
  if [ "$1" = environment ]; then make_environment; else measure "$1" "$2"; fi > >(tee -a "$log") 2>&1
  local code=$?
  case $code in
    # What arrives later is taken in: the environment is looked at in each call, which takes no time when it is whole.
    0) echo "$1: done in $((SECONDS - began)) s"; [ "$1" = environment ] || touch "$KIT_WORK/done/$1" ;;
    3) echo "$1: part of it, its time is spent; it goes on when there is more" ;;
    124 | 137) echo "$1: stopped after $2 s; it goes on when there is more" ;;
    *) echo "$1: failed (exit $code), see logs/$1.log in the bundle" ;;
  esac
  return $code
}

steps=("$@")
[ ${#steps[@]} -gt 0 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
if [ "${steps[0]}" = detach ]; then
  setsid nohup "$0" "${steps[@]:1}" > "$KIT_WORK/logs/detached.log" 2>&1 < /dev/null &
  echo "detached: ${steps[*]:1}; logs/detached.log"; exit 0
fi
[ "${steps[0]}" = all ] && steps=("${order[@]}")
for step in "${steps[@]}"; do
  [ "$step" = bundle ] || [ -n "${budget_s[$step]:-}" ] \
    || { echo "There is no step $step: choose of ${order[*]} bundle." >&2; exit 2; }
done
at_work=
exec 9> "$KIT_WORK/lock"  # its step holds it, too, and outlives a script that is killed by -9
[ "${steps[*]}" = bundle ] || flock -n 9 || { echo "Another call measures in $KIT_WORK: wait until it ends." >&2; exit 2; }
trap 'kill $at_work 2>/dev/null && wait $at_work; bundle; exit 1' HUP INT TERM
declare -A tried=() open=()
# Twice: what the first round did not end gets the time that is left. Whatever remains then is for `full`.
for round in 1 2; do for step in "${steps[@]}"; do
  case $round$step in 1full | ?bundle) continue ;; esac
  if [ -n "${tried[$step]:-}" ] && [ -z "${open[$step]:-}" ]; then continue; fi
  tried[$step]=1
  if [ -e "$KIT_WORK/done/$step" ]; then echo "$step: done before"; continue; fi
  left_s=$((call_s - SECONDS)) reserved_s=0
  for later in "${steps[@]}"; do
    [ -n "${tried[$later]:-}" ] || [ -e "$KIT_WORK/done/$later" ] || reserved_s=$((reserved_s + ${budget_s[$later]:-0}))
  done
  limit_s=$((left_s - reserved_s))
  [ $limit_s -ge "${budget_s[$step]}" ] || limit_s=${budget_s[$step]}
  [ $limit_s -le $left_s ] || limit_s=$left_s
  open[$step]=1
  [ $limit_s -ge 15 ] || [ "$step" = environment ] || continue
  if run_step "$step" $limit_s; then unset "open[$step]"; elif [ "$step" = environment ]; then break 2; fi
done; done
unset "open[full]"  # it has no end but that of the time
failed=("${!open[@]}")
bundle || failed+=(bundle)
[ ${#failed[@]} = 0 ] || { echo "not done: ${failed[*]}"; exit 1; }
