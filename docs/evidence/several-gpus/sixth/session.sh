#!/bin/bash
# What ran on the sixth machine, in the project's folder, after ../prepare.sh: both ways of splitting by shared memory on one machine, K2's slice in
# every split, then second starts of what the fourth machine's campaign has. Every step leaves $LOGS/STEP.log, and $LOGS/times.txt has the clock.
#   session.sh DEADLINE       DEADLINE: seconds of the epoch; what would end later is cut off
set -uo pipefail
export PATH=/opt/controller/bin:$PATH ANSIBLE_HOME=/root/.ansible ANSIBLE_NOCOLOR=1 USER=root
export LOGS=/var/log/session DEADLINE=$1
base=docs/evidence/several-gpus
mkdir -p "$LOGS"
left() { echo $((DEADLINE - $(date +%s))); }
note() { echo "$(date +%T.%1N) $*" >> "$LOGS/times.txt"; }
play() {
  timeout -s INT "$(left)" ansible-playbook -i $base/inventory.yml -i $base/fourth/inventory.yml -i $base/sixth/inventory.yml -e interrupt=true "$@"
}
sweep() {  # CONFIGS [OPTION...]
  play sweep.yml -e configs="$1" -e confidence=quick -e after=stopped -e calibration=false -e share=false \
    -e sglang_report_campaigns=/root/campaigns/two -e sglang_service_parser_seconds=1 "${@:2}"
}

check() {  # what the machine is, and how its GPUs talk under each environment
  nvidia-smi > "$LOGS/nvidia-smi.txt"; nvidia-smi topo -m > "$LOGS/topo.txt"
  play playbooks/preflight.yml -e communication=true -e configs=tp2_nccl,tp2_shm
  cp /var/lib/shardsweep/host.json "$LOGS/host.json"
}

shared_memory() {
  sweep ep2_shm,tp2_shm
}

slice() {
  until [ -e "$LOGS/compiled" ] || [ "$(left)" -lt 60 ]; do sleep 1; done
  sweep k2_tp2_nccl,k2_ep2_nccl,k2_pp2,k2_dp2 -e sglang_model_path=/srv/models/k2-slice
}

again() {  # the first campaign goes on: second starts of what it has, and the same two splits over P2P
  sweep tp2_shm,ep2_shm,tp2_nccl,ep2_nccl -e retry=all
}

words() {  # what the engine itself says of the two splits that the sweep rejects
  local port=30051
  for split in "4 2" "2 4"; do
    set -- $split
    NCCL_NVLS_ENABLE=0 PYTHONPATH=/opt/sglang-site/hook:/opt/sglang-site/site timeout -k 5 50 /opt/torch/.venv/bin/python3 \
      -m sglang.launch_server --model-path /srv/models/mini-moe --load-format dummy --port $port --tp-size "$1" --ep-size "$2" \
      --attention-backend triton --sampling-backend pytorch --grammar-backend none --disable-piecewise-cuda-graph \
      --context-length 8192 --mem-fraction-static 0.3 > "$LOGS/words-tp$1ep$2.log" 2>&1
    echo "tp$1ep$2: exit $?"
    port=$((port + 10))
  done
}

stopped() {
  DEADLINE=$((DEADLINE + 20)) play playbooks/stop.yml
  nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
  nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv
  ps -eo pid,ppid,stat,etimes,args | grep -v ' \[' | cut -c1-150
}

# K2's one kernel is compiled by nvcc for seven minutes: on one core, beside the first steps, no GPU in use.
( PYTHONPATH=/opt/sglang-site/site nice -n 19 taskset -c 31 /opt/torch/.venv/bin/python3 - > "$LOGS/marlin.log" 2>&1 <<'PY'
import time, torch
from sglang.jit_kernel.moe_wna16_marlin import _jit_moe_wna16_marlin_module
from sglang.jit_kernel.gptq_marlin_repack import _jit_gptq_marlin_repack_module
begun = time.time()
_jit_gptq_marlin_repack_module()
print("repack", time.time() - begun, flush=True)
_jit_moe_wna16_marlin_module(torch.bfloat16)
print("marlin", time.time() - begun, flush=True)
PY
note "compiled"; touch "$LOGS/compiled" ) &

for step in check shared_memory words slice again stopped; do
  [ $step = stopped ] || [ "$(left)" -gt 30 ] || { note "no time for $step"; continue; }
  note "begin $step"
  begun=$SECONDS
  $step > "$LOGS/$step.log" 2>&1
  note "end $step: exit $?, $((SECONDS - begun)) s"
done
touch "$LOGS/over"
