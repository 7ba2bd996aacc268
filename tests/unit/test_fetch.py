"""What a download of a model would fetch: judged by commit and content, as huggingface_hub notes them, not by size."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(scope="module")
def fetch():
    spec = importlib.util.spec_from_file_location("fetch", ROOT / "roles/sglang_model/files/fetch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hub(**blobs: str):
    """huggingface_hub with a repository of these files ({name: its content's id}), of ten bytes each."""
    siblings = [SimpleNamespace(rfilename=name, size=10, blob_id=blob, lfs=None) for name, blob in blobs.items()]
    api = SimpleNamespace(model_info=lambda repository, revision, files_metadata: SimpleNamespace(siblings=siblings))
    return SimpleNamespace(HfApi=lambda: api)


def put(folder: Path, name: str, commit: str | None, etag: str = "", size: int = 10) -> None:
    (folder / name).write_bytes(b"x" * size)
    if commit is not None:
        notes = folder / ".cache/huggingface/download"
        notes.mkdir(parents=True, exist_ok=True)
        (notes / f"{name}.metadata").write_text(f"{commit}\n{etag}\n1796000000.0\n")


def needs(fetch, folder: Path, there) -> tuple[int, int]:
    told = fetch.plan(there, {"repository": "owner/name", "commit": NEW}, folder)
    return told["files"], told["needed_bytes"]


def test_nothing_is_needed_where_every_file_is_of_the_commit(fetch, tmp_path):
    put(tmp_path, "config", NEW, "one")
    assert needs(fetch, tmp_path, hub(config="one")) == (0, 0)


def test_another_commit_of_the_same_sizes_is_fetched(fetch, tmp_path):
    put(tmp_path, "config", OLD, "one")
    put(tmp_path, "weights", OLD, "two")
    # The weights changed; the config did not, and only its note is to be renewed.
    assert needs(fetch, tmp_path, hub(config="one", weights="three")) == (2, 10)


def test_what_lies_there_without_a_note_is_not_taken_for_the_commit(fetch, tmp_path):
    put(tmp_path, "config", None)
    assert needs(fetch, tmp_path, hub(config="one")) == (1, 10)


def test_a_file_that_is_cut_or_missing_is_needed_whatever_is_noted(fetch, tmp_path):
    put(tmp_path, "config", NEW, "one", size=9)
    assert needs(fetch, tmp_path / "nothing", hub(config="one")) == (1, 10)
    assert needs(fetch, tmp_path, hub(config="one", weights="two")) == (2, 20)


def test_large_files_are_known_by_their_sha256(fetch, tmp_path):
    put(tmp_path, "weights", OLD, "sha")
    file = SimpleNamespace(rfilename="weights", size=10, blob_id="pointer", lfs={"sha256": "sha"})
    api = SimpleNamespace(model_info=lambda *_, **__: SimpleNamespace(siblings=[file]))
    assert needs(fetch, tmp_path, SimpleNamespace(HfApi=lambda: api)) == (1, 0)


def test_a_note_that_is_broken_is_none(fetch, tmp_path):
    put(tmp_path, "config", NEW)
    (tmp_path / ".cache/huggingface/download/config.metadata").write_bytes(b"\xff\xfe")
    assert fetch.noted(tmp_path, "config") == ("", "")
    assert needs(fetch, tmp_path, hub(config="one")) == (1, 10)
