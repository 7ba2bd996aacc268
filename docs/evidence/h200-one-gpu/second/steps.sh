#!/bin/bash
# The steps on one GPU each; every step leaves $LOGS/STEP.log, and $LOGS/times.txt has the clock.
#   steps.sh STEP...
set -uo pipefail
export PATH=/opt/controller/bin:$PATH ANSIBLE_HOME=/root/.ansible ANSIBLE_NOCOLOR=1 USER=root
here=docs/evidence/h200-one-gpu/second
left() { echo $((DEADLINE - $(date +%s))); }
note() { echo "$(date +%T.%1N) $*" >> "$LOGS/times.txt"; }
play() { timeout "$(left)" ansible-playbook -i $here/inventory.yml -e interrupt=true "$@"; }
sweep() {  # HOST CONFIGS [OPTION...]
  play sweep.yml -l "$1" -e configs="$2" -e confidence=quick -e after=stopped -e share=false -e calibration=false \
    -e sglang_report_campaigns="/root/campaigns/$1" "${@:3}"
}

slice() {  # the first start compiles one kernel for minutes: what the host says of it, every ten seconds
  ( while sleep 10; do date +%T; cat /var/lib/shardsweep-slice/switch.json; echo; done > "$LOGS/slice-host.log" 2>&1 ) &
  local watcher=$!
  sweep slice k2_085 -e sglang_service_parser_seconds=1
  kill $watcher
}

again() {  # what was compiled is kept
  sweep slice k2_075 -e concurrencies=1,64 -e sglang_service_parser_seconds=1
}

compared() {  # ours, bench_serving, ours again, on one start
  play deploy.yml -l uninterrupted -e config=mini || return
  timeout "$(left)" /opt/shardsweep/venv/bin/python $here/../compare.py --port 30011 --workload $here/workload.json \
    --log /var/lib/shardsweep-uninterrupted/log/sglang-mini.log "$LOGS/compare"
}

uninterrupted() {
  sweep uninterrupted mini
}

interrupted() {  # the controller is killed in the window at 64; the same sweep again, at once and after the guard has stopped
  local state=/var/lib/shardsweep-interrupted
  sweep interrupted mini -e sglang_service_parser_seconds=1 > "$LOGS/interrupted-first.log" 2>&1 &
  while kill -0 $! 2>/dev/null; do
    if grep -qs '"concurrency": *64' $state/job.json && grep -qs window $state/job-progress.json; then
      victim=$(pgrep -o -f 'python.*playbook.*sweep.yml -l interrupted')
      note "killing the controller, process $victim and its group"
      kill -9 -- "-$(ps -o pgid= "$victim" | tr -d ' ')"
      break
    fi
    sleep 0.2
  done
  sleep 3
  note "the sweep again, at once"
  sweep interrupted mini -e sglang_service_parser_seconds=1
  for _ in $(seq 60); do [ -e $state/lease.json ] || break; sleep 1; done
  note "lease gone: $([ -e $state/lease.json ] && echo no || echo yes)"
  /opt/gpu1/nvidia-smi --query-gpu=memory.used --format=csv,noheader
  sweep interrupted mini -e sglang_service_parser_seconds=1
}

stopped() {
  play playbooks/stop.yml
  nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
  nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv
  ps -eo pid,ppid,stat,etimes,args | grep -v ' \[' | cut -c1-150
}

for step in "$@"; do
  [ "$(left)" -gt 20 ] || { note "no time for $step"; continue; }
  note "begin $step"
  begun=$SECONDS
  $step > "$LOGS/$step.log" 2>&1
  note "end $step: exit $?, $((SECONDS - begun)) s"
done
