#!/bin/bash
# The session's steps. Each writes /var/log/session/STEP.log and a line of times.
#   step.sh STEP...
set -uo pipefail
export PATH=/opt/controller/bin:$PATH ANSIBLE_HOME=/root/.ansible ANSIBLE_FORCE_COLOR=0 ANSIBLE_NOCOLOR=1 USER=root PWD="$PWD"
export ANSIBLE_DISPLAY_SKIPPED_HOSTS=0
here=docs/evidence/several-gpus
logs=/var/log/session
state=/var/lib/shardsweep
mkdir -p $logs
note() { echo "$(date +%T.%1N) $*" | tee -a $logs/times.txt; }
play() { ansible-playbook -i $here/inventory.yml -e interrupt=true "$@"; }
sweep() { play sweep.yml -e after=stopped -e plan=off "$@"; }

check() {  # what the machine is, and how its GPUs talk under each environment
  nvidia-smi > $logs/nvidia-smi.txt; nvidia-smi topo -m > $logs/topo.txt; nvidia-smi topo -p2p r >> $logs/topo.txt
  env | grep -E '^(NCCL|TORCH_SYMM|NVSHMEM)' > $logs/environment.txt
  timeout 200 ansible-playbook -i $here/inventory.yml playbooks/preflight.yml -e communication=true -e configs=tp2_nccl,tp2_shm
  cp $state/host.json $logs/host.json
}

mini() {
  sweep -e configs=tp1,tp2,ep2,tp2_nccl,ep2_nccl,tp2_shm,ep2_shm,pp2,dp2,pp2_shm,dp2_shm,tp4ep2,tp2ep4
}

marlin() {  # in the background: k2-slice's one kernel, compiled by nvcc for seven minutes; no GPU in use
  PYTHONPATH=/opt/sglang-site/site nice -n 19 /opt/torch/.venv/bin/python3 - <<'PY'
import time, torch
from sglang.jit_kernel.moe_wna16_marlin import _jit_moe_wna16_marlin_module
from sglang.jit_kernel.gptq_marlin_repack import _jit_gptq_marlin_repack_module
begun = time.time()
_jit_gptq_marlin_repack_module()
print("repack", time.time() - begun, flush=True)
_jit_moe_wna16_marlin_module(torch.bfloat16)
print("marlin", time.time() - begun, flush=True)
PY
}

give() {  # the sweep was ended before its last two configurations, for want of time: the host back
  token=$(python3 -c 'import json; print(json.load(open("'$state'/lease.json"))["token"])')
  play playbooks/give_back.yml -e "{\"sweep_tokens\": {\"h200x2\": \"$token\"}}"
}

rest() {  # those two, on two rungs
  sweep -e configs=pp2_shm,dp2_shm -e concurrencies=1,64
}

k2() {
  sweep -e sglang_model_path=/srv/models/k2-slice -e configs=k2_tp2,k2_ep2,k2_tp2_shm,k2_ep2_shm -e concurrencies=1,64
}

profiled() {  # where a decode step's time goes, tensor and expert split
  for config in ${PROFILED:-tp2_nccl ep2_nccl}; do
    timeout 200 ansible-playbook -i $here/inventory.yml -e interrupt=true deploy.yml -e config=$config > $logs/deploy_$config.log 2>&1 || continue
    timeout 90 /opt/shardsweep/venv/bin/python $here/profile.py $logs/profile/$config 1 64
  done
}

experts() {  # which experts a step touches, without graphs
  timeout 200 ansible-playbook -i $here/inventory.yml -e interrupt=true deploy.yml -e config=experts || return
  timeout 60 /opt/shardsweep/venv/bin/python $here/../h200-one-gpu/compare.py --quick $logs/experts
  tail -2 /srv/experts.jsonl
}

stopped() {
  play playbooks/stop.yml; play playbooks/status.yml
  nvidia-smi --query-gpu=memory.used --format=csv,noheader; nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv
  ps -eo pid,ppid,stat,etimes,args | grep -v ' \[' | cut -c1-150
}

pack() {  # all that came out, without what is large and not ours
  rm -rf $logs/host-log; cp -r $state/log $logs/host-log 2>/dev/null
  mkdir -p $logs/state && cp $state/*.json $logs/state/ 2>/dev/null
  cp -r $state/units $state/run $logs/state/ 2>/dev/null
  cp /srv/experts.jsonl $logs/ 2>/dev/null
  tar -C / -cJf "$1" --exclude='*.pyc' var/log/session "$(realpath --relative-to=/ campaigns)" var/lib/shardsweep/records etc/ansible/facts.d 2>/dev/null
  ls -la "$1"
}

if [ "$1" = pack ]; then pack "$2"; exit; fi
for step in "$@"; do
  note "begin $step"
  begun=$SECONDS
  $step > $logs/$step.log 2>&1
  note "end $step: exit $?, $((SECONDS - begun)) s"
done
