#!/bin/sh
# As a host answers of which a link trained down, a GPU is cut by MIG and another one's memory somebody holds.
case "$*" in
  *query-gpu*)
    echo 'index, name, memory.total [MiB], memory.used [MiB], pcie.link.width.current, pcie.link.width.max, mig.mode.current, driver_version'
    echo '0, NVIDIA L40S, 46068 MiB, 40000 MiB, 16, 16, Disabled, 580.95.05'
    echo '1, NVIDIA L40S, 46068 MiB, 1 MiB, 1, 16, Disabled, 580.95.05'
    echo '2, NVIDIA L40S, 46068 MiB, 1 MiB, 16, 16, Enabled, 580.95.05' ;;
esac
