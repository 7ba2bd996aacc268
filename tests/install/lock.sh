#!/bin/sh
# Resolves roles/sglang/files/requirements-RELEASE.in into the lock beside it: lock.sh 0.5.11 [0.5.23 ...]
# Needs uv and PyPI. The day in the .in file bounds the resolution, so that it gives today what it gave then.
set -eu
uv=${UV:-uv}
files=$(cd "$(dirname "$0")/../../roles/sglang/files" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# uv reads from here which platforms a universal lock is for.
cat > "$folder/pyproject.toml" <<'PROJECT'
[project]
name = "lock"
version = "0"
[tool.uv]
environments = ["sys_platform == 'linux' and platform_machine == 'x86_64'"]
PROJECT
for release in "$@"; do
  source="$files/requirements-$release.in"
  day=$(sed -n 's/^# exclude-newer: //p' "$source")
  python=$(sed -n 's/^# python: //p' "$source")
  cp "$source" "$folder/requirements.in"
  (cd "$folder" && "$uv" pip compile requirements.in --universal --python-version "$python" --exclude-newer "$day" \
    --generate-hashes --no-header --quiet --output-file lock.txt)
  { echo "# SGLang $release on Linux x86_64, Python $python or newer, as of $day. Made by tests/install/lock.sh."
    cat "$folder/lock.txt"; } > "$files/requirements-$release.txt"
  rm "$folder/lock.txt"
done
