"""TOML documents: origins of keys, merging, and files that are written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_kit.errors import RecordError, SpecError
from hpc_kit.spec import toml_documents
from hpc_kit.spec.job import Job
from hpc_kit.spec.toml_documents import (
    check_new,
    document_of_settings,
    drop_keys,
    format_job,
    format_toml_value,
    merge_documents,
    read_document,
    save_job,
)
from hpc_kit.spec.typed_values import convert
from tests.conftest import ROOT

TEXT = '''description = """
[resources]
nodes = 3
"""
command = ["python",
    "resources.py",
]
launch.launcher = "srun"

[resources]
nodes = 2
# time = "1:00"
"time" = "2:00"   # not time = 3
[env]
A = 1
[[component]]
nodes = 1
[[component]]
nodes = 4
[planner]
gpu = { name = "a100", memory = { size = 80 } }
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.toml"


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("description", 1),
        ("command", 5),
        ("command[1]", 5),
        ("launch", 8),
        ("launch.launcher", 8),
        ("resources", 10),
        ("resources.nodes", 11),
        ("resources.time", 13),
        ("env.A", 15),
        ("component", 16),
        ("component[0].nodes", 17),
        ("component[1]", 18),
        ("component[1].nodes", 19),
        ("planner.gpu.memory.size", 21),
        ("resources.partition", 10),
    ],
)
def test_the_line_of_a_key_is_found(path: Path, key: str, line: int) -> None:
    path.write_text(TEXT)
    assert read_document(path, "job.toml").origin_of(key) == f"job.toml, line {line}"


def test_text_that_looks_like_a_table_does_not_shift_lines(path: Path) -> None:
    path.write_text('description = """\n[resources]\nnodes = 1\n"""\n\n[resources]\nnodes = "x"\n')
    document = read_document(path, "job.toml")
    assert document.origin_of("resources.nodes") == "job.toml, line 7"
    assert document.origin_of("resources") == "job.toml, line 6"


def test_a_wrong_value_of_the_second_component_is_shown_with_its_line(path: Path) -> None:
    path.write_text("[[component]]\nnodes = 1\n[[component]]\nnodes = -1\n")
    with pytest.raises(SpecError, match=r"wrong value for component\.nodes in job\.toml, line 4"):
        convert(read_document(path, "job.toml"), Job)
    path.write_text("[[component]]\nnodes = 1\n[[component]]\nnode = 1\n")
    with pytest.raises(SpecError, match=r"unknown key 'node' in job\.toml, line 4"):
        convert(read_document(path, "job.toml"), Job)


def test_the_upper_layer_has_priority_and_names_its_origin(path: Path) -> None:
    path.write_text("[resources]\nnodes = 2\nntasks = 4\n")
    lower = read_document(path, "job.toml")
    document = merge_documents(lower, document_of_settings({"resources.nodes": 3}))
    assert document.data == {"resources": {"nodes": 3, "ntasks": 4}}
    assert document.origin_of("resources.nodes") == "--set resources.nodes"
    assert document.origin_of("resources.ntasks") == "job.toml, line 3"
    assert document.origin_of("resources.cpus_per_task") == "job.toml, line 1"  # not the option that sets another key
    assert drop_keys(document, "nodes", table="resources").data == {"resources": {"ntasks": 4}}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(VALUES)
def test_a_value_is_written_on_one_line_and_reads_back(value: object) -> None:
    text = format_toml_value(value)
    assert "\n" not in text
    assert tomllib.loads(f"value = {text}")["value"] == value


def test_a_written_job_reads_back(path: Path) -> None:
    path.write_text(TEXT.partition("[planner]")[0])
    job = convert(read_document(path, "job.toml"), Job)
    path.write_text(format_job(job))
    assert convert(read_document(path, "job.toml"), Job) == job
    assert "[layout]" not in format_job(job)


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_commands_that_save_one_file_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    path = tmp_path / "mine.toml"
    jobs = [Job(name=f"job-{number}", command=("true",)) for number in range(8)]
    # All of them find the name free, as if they checked it at the same moment.
    monkeypatch.setattr(toml_documents, "check_new", lambda *_: None)
    if not has_links:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(1, "Operation not permitted")))
    with ThreadPoolExecutor() as pool:
        saved = list(pool.map(lambda job: save_or_error(job, path), jobs))
    assert sorted(saved) == [*[f"{path} exists"] * 7, "saved"]
    assert path.read_text() == format_job(jobs[saved.index("saved")])
    assert list(tmp_path.iterdir()) == [path]


def save_or_error(job: Job, path: Path) -> str:
    try:
        save_job(job, path)
    except SpecError as error:
        return error.what
    return "saved"


def test_a_new_job_file_replaces_no_existing_file(path: Path) -> None:
    check_new(path)
    with pytest.raises(SpecError, match=r"use --save .*job\.json\.toml"):
        check_new(path.with_suffix(".json"))
    path.touch()
    with pytest.raises(SpecError, match="exists"):
        check_new(path)


@pytest.mark.parametrize("job", ["ddp_4node", "hetjob", "hybrid_3d_4node"])
def test_a_correct_job_file_does_not_load_the_grammar(job: str) -> None:
    program = (
        "import sys, hpc_kit; from pathlib import Path;"
        f"hpc_kit.render({job!r}, 'slurm', set={{'resources.time': 5, 'env.A': 'b'}}, root=Path({str(ROOT)!r}));"
        "print([name for name in ('tree_sitter', 'tree_sitter_toml', 'tomlkit') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unreadable_file_and_a_full_disk_name_their_cause(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    with (
        pytest.raises(SpecError) as unreadable,
        mock.patch.object(Path, "read_text", side_effect=os_error(errno.EACCES)),
    ):
        read_document(file, "job.toml")
    assert str(unreadable.value) == ("cannot read job.toml\n  found  Permission denied\n  do     check its permissions")
    with (
        pytest.raises(RecordError) as full,
        mock.patch.object(toml_documents, "write_whole", side_effect=os_error(errno.ENOSPC)),
    ):
        save_job(Job(name="a"), file, "-o")
    assert str(full.value) == (
        f"cannot write {file}\n  found  No space left on device\n"
        "  do     write to a folder with free space and write permission"
    )


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "a draft")
