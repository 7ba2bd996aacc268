#!/bin/bash
# What ran on the lent machine, in the project's folder, after ../../several-gpus/prepare.sh: first both GPUs side by side
# (slice; compared, uninterrupted, interrupted), then both together (../../several-gpus/third/steps.sh).
#   session.sh DEADLINE       DEADLINE: seconds of the epoch; what would end later is cut off
set -uo pipefail
here=docs/evidence/h200-one-gpu/second
together=docs/evidence/several-gpus/third
export LOGS=/var/log/session DEADLINE=$1
mkdir -p "$LOGS"
for gpu in 0 1; do
  mkdir -p /opt/gpu$gpu
  printf '#!/bin/sh\nexec nvidia-smi -i %s "$@"\n' $gpu > /opt/gpu$gpu/nvidia-smi
  chmod +x /opt/gpu$gpu/nvidia-smi
done
$here/steps.sh slice again &
slice=$!
$here/steps.sh compared uninterrupted interrupted &
wait $! $slice
$here/steps.sh stopped
$together/steps.sh check slice profiled pairs profiled_pairs others stopped
touch "$LOGS/over"
