"""A model's folder, whole and broken in every way that was met in public reports."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine import json_file
from benchmark.engine.model_files import look_at
from benchmark.engine.models import UnknownModel, load_model


def safetensors(path: Path, tensors: dict[str, int], *, cut: int = 0) -> int:
    """Write a file of tensors of so many bytes each, and return its size."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(offset)
    path.write_bytes(content[: len(content) - cut])
    return len(content)


@pytest.fixture
def model(tmp_path):
    """Two weight files of three tensors, an index, a config and a tokenizer."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    (folder / "tokenizer.json").write_text("{}")
    safetensors(folder / "model-00001-of-00002.safetensors", {"a": 10, "b": 20})
    safetensors(folder / "model-00002-of-00002.safetensors", {"c": 30})
    index = {
        "metadata": {"total_size": 60},
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00001-of-00002.safetensors",
            "c": "model-00002-of-00002.safetensors",
        },
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_a_whole_model(model):
    found = look_at(model)
    assert found.problems == ()
    assert found.whole
    assert (found.weight_files, found.tensors) == (2, 3)
    assert found.weight_bytes == (model / FIRST).stat().st_size + (model / SECOND).stat().st_size
    assert found.python_files == ()
    assert found.commit == ""


def test_the_revision_is_made_as_the_page_says(model):
    content = hashlib.sha256()
    for name in ("config.json", "model.safetensors.index.json"):
        content.update(name.encode() + b"\0" + hashlib.sha256((model / name).read_bytes()).digest())
    for name in (FIRST, SECOND):
        content.update(f"{name}\0{(model / name).stat().st_size}\0".encode())
    assert look_at(model).revision == content.hexdigest()


def test_the_revision_follows_code_and_sizes_and_nothing_else(model):
    before = look_at(model).revision
    (model / "README.md").write_text("words")
    os.utime(model / "config.json", (1, 1))
    assert look_at(model).revision == before
    (model / "modeling.py").write_text("x = 1")
    with_code = look_at(model).revision
    assert with_code != before
    (model / "modeling.py").write_text("x = 2")
    assert look_at(model).revision not in (before, with_code)
    assert look_at(model).python_files == ("modeling.py",)


def test_one_file_needs_no_index(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    safetensors(tmp_path / "model.safetensors", {"a": 1})
    assert look_at(tmp_path).whole


def only_problem(folder: Path) -> str:
    (problem,) = look_at(folder).problems
    return problem


def test_a_file_of_the_index_is_absent(model):
    (model / SECOND).unlink()
    assert only_problem(model) == f"{SECOND} is not in the folder. Fetch the model again; what is there is kept."


def test_a_link_of_a_hub_cache_leads_nowhere(model):
    (model / SECOND).unlink()
    (model / SECOND).symlink_to("../../blobs/gone")
    assert "link to nothing" in only_problem(model)


def test_a_file_is_cut(model):
    whole = safetensors(model / SECOND, {"c": 30}, cut=7)
    assert only_problem(model) == f"{SECOND} has {whole - 7} bytes and should have {whole}. Fetch it again."


def test_a_file_is_cut_in_its_header(model):
    (model / SECOND).write_bytes((model / SECOND).read_bytes()[:40])
    assert "no header that can be read (40 bytes)" in only_problem(model)


def test_a_file_is_empty(model):
    (model / SECOND).write_bytes(b"")
    assert "no safetensors file (0 bytes)" in only_problem(model)


def test_a_file_is_a_git_lfs_pointer(model):
    (model / SECOND).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    assert "git lfs pull" in only_problem(model)


def test_a_file_lacks_a_tensor_of_the_index(model):
    safetensors(model / SECOND, {"d": 30})
    assert only_problem(model).startswith(f"{SECOND} does not hold c,")


def test_the_index_is_absent(model):
    (model / "model.safetensors.index.json").unlink()
    assert "2 .safetensors files and no model.safetensors.index.json" in only_problem(model)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"weight_map": {}}', '{"weight_map": {"a": "../../etc/passwd"}}'])
def test_the_index_is_broken(model, text):
    (model / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in look_at(model).problems[0]


def test_a_download_was_cut_off(model):
    (model / "model-00003.safetensors.part").write_bytes(b"x")
    assert "part of a file" in only_problem(model)


def test_huggingface_hub_has_not_finished(model):
    folder = model / ".cache/huggingface/download"
    folder.mkdir(parents=True)
    (folder / "abc=.0123.incomplete").write_bytes(b"x")
    assert only_problem(model).startswith(".cache/huggingface/download/abc=.0123.incomplete is part of a file")


def test_the_commit_that_huggingface_hub_noted(model):
    folder = model / ".cache/huggingface/download"
    folder.mkdir(parents=True)
    (folder / "config.json.metadata").write_text("b" * 40 + "\nan-etag\n1764420000.0\n")
    assert look_at(model).commit == "b" * 40
    # Code that downloaders keep beside the model is none of its own.
    (folder / "x.py").write_text("")
    assert look_at(model).python_files == ()


def test_no_tokenizer(model):
    (model / "tokenizer.json").unlink()
    assert "No tokenizer" in only_problem(model)


def test_the_code_that_the_config_asks_for_is_absent(model):
    # Kimi K2: transformers asks the hub for this file, and fails offline only when the engine starts.
    (model / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tokenization_kimi.Tok", null]}}')
    assert only_problem(model).startswith("tokenization_kimi.py is not in the folder")
    (model / "tokenization_kimi.py").write_text("")
    assert look_at(model).whole


def test_the_code_lies_in_another_repository(model):
    (model / "config.json").write_text('{"auto_map": {"AutoConfig": "owner/name--configuration.C"}}')
    assert "another repository, owner/name" in only_problem(model)


@pytest.mark.parametrize(
    ("name", "auto_map"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "{}"]}}),
        ("tokenizer_config.json", {"auto_map": ["{}", None]}),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "{}"}}),
        ("processor_config.json", {"image_processor": {"auto_map": {"AutoImageProcessor": "{}"}}}),
        ("video_preprocessor_config.json", {"auto_map": {"AutoVideoProcessor": "{}"}}),
    ],
)
def test_which_code_runs_is_in_the_revision(model, name, auto_map):
    def named(code):
        (model / name).write_text(json.dumps(auto_map).replace("{}", code))
        return look_at(model)

    (model / "code.py").write_text("")
    (model / name).write_text('{"chat_template": "x"}')
    without = look_at(model).revision
    (model / name).unlink()
    assert look_at(model).revision == without
    own = named("code.T")
    assert (own.problems, own.foreign_code) == ((), ())
    other = named("evil/repo--code.T")
    assert other.foreign_code == ("evil/repo--code.T",)
    assert "another repository, evil/repo" in only_problem(model)
    assert len({without, own.revision, other.revision}) == 3


def test_code_behind_a_linked_folder_is_not_the_models(model, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/code.py").write_text("")
    (model / "pkg").symlink_to(tmp_path / "elsewhere")
    (model / "config.json").write_text('{"auto_map": {"AutoConfig": "pkg/code.C"}}')
    assert only_problem(model).startswith("pkg/code.py is not in the folder")
    assert look_at(model).foreign_code == ("pkg/code.C",)


def test_no_folder(tmp_path):
    found = look_at(tmp_path / "nothing")
    assert found.problems == (
        f"{tmp_path}/nothing is not there or is no folder. Name the model's folder, or have it downloaded.",
    )
    assert found.revision == ""


def test_an_empty_folder(tmp_path):
    found = look_at(tmp_path)
    assert [problem.split()[0] for problem in found.problems] == ["config.json", "No", "No"]
    assert found.revision == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_below_roots_home(tmp_path):
    # mkdtemp's folders are closed to others, as /root is.
    folder = tmp_path / "closed" / "model"
    folder.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        # pytest's own folders above are closed too; either is named.
        os._exit(0 if "is closed to" in "".join(look_at(folder).problems) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer_config.json"])
def test_json_that_is_too_deep_or_too_large_is_named(model, monkeypatch, name):
    (model / name).write_text('{"auto_map":' + "[" * 100_000 + "]" * 100_000 + "}")
    assert f"{name} cannot be read as JSON (it is nested too deeply). Fetch it again." in look_at(model).problems
    monkeypatch.setattr(json_file, "LARGEST", 199_999)
    assert f"{name} cannot be read as JSON (it has more than 199999 bytes). Fetch it again." in look_at(model).problems


def test_a_plan_names_a_config_that_is_too_deep(model):
    (model / "config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(UnknownModel, match=r"config\.json cannot be read as JSON: it is nested too deeply\."):
        load_model(model)


@given(st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
def test_no_file_breaks_the_check(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("wild")
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (folder / name).write_bytes(content)
    assert not look_at(folder).whole


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
)
@settings(max_examples=50, deadline=None)
def test_no_json_breaks_the_check(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("wild")
    text = json.dumps({"a": content, "auto_map": content, "weight_map": content}).encode()
    for name in ("config.json", "model.safetensors.index.json", "tokenizer_config.json"):
        (folder / name).write_bytes(text)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert not look_at(folder).whole
