#!/bin/bash
# On the GPU machine, in the project's folder: unpack the engine and the libraries, make the two Pythons, start nothing.
#   prepare.sh PACK_FOLDER      PACK_FOLDER has site.tzst, tools.txz, models.txz
set -euo pipefail
pack=$(realpath "$1")
engine=/opt/torch/.venv/bin/python3
mkdir -p /opt/sglang-site/site /opt/sglang-site/hook /srv/models /var/log/session
tar -C /srv/models -xJf "$pack/models.txz"
cp docs/evidence/several-gpus/hook/sitecustomize.py /opt/sglang-site/hook/
packages=$("$engine" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

# Two environments that see the image's libraries: the controller's (with Ansible), and the tools' where the role
# wants it. The role finds its own version there and leaves it, since its locked wheels (numpy alone is 16 MB) would
# not have fitted into what may travel.
for home in /opt/controller /opt/shardsweep/venv; do
  "$engine" -m venv --without-pip "$home"
  target=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  tar -C "$target" -xJf "$pack/tools.txz"
  echo "$packages" > "$target/image.pth"
done
printf '#!/bin/sh\nexec /opt/controller/bin/python -m ansible.cli.playbook "$@"\n' > /opt/controller/bin/ansible-playbook
chmod +x /opt/controller/bin/ansible-playbook
wheel=$(/opt/controller/bin/python -m benchmark.bundle /tmp/bundle | /opt/controller/bin/python -c 'import json, sys; print(json.load(sys.stdin)["wheel"])')
"$engine" -m pip --python /opt/shardsweep/venv/bin/python install -q --no-deps --no-index --disable-pip-version-check "$wheel"

/opt/controller/bin/python - "$pack/site.tzst" <<'PY'
import sys, tarfile, zstandard
with open(sys.argv[1], "rb") as stream:
    whole = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(stream)
    with tarfile.open(fileobj=whole, mode="r|") as archive:
        archive.extractall("/opt/sglang-site/site", filter="fully_trusted")
PY
