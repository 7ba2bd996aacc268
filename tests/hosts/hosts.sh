#!/bin/bash
# Hosts with a real systemd as PID 1, reached by SSH, made from Debian packages: no image registry, no Docker.
#   hosts.sh up NAME SUITE ADDRESS [UMASK [MEGABYTES]]   start a host (image built where it is not current), wait until it
#                                            answers; with MEGABYTES its /srv is a disk of that size
#   hosts.sh reboot NAME...                  stop its systemd and start it again, as a reboot does
#   hosts.sh down NAME...                    stop and remove hosts
#   hosts.sh clean                           remove every host, image and mount that this made
#   hosts.sh tidy                            the same, if no host is left: another checkout may use some
# It needs root on a Debian or Ubuntu machine, and installs podman and mmdebstrap there. Read README.md first. Where there
# is a registry, TEST_HOSTS_IMAGES="SUITE=IMAGE ..." names images with systemd to pull instead.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TEST_HOSTS_STATE=${TEST_HOSTS_STATE:-/var/lib/shardsweep-hosts}
run=${TEST_HOSTS_RUN:-/run/shardsweep-hosts} storage=$TEST_HOSTS_STATE/storage
keys=${TEST_HOSTS_KEYS:-$here/../../.shardsweep/hosts}
export PATH="$here/bin:$PATH" LC_ALL=C DEBIAN_FRONTEND=noninteractive
network=shardsweep-hosts label=shardsweep-hosts=1
# 198.18.0.0/15 is set apart for tests of this kind (RFC 2544): no office network has it.
subnet=${TEST_HOSTS_SUBNET:-198.18.77.0/24}
# No acl on purpose: Ansible then has only its other ways to become an unprivileged user.
packages=systemd-sysv,libpam-systemd,libnss-systemd,dbus,python3,python3-venv,openssh-server,sudo,ca-certificates,iproute2,procps
# Beyond podman's defaults. SYS_ADMIN: sandboxed units (ProtectSystem=, PrivateTmp=); NET_ADMIN: PrivateNetwork=, in its
# own network namespace; SYS_NICE: Nice=; SYS_PTRACE: reading other processes' environment, as root does on a real host.
# Never --privileged, SYS_TIME, SYS_MODULE, SYS_RAWIO or SYS_BOOT: such a host sets the machine's clock and sysctls.
capabilities=SYS_ADMIN,NET_ADMIN,NET_RAW,SYS_NICE,SYS_PTRACE,AUDIT_WRITE
say() { printf 'hosts: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

persist() { # run a command up to three times: a mirror may stumble
  local try
  for try in 1 2 3; do
    "$@" && return
    say "try $try of 3 failed: $1 $2"
    sleep $((try * 5))
  done
  return 1
}

shared() { # a folder that is its own, shared mount: mounts below it show in every later podman call's namespace
  mkdir -p "$1"
  mountpoint -q "$1" || { mount --bind "$1" "$1"; echo "$1" >> "$TEST_HOSTS_STATE/mounted"; }
  mount --make-shared "$1"
}

install_packages() {
  local package missing=()
  for package in podman runc conmon netavark aardvark-dns iptables iproute2 mmdebstrap util-linux openssh-client; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  persist apt-get update -qq
  # Other software of this machine may hold the lock for a while.
  persist apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 "${missing[@]}" >/dev/null
}

configure() {
  local nofile nproc
  nofile=$(ulimit -Hn); [ "$nofile" = unlimited ] && nofile=1048576
  # podman lowers its own hard NPROC limit to 32768 before it starts a container.
  nproc=$(ulimit -Hu); { [ "$nproc" = unlimited ] || [ "$nproc" -gt 32768 ]; } && nproc=32768
  cat > "$TEST_HOSTS_STATE/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$nofile:$nofile", "nproc=$nproc:$nproc"]
pids_limit = 0
log_driver = "k8s-file"
[engine]
# crun does not start without CAP_SYS_RESOURCE; runc does.
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$run/libpod"
volume_path = "$TEST_HOSTS_STATE/volumes"
[network]
network_backend = "netavark"
network_config_dir = "$TEST_HOSTS_STATE/networks"
CONF
  cat > "$TEST_HOSTS_STATE/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$storage"
runroot = "$run/containers"
[storage.options.overlay]
skip_mount_home = "true"
CONF
}

forget_the_dead() { # hosts that were killed together with their monitors: podman takes them for running
  local id pid
  podman ps -q --no-trunc --filter status=running | xargs -r podman inspect -f '{{.Id}} {{.State.Pid}}' | while read -r id pid; do
    grep -qs "$id" "/proc/$pid/cgroup" && continue
    podman rm -f -t 0 "$id" >/dev/null 2>&1 || podman rm -f -t 0 "$id" >/dev/null
  done
}

prepare() {
  [ "$(id -u)" = 0 ] || die "needs root, to mount and to make containers"
  install_packages
  mkdir -p "$TEST_HOSTS_STATE" "$run" "$keys"
  configure
  # podman turns on controllers for its groups: remember how it was, for clean.
  local tree; tree=$(awk '$3=="cgroup2"{print $2; exit}' /proc/mounts)
  [ -e "$TEST_HOSTS_STATE/subtree_control" ] || cat "${tree:-/nonexistent}/cgroup.subtree_control" > "$TEST_HOSTS_STATE/subtree_control" 2>/dev/null || true
  # After a reboot of the machine podman's run folder has to be empty.
  mountpoint -q "$storage" || { umount -R "$run" 2>/dev/null || true; rm -rf "$run"; }
  shared "$storage"; shared "$run"; shared /run/netns
  forget_the_dead
  podman network exists "$network" || podman network create --subnet "$subnet" --label "$label" "$network" >/dev/null
  [ -e "$keys/key" ] || ssh-keygen -q -t ed25519 -N '' -C shardsweep-hosts -f "$keys/key"
}

named_image() { # the image that TEST_HOSTS_IMAGES names for suite $1; nothing where it names none
  local entry
  for entry in ${TEST_HOSTS_IMAGES:-}; do
    if [ "${entry%%=*}" = "$1" ] && [ "$entry" != "$1" ]; then echo "${entry#*=}"; return; fi
  done
}

complete() { # in host $1, what an image that was not made here may lack: packages, the user, the umask of sessions
  podman exec -i "$1" sh -s -- "${packages//,/ }" <<'SCRIPT'
set -e
export DEBIAN_FRONTEND=noninteractive
dpkg-query -W $1 >/dev/null 2>&1 || { apt-get update -qq; apt-get install -y -qq --no-install-recommends $1 >/dev/null; }
id ops >/dev/null 2>&1 || useradd --create-home --shell /bin/bash --groups sudo ops
echo ops:ops | chpasswd
for file in /etc/pam.d/common-session /etc/pam.d/common-session-noninteractive; do
  grep -q pam_umask "$file" || echo "session optional pam_umask.so" >> "$file"
done
systemctl start ssh.service
SCRIPT
}

machine_settings() { # what this machine needs to fetch packages, into folder $1: apt, certificates, pip
  local file
  mkdir -p "$1/etc/apt/apt.conf.d" "$1/usr/local/share/ca-certificates"
  for file in /etc/apt/apt.conf.d/*; do
    grep -E '^[[:space:]]*Acquire::[^{]*;' "$file" > "$1/etc/apt/apt.conf.d/${file##*/}" || rm -f "$1/etc/apt/apt.conf.d/${file##*/}"
  done
  for file in auth.conf.d keyrings; do if [ -d "/etc/apt/$file" ]; then cp -a "/etc/apt/$file" "$1/etc/apt/"; fi; done
  cp /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/" 2>/dev/null || true
  # Settings of pip that name folders of this machine mean nothing on another.
  if [ -f /etc/pip.conf ]; then grep -vE 'file://|find-links|=[[:space:]]*/opt' /etc/pip.conf > "$1/etc/pip.conf" || true; fi
}

debian_sources() { # this machine's Debian sources for suite $1, into folder $2; Debian's own where it has none
  local file codename
  codename=$(. /etc/os-release; echo "$VERSION_CODENAME")
  mkdir -p "$2"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    if [ -s "$file" ] && grep -q '/debian\b' "$file"; then sed "s/\b$codename\b/$1/g" "$file" > "$2/${file##*/}"; fi
  done
  [ -n "$(ls "$2")" ] || echo "deb http://deb.debian.org/debian $1 main" > "$2/debian.list"
}

image() { # image localhost/shardsweep-host:SUITE, kept while what goes into it is unchanged
  local suite=$1 tag=localhost/shardsweep-host:$1 inputs work options=() file
  inputs=$( { echo "$packages"; sed -n '/^machine_settings()/,/^wait_for()/p' "${BASH_SOURCE[0]}"; cat /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/apt.conf.d/* /etc/pip.conf /usr/local/share/ca-certificates/* 2>/dev/null || true; } | sha256sum | cut -c1-16)
  [ "$(podman image inspect -f '{{index .Labels "inputs"}}' "$tag" 2>/dev/null)" = "$inputs" ] && return
  say "building $tag (about 40 s)"
  # In memory where there is room; mmdebstrap needs a file system without noexec and nodev.
  if ! grep -qE '^[^ ]+ /dev/shm [^ ]+ [^ ]*(noexec|nodev)' /proc/mounts && [ "$(df --output=avail -m /dev/shm | tail -1)" -gt 4000 ]; then
    local -x TMPDIR=/dev/shm
  fi
  work=$(mktemp -d)
  trap "rm -rf '$work'" EXIT
  debian_sources "$suite" "$work/sources"
  machine_settings "$work/settings"
  for file in "$work"/settings/etc/apt/apt.conf.d/*; do if [ -f "$file" ]; then options+=("--aptopt=$file"); fi; done
  persist mmdebstrap --quiet --mode=root --aptopt='Acquire::Retries "3"' --variant=minbase --include="$packages" "${options[@]}" \
    --customize-hook="sync-in $work/settings /" \
    --customize-hook='chroot "$1" update-ca-certificates >/dev/null 2>&1' \
    --customize-hook='chroot "$1" systemctl mask --quiet getty.target console-getty.service systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer systemd-firstboot.service' \
    --customize-hook='for f in common-session common-session-noninteractive; do echo "session optional pam_umask.so" >> "$1/etc/pam.d/$f"; done' \
    --customize-hook='chroot "$1" useradd --create-home --shell /bin/bash --groups sudo ops' \
    --customize-hook='echo ops:ops | chroot "$1" chpasswd' \
    --customize-hook='rm -rf "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/usr/share/doc/* "$1/etc/hostname" "$1/etc/resolv.conf"; : > "$1/etc/machine-id"' \
    "$suite" "$work/rootfs.tar" "$work"/sources/*
  podman import -q --change 'CMD ["/sbin/init"]' --change 'STOPSIGNAL SIGRTMIN+3' --change 'ENV container=podman' \
    --change "LABEL inputs=$inputs" --change "LABEL $label" "$work/rootfs.tar" "$tag" >/dev/null
  podman image prune -f >/dev/null
  rm -rf "$work"
}

wait_for() { # until systemd is up and SSH answers
  local name=$1 state=''
  for _ in $(seq 150); do
    state=$(podman exec "$name" systemctl is-system-running 2>/dev/null || true)
    case $state in
      running | degraded)
        [ "$state" = degraded ] && podman exec "$name" systemctl --failed --no-pager --no-legend >&2
        podman exec "$name" systemctl is-active --quiet ssh.service && return 0;;
    esac
    sleep 0.2
  done
  podman logs --tail 20 "$name" >&2 || true
  die "$name is not up: '$state'"
}

disk() { # $run/disks/NAME: a small disk, which a reboot of its host keeps
  mkdir -p "$run/disks/$1"
  mountpoint -q "$run/disks/$1" || mount -t tmpfs -o "size=${2}m,mode=0755" tmpfs "$run/disks/$1"
}

up() {
  local name=$1 suite=$2 address=$3 umask=${4:-022} megabytes=${5:-} volume=() home named
  named=$(named_image "$suite")
  if [ -z "$named" ]; then
    image "$suite"
  elif ! podman image exists "$named"; then
    persist podman pull -q "$named" >/dev/null
  fi
  # A fixed hardware address: after a reboot this machine would still talk to the old one.
  if [ "$(podman container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" != true ]; then
    podman rm -f -i "$name" >/dev/null 2>&1 || true
    if [ -n "$megabytes" ]; then disk "$name" "$megabytes"; volume=(--volume "$run/disks/$name:/srv"); fi
    podman run -d --name "$name" --hostname "$name" --label "$label" --network "$network" --ip "$address" \
      --mac-address "$(printf '02:53:57:00:00:%02x' "${address##*.}")" --systemd=always --shm-size=2g "${volume[@]}" \
      --cap-add="$capabilities" "${named:-localhost/shardsweep-host:$suite}" >/dev/null
    if [ -n "$named" ]; then complete "$name"; fi
  fi
  wait_for "$name"
  # As hardening guides have it: for everybody, root by sudo included.
  podman exec "$name" sed -i "s/^UMASK.*/UMASK $umask/" /etc/login.defs
  for home in /root /home/ops; do
    podman exec -i "$name" sh -c "umask 077; mkdir -p $home/.ssh && cat > $home/.ssh/authorized_keys && chown -R \$(stat -c %u $home) $home/.ssh" < "$keys/key.pub"
  done
  touch "$keys/known_hosts"
  sed -i "/^$address /d" "$keys/known_hosts"
  podman exec "$name" cat /etc/ssh/ssh_host_ed25519_key.pub | sed "s/^/$address /" >> "$keys/known_hosts"
}

clean() {
  podman ps -aq --filter "label=$label" | xargs -r podman rm -f -t 5 >/dev/null
  podman images -q --filter "label=$label" | sort -u | xargs -r podman rmi -f >/dev/null
  podman network rm -f "$network" >/dev/null 2>&1 || true
  local mount tree was controller
  while read -r mount; do umount -R "$mount" 2>/dev/null || true; done < <(tac "$TEST_HOSTS_STATE/mounted" 2>/dev/null)
  was=$(cat "$TEST_HOSTS_STATE/subtree_control" 2>/dev/null || true)
  rm -rf "$TEST_HOSTS_STATE" "$run" "$keys"
  tree=$(awk '$3=="cgroup2"{print $2; exit}' /proc/mounts)
  if [ -n "$tree" ] && [ -d "$tree/libpod_parent" ]; then
    find "$tree/libpod_parent" -depth -type d -exec rmdir {} + || true
    for controller in $(cat "$tree/cgroup.subtree_control"); do
      [[ " $was " == *" $controller "* ]] || echo "-$controller" > "$tree/cgroup.subtree_control" || true
    done
  fi
}

one_at_a_time() { exec 9>/run/lock/shardsweep-hosts.lock; flock 9; }
case ${1:-} in
  up) shift; [ $# -ge 3 ] || die "up NAME SUITE ADDRESS [UMASK [MEGABYTES]]"; one_at_a_time; prepare 9>&-; up "$@" 9>&-;;
  reboot) shift; for name; do podman restart -t 30 "$name" >/dev/null; wait_for "$name"; done;;
  down) shift; [ -e "$TEST_HOSTS_STATE/storage.conf" ] || exit 0; podman rm -f -i -t 5 "$@" >/dev/null
    for name; do umount "$run/disks/$name" 2>/dev/null || true; done;;
  clean) clean;;
  tidy) [ -e "$TEST_HOSTS_STATE/storage.conf" ] || exit 0
    left=$(podman ps -a --filter "label=$label" --format '{{.Names}}' | xargs)
    if [ -n "$left" ]; then say "left as it is, since there are still $left"; else clean; fi;;
  *) sed -n '2,10p' "$0" >&2; exit 2;;
esac
