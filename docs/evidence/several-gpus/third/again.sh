#!/bin/bash
# After a mistake in the inventory (the entry `two` had lost its load format): what runs is ended, and the steps begin anew.
pkill -f 'third/steps\.sh'; pkill -9 -f 'ansible\.cli\.playbook'; pkill -9 -f 'sglang'; sleep 1
export LOGS=/var/log/session
rm -f /var/lib/shardsweep/lease*.json; mkdir -p $LOGS/replaced; mv $LOGS/two-*.log $LOGS/replaced/; rm -rf /root/campaigns/two
export DEADLINE=$(($(date +%s) + 375))
echo "$(date +%T) again, the entry two whole" >> $LOGS/times.txt
sed -i 's#^pairs() {#first_pairs() {\n  sweep pp2,dp2,tp2_nccl,ep2_nccl,tp4ep2,tp2ep4\n}\n\npairs() {#' docs/evidence/several-gpus/third/steps.sh
docs/evidence/several-gpus/third/steps.sh slice profiled first_pairs stopped > /dev/null 2>&1 < /dev/null
