"""`hpc_kit.Checkpointer` in one process, with and without a process group."""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn

import hpc_kit
from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart import checkpoint_folder, checkpointer, training_state
from hpc_kit.runtime.restart.checkpointer import format_option
from hpc_kit.runtime.restart.stop_signal import StopAgreement


@pytest.fixture(autouse=True)
def _handler_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one rank, in this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path_factory.mktemp('store')}/s", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Training:
    """A small training with a checkpointer, in this process."""

    def __init__(self, folder: Path | None, width: int = 4, **options: Any) -> None:
        self.lines: list[str] = []
        self.model = nn.Linear(width, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.saver = hpc_kit.Checkpointer(folder, report=self.lines.append, **options)

    def restore(self) -> int:
        return self.saver.restore(model=self.model, optimizer=self.optimizer)

    def make_step(self) -> None:
        self.model(torch.rand(2, self.model.in_features)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps: int) -> int:
        """Train up to this step, or to the step at which it stops; returns the steps that are done."""
        first = self.restore()
        for step in range(first, steps):
            self.make_step()
            if self.saver.step(step):
                return step + 1
        self.saver.close()
        return steps


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def raiser(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_a_program_without_a_process_group_saves_and_resumes(tmp_path: Path) -> None:
    first = Training(tmp_path / "c", every=2)
    first.run(5)
    assert first.lines == [f"saved   {tmp_path}/c/step-2", f"saved   {tmp_path}/c/step-4"]
    second = Training(tmp_path / "c", every=2)
    assert second.restore() == 4
    assert second.lines == [f"resume  step 4 of {tmp_path}/c/step-4"]
    assert second.saver.latest == tmp_path / "c" / "step-4"


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    Training(tmp_path, every=1, keep=3).run(6)
    assert names(tmp_path) == ["latest", "step-4", "step-5", "step-6"]


@pytest.mark.parametrize("number", [np.int64, torch.tensor], ids=["NumPy", "tensor"])
def test_steps_may_be_counted_with_other_integers(number: Callable[[int], Any], tmp_path: Path) -> None:
    training = Training(tmp_path, every=2)
    for step in range(training.restore(), 4):
        training.saver.step(number(step))
    training.saver.save(number(4))
    training.saver.close()
    assert names(tmp_path) == ["latest", "step-4", "step-5"]
    assert Training(tmp_path).restore() == 5


@pytest.mark.usefixtures("group")
def test_a_stop_request_saves_and_leaves_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    training = Training(tmp_path / "c")
    os.kill(os.getpid(), signal.SIGUSR1)  # before the first step
    os.kill(os.getpid(), signal.SIGUSR1)
    done = training.run(100)
    assert done < 3
    assert training.saver.stopped
    assert names(tmp_path / "c") == ["latest", f"step-{done}"]
    assert (tmp_path / "stopped").read_text().startswith(f"{done} ")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_run_folder_has_the_last_saved_step(
    asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    training = Training(tmp_path / "c", every=2, asynchronous=asynchronous)
    training.run(5)
    training.saver.close()
    step, _ = (tmp_path / "saved").read_text().split()
    assert f"step-{step}" in names(tmp_path / "c")


def test_without_a_folder_a_stop_request_leaves_the_loop(tmp_path: Path) -> None:
    training = Training(None)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert training.run(100) < 3
    assert training.saver.latest is None


def test_a_signal_during_a_save_and_during_an_evaluation_stops_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, every=1)
    publish = checkpoint_folder.publish

    def publish_with_signal(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        publish(*arguments)

    monkeypatch.setattr(checkpoint_folder, "publish", publish_with_signal)
    done = training.run(100)
    assert 1 < done < 4
    assert f"step-{done}" in names(tmp_path)
    os.kill(os.getpid(), signal.SIGUSR1)  # the final evaluation: nothing happens
    assert training.saver.stopped


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_random_numbers_of_the_accelerator_are_saved(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [torch.arange(16, dtype=torch.uint8)]
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rng_state=lambda: states[-1],
        set_rng_state=states.append,
    )
    monkeypatch.setitem(training_state.ACCELERATORS, device, module)
    Training(tmp_path, every=2).run(2)
    assert Training(tmp_path).restore() == 2
    assert torch.equal(*states)


def test_a_save_that_fails_is_reported_and_the_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Training(tmp_path, every=2).run(2)
    training = Training(tmp_path, every=2)
    monkeypatch.setattr(checkpoint_folder, "publish", raiser(OSError(28, "No space left on device")))
    assert training.run(5) == 5
    assert training.lines[1] == (
        "warning: step 4 is not saved\nthe checkpoint cannot be written\n"
        f"  found  {tmp_path}/step-4: No space left on device\n"
        "  do     choose a folder of your own, on a disk with free space"
    )
    assert names(tmp_path) == ["latest", "step-2"]
    stopping = Training(tmp_path)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stopping.run(100) < 6
    assert stopping.saver.stopped
    assert names(tmp_path) == ["latest", "step-2"]
    with pytest.raises(SpecError, match="No space left on device"):
        stopping.saver.save(9)


def test_saves_that_fail_one_after_the_other_are_reported_in_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, publish = Training(tmp_path, every=1), checkpoint_folder.publish
    training.restore()

    def publish_some(draft: Path, path: Path, info: checkpoint_folder.CheckpointInfo) -> None:
        if path.name != "step-3":
            raise OSError(28, "No space left on device")
        publish(draft, path, info)

    monkeypatch.setattr(checkpoint_folder, "publish", publish_some)
    for step in range(4):
        training.saver.step(step)
    reason = "No space left on device"
    assert [len(line.splitlines()) for line in training.lines] == [4, 1, 1, 4]
    assert training.lines[1] == f"warning: step 2 is not saved: {tmp_path}/step-2: {reason}"
    assert training.lines[2] == f"saved   {tmp_path}/step-3"


def test_a_file_that_cannot_grow_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    Training(tmp_path, every=2).run(2)
    training, (soft, hard) = Training(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    training.restore()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(SpecError, match="the checkpoint cannot be written"):
            training.saver.save(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["latest", "step-2"]


def test_an_asynchronous_save_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, every=2, asynchronous=True)
    monkeypatch.setattr(checkpoint_folder, "publish", raiser(OSError(28, "No space left on device")))
    training.run(3)
    assert training.lines[0].startswith(f"warning: {tmp_path}/step-2 is not saved\nthe checkpoint cannot be written\n")


def test_an_asynchronous_save_writes_the_state_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, every=2, asynchronous=True)
    training.restore()
    training.make_step()
    weight = training.model.weight.detach().clone()
    training.saver.step(1)
    with torch.no_grad():
        training.model.weight.zero_()  # the training goes on
    training.saver.close()
    second = Training(tmp_path)
    assert second.restore() == 2
    assert torch.equal(second.model.weight, weight)


def test_a_lost_rank_is_not_reported_as_a_disk_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)
    training.restore()
    late = raiser(RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 8000ms for recv"))
    monkeypatch.setattr(torch.distributed.checkpoint.state_dict_saver, "save", late)
    with pytest.raises(RuntimeError, match="Timed out waiting"):
        training.saver.save(0)


def test_a_check_that_fails_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    training = Training(tmp_path, every=1)
    training.restore()
    with pytest.raises(SpecError, match="diverged"):
        training.saver.step(0, raiser(SpecError("diverged")))
    assert names(tmp_path) == []


def test_if_no_checkpoint_is_good_the_training_does_not_start_over(tmp_path: Path) -> None:
    Training(tmp_path, every=1).run(2)
    for path in tmp_path.glob("step-*/*.distcp"):
        path.write_bytes(b"?" + path.read_bytes()[1:])
    for _ in range(2):
        training = Training(tmp_path)
        with pytest.raises(SpecError, match=f"the checkpoint is damaged\n  found  {tmp_path}/step-2: "):
            training.restore()
        training.saver.close()


def test_a_checkpoint_of_another_model_is_one_clear_error(tmp_path: Path) -> None:
    Training(tmp_path, every=1, options={"width": 4, "bf16": False}).run(1)
    with pytest.raises(SpecError) as caught:
        Training(tmp_path, width=5, options={"width": 5, "bf16": False}).restore()
    assert str(caught.value) == (
        "the checkpoint belongs to another model\n"
        f"  found  {tmp_path}/step-1: model.weight is 4x4 in the checkpoint, 4x5 here\n"
        "         it was made with --width 4\n"
        "  do     build the same model, or start in another folder"
    )


@pytest.mark.parametrize(("saved", "own", "words"), [
    (nn.Linear(2, 2), nn.Linear(2, 2, bias=False), "model.bias of the checkpoint is not in this model"),
    (nn.Linear(2, 2, bias=False), nn.Linear(2, 2), "model.bias is not in the checkpoint"),
])  # fmt: skip
def test_a_parameter_more_or_less_is_another_model(
    saved: nn.Module, own: nn.Module, words: str, tmp_path: Path
) -> None:
    first = hpc_kit.Checkpointer(tmp_path)
    first.restore(model=saved)
    first.save(0)
    first.close()
    with pytest.raises(SpecError, match=words):
        hpc_kit.Checkpointer(tmp_path).restore(model=own)


def test_the_state_of_a_new_object_is_missing_in_an_old_checkpoint(tmp_path: Path) -> None:
    Training(tmp_path, every=1).run(1)
    again = Training(None, resume=tmp_path)
    scheduler = torch.optim.lr_scheduler.StepLR(again.optimizer, 2)
    with pytest.raises(SpecError, match="the checkpoint has no state of scheduler"):
        again.saver.restore(model=again.model, optimizer=again.optimizer, scheduler=scheduler)
    assert again.saver.restore(model=again.model) == 1  # for an evaluation, the model is enough


@pytest.mark.parametrize("make", [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    torch.optim.Adagrad,
    torch.optim.NAdam,
    torch.optim.Adafactor,
    lambda parameters: torch.optim.AdamW(parameters, amsgrad=True, fused=True),
    torch.optim.LBFGS,
], ids=["momentum", "adagrad", "nadam", "adafactor", "amsgrad", "lbfgs"])  # fmt: skip
def test_any_optimizer_continues_exactly(make: Callable[..., torch.optim.Optimizer], tmp_path: Path) -> None:
    def train(folder: Path, steps: int) -> list[float]:
        torch.manual_seed(1)
        model, losses = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3), nn.Linear(3, 1)), list[float]()
        optimizer: Any = make(model.parameters())
        saver = hpc_kit.Checkpointer(folder, every=3, report=str)
        for step in range(saver.restore(model=model, optimizer=optimizer), steps):
            data = torch.rand(4, 3) * random.random()

            def compute(data: torch.Tensor = data) -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = model(data).square().mean()
                loss.backward()
                return loss

            losses.append(optimizer.step(compute).item())
            saver.step(step)
        saver.close()
        return losses

    random.seed(1)
    unbroken = train(tmp_path / "unbroken", 6)
    random.seed(1)
    assert train(tmp_path / "broken", 3) + train(tmp_path / "broken", 6) == unbroken


class WithExtraState(nn.Module):
    """A module with a value that is no tensor, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.note = nn.Linear(3, 3), nn.Linear(3, 3), "new"
        self.second.weight = self.first.weight

    def get_extra_state(self) -> str:
        return self.note

    def set_extra_state(self, state: str) -> None:
        self.note = state


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, in torch.compile
def test_values_that_are_no_tensors_and_tied_weights_are_restored(tmp_path: Path) -> None:
    model = WithExtraState()
    model.note = "a longer text than before"
    saver = hpc_kit.Checkpointer(tmp_path)
    saver.restore(model=torch.compile(model))
    saver.save(0)
    saver.close()
    again = WithExtraState()
    hpc_kit.Checkpointer(tmp_path, report=str).restore(model=again)
    assert again.note == model.note
    assert torch.equal(again.second.weight, model.first.weight)
    assert again.second.weight is again.first.weight


def test_stages_of_a_pipeline_need_the_names_of_the_whole_model(tmp_path: Path) -> None:
    whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    saver = hpc_kit.Checkpointer(tmp_path)
    with pytest.raises(SpecError, match=r"two modules of model have a parameter of the same name\n  found  weight"):
        saver.restore(model=[nn.Linear(2, 2), nn.Linear(2, 2)])
    stages = [nn.Sequential(), nn.Sequential()]
    for number, stage in enumerate(stages):
        stage.add_module(str(number), whole[number])
    saver.restore(model=stages)
    saver.save(0)
    saver.close()
    again = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    hpc_kit.Checkpointer(tmp_path, report=str).restore(model=again)
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), again.parameters(), strict=True))


def test_objects_that_cannot_be_saved_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    saver = hpc_kit.Checkpointer(tmp_path)
    with pytest.raises(SpecError, match="epoch has no state that can be saved"):
        saver.restore(model=model, epoch=3)
    with pytest.raises(SpecError, match="optimizer has a parameter of no module"):
        saver.restore(optimizer=torch.optim.SGD(model.parameters()))
    with pytest.raises(SpecError, match="there is nothing to save"):
        hpc_kit.Checkpointer(tmp_path / "new").step(0)


@pytest.mark.parametrize("arguments", [{"every": -1}, {"keep": 0}, {"agree_every": -2}])
def test_numbers_that_are_too_small_are_refused(arguments: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="too small"):
        hpc_kit.Checkpointer(tmp_path, **arguments)  # type: ignore[arg-type]


def test_a_folder_is_used_by_one_training_at_a_time(tmp_path: Path) -> None:
    first = Training(tmp_path)
    first.restore()
    with pytest.raises(SpecError, match="another training writes to this folder"):
        Training(tmp_path).restore()
    first.saver.close()
    Training(tmp_path).restore()


def test_a_second_attempt_prefers_its_own_checkpoints_to_the_given_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    Training(tmp_path / "old", every=3).run(3)
    for attempt, done in (("1", 3), ("2", 5), ("1", 3)):
        monkeypatch.setenv("HPC_KIT_ATTEMPT", attempt)
        training = Training(tmp_path / "new", resume=tmp_path / "old", every=5)
        assert training.restore() == done
        for step in range(done, 5):
            training.saver.step(step)
        training.saver.close()


@pytest.mark.parametrize("attempt", ["1", "2"])
def test_a_restart_without_a_checkpoint_prints_that_it_starts_over(
    attempt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_ATTEMPT", attempt)
    training = Training(tmp_path)
    assert training.restore() == 0
    note = f"note    restarted from the beginning: no checkpoint is in {tmp_path}"
    assert training.lines == ([note] if attempt == "2" else [])


def test_a_checkpoint_to_resume_from_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"there is no checkpoint\n  found  {tmp_path}/gone"):
        Training(tmp_path / "c", resume=tmp_path / "gone").restore()


def test_other_options_are_reported(tmp_path: Path) -> None:
    Training(tmp_path, every=1, options={"steps": 5, "lr": 0.1}).run(1)
    training = Training(tmp_path, options={"steps": 9, "lr": 0.1})
    training.restore()
    assert training.lines[1] == "note    the checkpoint was made with --steps 5: an unbroken training would differ"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("bf16", "True", "--bf16"), ("bf16", "False", "--bf16 not given"), ("data", "None", "--data not given"),
     ("global_batch", "8", "--global-batch 8")],
)  # fmt: skip
def test_an_option_is_printed_as_given(name: str, value: str, words: str) -> None:
    assert format_option(name, value) == words


def test_a_lead_that_is_shorter_than_the_last_saves_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_RESTART_LEAD", "60")
    Training(tmp_path, every=1).run(1)
    quick = Training(tmp_path)
    quick.restore()
    assert len(quick.lines) == 1
    quick.saver.close()
    info = tmp_path / "step-1" / checkpoint_folder.INFO_FILE
    saved = checkpoint_folder.read_info(tmp_path / "step-1")
    assert isinstance(saved, dict)
    info.write_text(info.read_text().replace(f'"seconds": {saved["seconds"]}', '"seconds": 80.0'))
    slow = Training(tmp_path)
    slow.restore()
    assert slow.lines[1].startswith(
        "warning: the lead may be too short for a save\n  found  a stop takes up to 120 s: "
    )
    assert slow.lines[1].endswith("\n  do     set lead = 181 in [restart]")


def test_a_lead_that_is_shorter_than_a_step_is_reported_before_the_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_RESTART_LEAD", "60")
    monkeypatch.setattr(StopAgreement, "seconds_late", 100.0)
    slow = Training(tmp_path)
    slow.run(3)
    [warning] = slow.lines
    assert "a save takes 0 s, the ranks notice the signal after 100 s; the lead is 60 s" in warning
    assert warning.endswith("\n  do     set lead = 151 in [restart]")


def test_saves_that_take_much_of_the_time_are_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "_LONG_SAVE", 0.0)
    training = Training(tmp_path, every=2)
    training.run(8)
    notes = [line for line in training.lines if not line.startswith("saved ")]
    assert len(notes) == 1
    assert re.fullmatch(r"note    saves take \d+% of the time; use every=10 or asynchronous=True", notes[0])


def hide_from_second_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a host to each collective that sees nothing of what rank 0 writes."""

    def gather(value: object, _group: object = None) -> list[object]:
        is_answer = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], bool)
        return [value, ("n2", False)] if is_answer else [value]

    monkeypatch.setattr(checkpointer, "gather", gather)


def test_hosts_without_a_shared_folder_train_without_checkpoints_if_none_was_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_from_second_host(monkeypatch)
    training = Training(tmp_path / "c", is_required=False)
    assert training.restore() == 0
    assert training.lines == [f"note    no checkpoint: n2 cannot see {tmp_path}/c of rank 0"]
    training.saver.save(0)
    assert names(tmp_path / "c") == []


def test_a_folder_on_the_disk_of_one_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_from_second_host(monkeypatch)
    with pytest.raises(SpecError, match="the hosts do not share the folder of the checkpoints"):
        Training(tmp_path / "c").restore()
    assert names(tmp_path / "c") == []


def test_a_host_without_permission_to_the_folder_does_not_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def refuse_hidden_files(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{tmp_path}/."):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse_hidden_files)
    with pytest.raises(SpecError, match="the hosts do not share the folder of the checkpoints"):
        Training(tmp_path).restore()


def test_out_of_memory_is_not_reported_as_a_damaged_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Training(tmp_path, every=1).run(1)
    monkeypatch.setattr(torch.distributed.checkpoint.state_dict_loader, "load", raiser(torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError):
        Training(tmp_path).restore()


def test_the_handler_that_was_there_before_comes_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with hpc_kit.Checkpointer(tmp_path):
        assert signal.getsignal(signal.SIGUSR1) is not before
    assert signal.getsignal(signal.SIGUSR1) is before
