"""Fetch one commit of a model with huggingface_hub, or say what that would take.

`fetch.py plan REQUEST` answers {"files", "needed_bytes", "free_bytes"}: how many files are not known to be those of the
commit, and the bytes that this may take. `fetch.py fetch REQUEST` downloads, and goes on where a cut download stopped.
REQUEST is JSON: {"repository", "commit", "endpoint", "folder"}.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

PAUSES_SECONDS = (1, 10, 60, 300)


def there(path):
    """Bytes of a file that is in place; a part that was fetched is not counted, so the plan errs on the safe side."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def noted(folder, name):
    """Commit and content id (etag) of a file, as huggingface_hub notes them beside what it fetched; "" for none."""
    try:
        lines = (folder / ".cache/huggingface/download" / f"{name}.metadata").read_text().split("\n")
    except (OSError, UnicodeDecodeError):
        lines = []
    commit, etag = (*map(str.strip, lines), "", "")[:2]
    return commit, etag


def content_id(file):
    """The id that the hub gives a file's content; "" where it does not tell."""
    lfs = file.lfs
    sha256 = lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)
    return sha256 or file.blob_id or ""


def plan(hub, request, folder):
    info = hub.HfApi().model_info(request["repository"], revision=request["commit"], files_metadata=True)
    files = needed = 0
    for file in info.siblings:
        size, (commit, etag) = file.size or 0, noted(folder, file.rfilename)
        whole = there(folder / file.rfilename) == size
        # The size alone tells nothing: another commit's file, say of other weights, may have the same.
        if whole and commit == request["commit"]:
            continue
        files += 1
        if not whole or not etag or etag != content_id(file):
            needed += size
    above = folder
    while not above.exists():
        above = above.parent
    return {"files": files, "needed_bytes": needed, "free_bytes": shutil.disk_usage(above).free}


def fetch(hub, request, folder):
    """Fetch what is not there. A line that breaks is tried again; a refusal (not found, not allowed) is not."""
    pauses = iter(PAUSES_SECONDS)
    while True:
        try:
            hub.snapshot_download(request["repository"], revision=request["commit"], local_dir=folder)
            return {"fetched": True}
        except Exception as error:
            # The libraries below raise errors of their own; a refusal carries its answer.
            status = getattr(getattr(error, "response", None), "status_code", 500)
            pause_seconds = next(pauses, None)
            if pause_seconds is None or status < 500:
                raise
            time.sleep(pause_seconds)


def main():
    verb, request = sys.argv[1], json.loads(sys.argv[2])
    if request["endpoint"]:
        # Read when the library is imported.
        os.environ["HF_ENDPOINT"] = request["endpoint"]
    import huggingface_hub as hub

    folder = Path(request["folder"])
    try:
        answer = (plan if verb == "plan" else fetch)(hub, request, folder)
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        sys.exit(f"{request['repository']} at {request['commit'][:12]} was not fetched: {first}")
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
