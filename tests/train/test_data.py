from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed as dist

import data
from data import (
    Text,
    choose_evaluation_windows,
    choose_windows,
    count_windows,
    cut_windows,
    read_text,
    read_text_once_per_node,
    share_in_memory,
    take_share,
)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.tolist())


def write(folder: Path, name: str, text: str = "x = 1\n") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_standard_library_is_a_large_text_and_a_few_percent_are_held_back() -> None:
    text = read_text()
    assert text.files > 300
    assert text.training.dtype == text.held_back.dtype == torch.uint8
    share = text.held_back.numel() / (text.training.numel() + text.held_back.numel())
    assert text.training.numel() > 5_000_000
    assert 0.02 < share < 0.15


def test_every_reading_gives_the_same_text(source: Path) -> None:
    first, second = read_text(source), read_text(source)
    assert str(first) == str(second)
    assert bytes_of(first.training) == bytes_of(second.training)


def test_files_are_ordered_by_name(tmp_path: Path) -> None:
    for name in ("c.py", "a/z.py", "a.py"):
        write(tmp_path, name, name)
    text = read_text(tmp_path)
    assert text.held_back.numel() == 0
    assert bytes_of(text.training) == b"a.pya/z.pyc.py"


def test_another_file_moves_no_file_between_training_and_evaluation(source: Path, tmp_path: Path) -> None:
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = read_text(tmp_path)
    assert before.held_back.numel() > 0
    write(tmp_path, "abc_new.py", "# new\n")
    after = read_text(tmp_path)
    assert bytes_of(after.held_back) == bytes_of(before.held_back)
    assert bytes_of(after.training) == b"# new\n" + bytes_of(before.training)


def test_files_outside_the_library_source_are_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "LARGEST", 100)
    write(tmp_path, "kept.py")
    for name in (
        "site-packages/torch/nn.py",
        "dist-packages/apt.py",
        "test/test_os.py",
        "idlelib/tests/x.py",
        "__pycache__/y.py",
        "_sysconfigdata__linux_x86_64-linux-gnu.py",
        "config-3.11/python-config.py",
        "sitecustomize.py",
        "LICENSE.txt",
    ):
        write(tmp_path, name, "not this")
    write(tmp_path, "large.py", "#" * 101)
    assert read_text(tmp_path).files == 1


def test_unreadable_files_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "kept.py")
    write(tmp_path, "secret.py")
    (tmp_path / "broken.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / os.fsdecode(b"odd\xff.py")).write_text("odd\n")
    read = Path.read_bytes

    def guarded(path: Path) -> bytes:
        if path.name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    text = read_text(tmp_path)
    assert text.files == 2
    assert bytes_of(text.training) + bytes_of(text.held_back) in {b"x = 1\nodd\n", b"odd\nx = 1\n"}


def test_a_folder_without_python_files_is_an_empty_text(tmp_path: Path) -> None:
    assert str(read_text(tmp_path)) == "0 files, 0 bytes, crc 00000000"
    assert str(read_text(tmp_path / "missing")) == "0 files, 0 bytes, crc 00000000"


def test_the_checksum_shows_a_single_changed_byte() -> None:
    one, other = (Text(torch.zeros(3), torch.zeros(2), files=2, checksum=checksum) for checksum in (255, 256))
    assert str(one) == "2 files, 5 bytes, crc 000000ff"
    assert str(other) != str(one)


@given(length=st.integers(1, 200), sequence=st.integers(1, 20))
@settings(deadline=None)
def test_windows_are_adjacent_and_end_with_the_next_byte(length: int, sequence: int) -> None:
    text = torch.arange(length, dtype=torch.uint8)
    windows = count_windows(text, sequence)
    assert windows * sequence + 1 <= length < (windows + 1) * sequence + 1
    rows = cut_windows(text, sequence, torch.arange(windows))
    assert rows.tolist() == [list(range(n * sequence, (n + 1) * sequence + 1)) for n in range(windows)]


def test_an_empty_text_has_no_windows() -> None:
    assert count_windows(torch.empty(0, dtype=torch.uint8), 4) == 0


ranks_and_batches = st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(0, 300)).map(
    lambda drawn: (drawn[0], drawn[0] * drawn[1], drawn[0] * drawn[1] + drawn[2])
)


@given(ranks_and_batches, st.integers(0, 1000), st.integers(0, 3))
@settings(deadline=None)
def test_the_shares_of_all_ranks_form_the_global_batch(drawn: tuple[int, int, int], step: int, seed: int) -> None:
    ranks, global_batch, windows = drawn
    numbers = choose_windows(windows, global_batch, seed=seed, step=step)
    slices = [take_share(numbers, rank, ranks) for rank in range(ranks)]
    assert {len(part) for part in slices} == {global_batch // ranks}
    assert torch.cat(slices).tolist() == numbers.tolist()


@given(windows=st.integers(1, 60), batch=st.integers(1, 60), seed=st.integers(0, 3))
@settings(deadline=None)
def test_each_window_is_used_once_per_epoch(windows: int, batch: int, seed: int) -> None:
    batch = min(windows, batch)
    steps = 3 * windows // batch + 1
    drawn = torch.cat([choose_windows(windows, batch, seed=seed, step=step) for step in range(steps)]).tolist()
    for epoch in range(3):
        assert sorted(drawn[epoch * windows : (epoch + 1) * windows]) == list(range(windows))


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = [choose_windows(50, 50, seed=seed, step=step).tolist() for seed in (1, 2) for step in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_a_step_does_not_depend_on_earlier_steps() -> None:
    expected = choose_windows(70, 16, seed=1, step=9).tolist()
    data.shuffle_epoch.cache_clear()
    assert choose_windows(70, 16, seed=1, step=9).tolist() == expected


def test_a_batch_that_does_not_divide_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"^3 ranks do not divide a global batch of 8$"):
        take_share(torch.arange(8), 0, 3)


def test_a_text_shorter_than_a_batch_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"^the text has 7 windows, fewer than a global batch of 8$"):
        choose_windows(7, 8, seed=1, step=0)


@given(windows=st.integers(0, 100), wanted=st.integers(1, 100), ranks=st.integers(1, 8))
@settings(deadline=None)
def test_evaluation_covers_each_of_its_windows_once(windows: int, wanted: int, ranks: int) -> None:
    parts = [choose_evaluation_windows(windows, wanted, rank, ranks).tolist() for rank in range(ranks)]
    together = sorted(number for part in parts for number in part)
    assert together == choose_evaluation_windows(windows, wanted, 0, 1).tolist()
    assert len(set(together)) == len(together) == min(windows, wanted)
    assert all(0 <= number < windows for number in together)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_short_evaluation_is_spread_over_the_whole_text() -> None:
    assert choose_evaluation_windows(1000, 4, 0, 1).tolist() == [0, 250, 500, 750]


def answer(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Let rank 0 answer with the path of its text, and then come to the barrier."""
    answers: Iterator[list[object]] = iter([[(0, path), (0, "")], [None, None]])

    def all_gather_object(values: list[object], _: object) -> None:
        values[:] = next(answers)

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", all_gather_object)


def test_one_rank_per_node_reads_the_files_and_the_others_map_its_text(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, opened = read_text(source), set(os.listdir("/proc/self/fd"))
    with share_in_memory(read) as path:
        answer(monkeypatch, path)
        monkeypatch.delattr(data, "read_text")
        text = read_text_once_per_node(source, local_rank=1, node_rank=0)
    assert str(text) == str(read)
    assert bytes_of(text.training) == bytes_of(read.training)
    assert bytes_of(text.held_back) == bytes_of(read.held_back)
    assert set(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("path", ["", "/proc/0/fd/3", __file__])
def test_a_rank_that_cannot_map_the_text_reads_the_files(
    path: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, path)
    assert str(read_text_once_per_node(source, local_rank=1, node_rank=0)) == str(read_text(source))
