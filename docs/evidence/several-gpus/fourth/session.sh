#!/bin/bash
# What ran on the fourth machine, in the project's folder, after ../prepare.sh. Every step leaves $LOGS/STEP.log, and
# $LOGS/times.txt has the clock.
#   session.sh DEADLINE       DEADLINE: seconds of the epoch; what would end later is cut off
set -uo pipefail
export PATH=/opt/controller/bin:$PATH ANSIBLE_HOME=/root/.ansible ANSIBLE_NOCOLOR=1 USER=root
export LOGS=/var/log/session DEADLINE=$1
base=docs/evidence/several-gpus
one=docs/evidence/h200-one-gpu
state=/var/lib/shardsweep
python=/opt/shardsweep/venv/bin/python
mkdir -p "$LOGS"
for gpu in 0 1; do
  mkdir -p /opt/gpu$gpu
  printf '#!/bin/sh\nexec nvidia-smi -i %s "$@"\n' $gpu > /opt/gpu$gpu/nvidia-smi
  chmod +x /opt/gpu$gpu/nvidia-smi
done
left() { echo $((DEADLINE - $(date +%s))); }
note() { echo "$(date +%T.%1N) $*" >> "$LOGS/times.txt"; }
play() { timeout -s INT "$(left)" ansible-playbook -i $base/inventory.yml -i $base/fourth/inventory.yml -e interrupt=true "$@"; }
sweep() {  # CONFIGS [OPTION...]
  play sweep.yml -e configs="$1" -e confidence=quick -e after=stopped -e calibration=false -e share=false \
    -e sglang_report_campaigns=/root/campaigns/two -e sglang_service_parser_seconds=1 "${@:2}"
}

check() {  # what the machine is, and how its GPUs talk under each environment
  nvidia-smi > "$LOGS/nvidia-smi.txt"; nvidia-smi topo -m > "$LOGS/topo.txt"; nvidia-smi topo -p2p r >> "$LOGS/topo.txt"
  env | grep -E '^(NCCL|TORCH_SYMM|NVSHMEM)' > "$LOGS/environment.txt"
  play playbooks/preflight.yml -e communication=true -e configs=tp2_nccl,tp2_shm
  cp $state/host.json "$LOGS/host.json"
}

profiled() {  # where a decode step's time goes on P2P, and how many experts a batch touches
  for config in tp2_traced ep2_traced; do
    play deploy.yml -e config=$config > "$LOGS/deploy-$config.log" 2>&1 || continue
    timeout 60 $python $base/profile.py "$LOGS/profile/$config" 64
    timeout 20 $python $base/third/touch.py 30001
    note "profiled $config"
  done
}

first() {
  sweep tp1,tp2_nccl,ep2_nccl,pp2,dp2,tp4ep2,tp2ep4
}

rest() {  # the same campaign, with what was left for later
  sweep tp1,tp2,ep2,pp2,dp2,tp2_nccl,ep2_nccl,tp2_shm,ep2_shm,tp4ep2,tp2ep4
}

repeats() {  # one GPU, one start, the ladder twice
  until [ -e "$LOGS/compiled" ] || [ "$(left)" -lt 60 ]; do sleep 1; done
  local play_one="timeout -s INT $(left) ansible-playbook -i $one/second/inventory.yml -e interrupt=true -l slice"
  $play_one deploy.yml -e config=k2_085 || return
  timeout "$(left)" $python $one/compare.py --port 30001 --workload $one/third/workload.json --alone 2 \
    --log /var/lib/shardsweep-slice/log/sglang-k2_085.log "$LOGS/repeats"
  $play_one playbooks/stop.yml
}

slice() {
  sweep k2_tp2_nccl,k2_ep2_nccl,k2_pp2,k2_dp2 -e sglang_model_path=/srv/models/k2-slice -e concurrencies=1,64
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

# k2-slice's one kernel is compiled by nvcc for seven minutes: on one core, beside the first steps, no GPU in use.
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

for step in check profiled first repeats rest slice words stopped; do
  [ $step = stopped ] || [ "$(left)" -gt 30 ] || { note "no time for $step"; continue; }
  note "begin $step"
  begun=$SECONDS
  $step > "$LOGS/$step.log" 2>&1
  note "end $step: exit $?, $((SECONDS - begun)) s"
done
touch "$LOGS/over"
