#!/bin/bash
# The session's steps. Each writes /var/log/session/STEP.log and a line of times.
#   step.sh STEP...
set -uo pipefail
export PATH=/opt/controller/bin:$PATH ANSIBLE_HOME=/root/.ansible ANSIBLE_FORCE_COLOR=0 ANSIBLE_NOCOLOR=1 USER=root PWD="$PWD"
export ANSIBLE_CALLBACKS_ENABLED=ansible.builtin.timer ANSIBLE_DISPLAY_SKIPPED_HOSTS=0
here=docs/evidence/h200-one-gpu
logs=/var/log/session
state=/var/lib/shardsweep
mkdir -p $logs
note() { echo "$(date +%T.%1N) $*" | tee -a $logs/times.txt; }
play() { ansible-playbook -i $here/inventory.yml -e interrupt=true "$@"; }
sweep() { play sweep.yml -e after=stopped "$@"; }

deploy_experts() {  # step 1: through the playbook; then which experts a step touches
  timeout 240 ansible-playbook -i $here/inventory.yml -e interrupt=true deploy.yml -e config=experts || return
  timeout 100 /opt/shardsweep/venv/bin/python $here/compare.py --quick $logs/experts
  tail -3 /srv/experts.jsonl
}

killed_sweep() {  # step 2: the controller is killed in the middle of the first configuration's ladder
  rm -f $state/records/mini/*/record.json
  setsid bash -c "exec ansible-playbook -i $here/inventory.yml sweep.yml -e interrupt=true -e after=stopped -e configs=mini,run64" > $logs/killed_sweep_play.log 2>&1 &
  local pid=$! until=$((SECONDS + 260))
  while [ $SECONDS -lt $until ]; do
    if grep -qs '"concurrency": *64' $state/job.json && grep -qs window $state/job-progress.json; then
      note "killing the controller, group $pid"; kill -9 -- -$pid; break
    fi
    kill -0 $pid 2>/dev/null || { note "the sweep ended by itself"; break; }
    sleep 0.3
  done
  sleep 4
  note "the sweep again, at once"
  sweep -e configs=mini > $logs/refused_play.log 2>&1; grep -h 'Another sweep' $logs/refused_play.log | head -2
  for _ in $(seq 60); do [ -e $state/lease.json ] || break; sleep 1; done
  note "lease gone: $([ -e $state/lease.json ] && echo no || echo yes)"
  nvidia-smi --query-gpu=memory.used --format=csv,noheader
}

full_sweep() {  # step 3: resumed, over all; a killer ends the engine once, in a point of run64
  ( until=$((SECONDS + 1500))
    while [ $SECONDS -lt $until ]; do
      if grep -qs '"configuration": *"run64"' $state/job.json && grep -qs '"concurrency": *64' $state/job.json && grep -qs window $state/job-progress.json; then
        victim=$(pgrep -f '^sglang::schedul' | head -1)
        [ -n "$victim" ] || victim=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader | head -1)
        note "killing the engine's scheduler, pid $victim"; kill -9 "$victim"; break
      fi
      sleep 0.2
    done ) &
  local killer=$!
  sweep -e plan=off -e configs=mini,run64,fail_weights,fail_kv,fail_quantization,reject_chunk,graphs64,stream8,frac50,chunk2048,lpm
  kill $killer 2>/dev/null
}

again() {  # step 4: what failed in a point is tried again, what is measured is not
  sweep -e configs=run64,mini
}

compared() {  # step 5: ours and bench_serving on one server
  play deploy.yml -e config=mini || return
  timeout 200 /opt/shardsweep/venv/bin/python $here/compare.py $logs/compare
}

stopped() {
  play playbooks/status.yml; play playbooks/stop.yml; play playbooks/status.yml
  nvidia-smi --query-gpu=memory.used --format=csv,noheader; nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv
  ps -eo pid,ppid,stat,etimes,args | grep -v ' \[' | cut -c1-150
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

k2() {
  sweep -e sglang_model_path=/srv/models/k2-slice -e configs=k2_085,k2_075 -e concurrencies=1,8,64
}

pack() {  # all that came out, without what is large and not ours
  nvidia-smi > $logs/nvidia-smi.txt
  cp -r $state/log $logs/host-log 2>/dev/null
  mkdir -p $logs/state && cp $state/*.json $logs/state/ 2>/dev/null
  cp -r $state/units $state/run $logs/state/ 2>/dev/null
  cp /srv/experts.jsonl $logs/ 2>/dev/null
  tar -C / -cJf "${OUT:-/root}/session.txz" --exclude='*.pyc' var/log/session "$(realpath --relative-to=/ campaigns)" var/lib/shardsweep/records etc/ansible/facts.d 2>/dev/null
  ls -la "${OUT:-/root}/session.txz"
}

for step in "$@"; do
  note "begin $step"
  begun=$SECONDS
  $step > $logs/$step.log 2>&1
  note "end $step: exit $?, $((SECONDS - begun)) s"
done
