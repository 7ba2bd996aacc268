#!/bin/bash
# The steps on both GPUs together; every step leaves $LOGS/two-STEP.log, and $LOGS/times.txt has the clock.
#   steps.sh STEP...
set -uo pipefail
export PATH=/opt/controller/bin:$PATH ANSIBLE_HOME=/root/.ansible ANSIBLE_NOCOLOR=1 USER=root
base=docs/evidence/several-gpus
state=/var/lib/shardsweep
left() { echo $((DEADLINE - $(date +%s))); }
note() { echo "$(date +%T.%1N) $*" >> "$LOGS/times.txt"; }
play() { timeout "$(left)" ansible-playbook -i $base/inventory.yml -i $base/third/inventory.yml -e interrupt=true "$@"; }
sweep() {  # CONFIGS [OPTION...]
  play sweep.yml -e configs="$1" -e confidence=quick -e after=stopped -e calibration=false -e plan=off \
    -e sglang_report_campaigns=/root/campaigns/two -e sglang_service_parser_seconds=1 "${@:2}"
}

check() {  # what the machine is, and how its GPUs talk under each environment
  nvidia-smi > "$LOGS/nvidia-smi.txt"; nvidia-smi topo -m > "$LOGS/topo.txt"; nvidia-smi topo -p2p r >> "$LOGS/topo.txt"
  env | grep -E '^(NCCL|TORCH_SYMM|NVSHMEM)' > "$LOGS/environment.txt"
  play playbooks/preflight.yml -e communication=true -e configs=tp2_nccl,tp2_shm
  cp $state/host.json "$LOGS/host.json"
}

pairs() {
  sweep pp2,dp2,tp2_nccl,ep2_nccl,tp2_shm,ep2_shm,tp4ep2,tp2ep4
}

slice() {
  sweep k2_tp2_nccl,k2_ep2_nccl -e sglang_model_path=/srv/models/k2-slice -e concurrencies=1,64
}

others() {
  sweep tp2,ep2,tp1
}

profile() {  # CONFIG MODEL: where a decode step's time goes, and how many experts a batch touches
  [ "$(left)" -gt 75 ] || { note "no time to profile $1"; return; }
  play deploy.yml -e config="$1" -e sglang_model_path="/srv/models/$2" > "$LOGS/deploy-$1.log" 2>&1 || return
  timeout 60 /opt/shardsweep/venv/bin/python $base/profile.py "$LOGS/profile/$1" 64
  timeout 20 /opt/shardsweep/venv/bin/python $base/third/touch.py 30001
  note "profiled $1"
}

profiled() {
  profile k2_tp2_nccl k2-slice
  profile k2_ep2_nccl k2-slice
}

profiled_pairs() {
  profile tp2_nccl mini-moe
  profile ep2_nccl mini-moe
}

stopped() {
  DEADLINE=$((DEADLINE + 20)) play playbooks/stop.yml
  nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
  nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv
}

for step in "$@"; do
  [ "$step" = stopped ] || [ "$(left)" -gt 30 ] || { note "no time for $step"; continue; }
  note "begin $step of two"
  begun=$SECONDS
  $step > "$LOGS/two-$step.log" 2>&1
  note "end $step of two: exit $?, $((SECONDS - begun)) s"
done
