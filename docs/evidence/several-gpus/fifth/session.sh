#!/bin/bash
# What ran on the fifth machine, in the project's folder, after ../prepare.sh: what the fourth machine's campaign lacks. Every step leaves $LOGS/STEP.log, and $LOGS/times.txt has the clock.
#   session.sh DEADLINE       DEADLINE: seconds of the epoch; what would end later is cut off
set -uo pipefail
export PATH=/opt/controller/bin:$PATH ANSIBLE_HOME=/root/.ansible ANSIBLE_NOCOLOR=1 USER=root
export LOGS=/var/log/session DEADLINE=$1
base=docs/evidence/several-gpus
mkdir -p "$LOGS"
left() { echo $((DEADLINE - $(date +%s))); }
note() { echo "$(date +%T.%1N) $*" >> "$LOGS/times.txt"; }
play() { timeout -s INT "$(left)" ansible-playbook -i $base/inventory.yml -i $base/fourth/inventory.yml -e interrupt=true "$@"; }
sweep() {  # CONFIGS [OPTION...]
  play sweep.yml -e configs="$1" -e confidence=quick -e after=stopped -e calibration=false -e share=false \
    -e sglang_report_campaigns=/root/campaigns/two -e sglang_service_parser_seconds=1 "${@:2}"
}

high() {  # what the fourth machine's campaign lacks
  sweep ep2,ep2_shm -e concurrencies=64,256
}

low() {
  sweep ep2_shm -e concurrencies=1,8
}

stopped() {
  DEADLINE=$((DEADLINE + 20)) play playbooks/stop.yml
  nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
  nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv
  ps -eo pid,ppid,stat,etimes,args | grep -v ' \[' | cut -c1-150
}

for step in high low stopped; do
  [ $step = stopped ] || [ "$(left)" -gt 30 ] || { note "no time for $step"; continue; }
  note "begin $step"
  begun=$SECONDS
  $step > "$LOGS/$step.log" 2>&1
  note "end $step: exit $?, $((SECONDS - begun)) s"
done
touch "$LOGS/over"
