"""Job and cluster files: found, put together, typed; every fault named with file, key, value and the edit to make."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.spec import load
from hpc_kit.spec.resolve import Resolved, resolve

MINIMAL = 'command = ["python", "train.py"]\n'


def write(project: Path, text: str, name: str = "mine") -> None:
    (project / "jobs" / f"{name}.toml").write_text(text)


def resolved(project: Path, job: str = "mine", cluster: str = "local", **settings: Any) -> Resolved:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return resolve(load.load(job, cluster, set=changes, root=project), root=project)


def fault(project: Path, text: str, cluster: str = "local", **settings: Any) -> str:
    write(project, text)
    with pytest.raises(SpecError) as caught:
        resolved(project, cluster=cluster, **settings)
    assert caught.value.remedy, "every fault says what to do"
    return str(caught.value)


def test_a_job_file_needs_only_a_command(project: Path) -> None:
    write(project, MINIMAL)
    job = resolved(project)
    assert (job.job.name, job.nodes, job.ntasks, job.world_size) == ("mine", 1, 1, 1)
    assert job.job.resources.ntasks_per_node == 1
    assert job.job.resources.cpus_per_task == 1


def test_later_wins_cluster_then_job_then_set(project: Path) -> None:
    (project / "env" / "c.toml").write_text('[defaults]\ntime = "1:00:00"\npartition = "a"\nqos = "low"\n')
    write(project, MINIMAL + '[resources]\npartition = "b"\nqos = "mid"\n')
    given = resolved(project, cluster="c", resources__qos="high").job.resources.given()
    assert (given["time"], given["partition"], given["qos"]) == ("1:00:00", "b", "high")


def test_a_jobs_memory_option_puts_the_clusters_other_one_aside(project: Path) -> None:
    (project / "env" / "c.toml").write_text('[defaults]\nmem = "100G"\n')
    write(project, MINIMAL + '[resources]\nmem_per_cpu = "2G"\n')
    assert resolved(project, cluster="c").job.resources.mem is None


def test_extends_takes_all_but_name_and_description(project: Path) -> None:
    write(project, 'name = "b"\ndescription = "base"\n' + MINIMAL + "[resources]\nnodes = 2\ntime = 90\n", "base")
    write(project, 'extends = "base"\n[resources]\nnodes = 4\n')
    job = resolved(project).job
    assert (job.name, job.description, job.resources.nodes, job.resources.time) == ("mine", "", 4, 90)


def test_extends_in_a_circle_is_refused(project: Path) -> None:
    write(project, 'extends = "mine"\n', "other")
    assert "extends itself" in fault(project, 'extends = "other"\n')


def test_a_users_file_hides_the_shipped_one(project: Path) -> None:
    write(project, MINIMAL, "ddp_4node")
    assert resolved(project, "ddp_4node").nodes == 1


def test_an_unknown_job_names_the_near_one(project: Path) -> None:
    with pytest.raises(SpecError, match="no job file 'ddp_4nod'") as caught:
        resolved(project, "ddp_4nod")
    assert (caught.value.remedy or "").startswith("ddp_4node")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[resources]\nntask_per_node = 2\n",
            ("unknown key 'ntask_per_node' in jobs/mine.toml, line 3", "ntasks_per_node"),
        ),
        ("[resources]\nntasks-per-node = 2\n", ("unknown key 'ntasks-per-node'", "do     write ntasks_per_node")),
        ("nodes = 2\n", ("unknown key 'nodes' in jobs/mine.toml, line 2", "move it to [resources]")),
        ("[resorces]\nnodes = 2\n", ("unknown key 'resorces'", "resources")),
        ("[resources]\nnodes = -2\n", ("resources.nodes in jobs/mine.toml, line 3", "nodes = -2", "at least 1")),
        ('[resources]\nnodes = "two"\n', ("nodes = 'two'", "line 3", "write 4")),
        ('[resources]\nnodes = "2-4"\n', ("exact number of nodes", "nodes = '2-4'")),
        ("[resources]\nnodes = [2]\n", ("nodes = [2]", "a whole number")),
        ("[resources]\nrequeue = 1\n", ("requeue = 1", "true or false")),
        ('[resources]\ntime = "2h30"\n', ("time = '2h30'", "line 3")),
        ('[resources]\nmem = "lots"\n', ("mem = 'lots'", "line 3")),
        ('[resources]\nsignal = "USR9@x"\n', ("signal = 'USR9@x'",)),
        ('[resources]\nmem = "1G"\nmem_per_cpu = "1G"\n', ("mem and mem_per_cpu exclude one another",)),
        ('[resources]\ncomment = "a\\nb"\n', ("comment in jobs/mine.toml, line 3 holds a line break",)),
        ("[resources]\nnodes = 2\nntasks_per_node = 2\nntasks = 5\n", ("2 nodes x 2 tasks = 4; ntasks = 5",)),
        ("[resources]\nnodes = 2\n[layout]\ndp = 3\n", ("line 5 [layout]: dp 3 = 3 ranks", "dp = 2")),
        ("[resources]\nnodes = 2\n[layout]\ntp = 3\n", ("the layout does not fill the job",)),
        ('[launch]\nlauncher = "mpi"\n', ('launcher = "mpi"', '"srun" or "torchrun"')),
        ('[launch]\nlauncher = "torchrun"\n[resources]\nntasks_per_node = 2\n', ("nproc_per_node = 2",)),
        ("[launch]\nnproc_per_node = 2\n", ("only torchrun and Ray have nproc_per_node", "ntasks_per_node = 2")),
        (
            '[launch]\nlauncher = "mpirun"\noutput = "ranks/%t"\n',
            ("mpirun's ranks write logs of their own", "output = 'ranks/%t' in jobs/mine.toml, line 4", "rank-0.log"),
        ),
        ('[launch]\nlauncher = "torchrun"\nerror = "x"\n', ("torchrun's ranks write logs", "leave error out")),
        ('[launch]\nbackend = "nccl"\n', ("nccl needs GPUs", "backend = 'auto'")),
        ("[resources]\ncpus_per_task = 9\n", ("a node of local has 8", "cpus_per_task = 8")),
        (
            '[resources]\noutput = "~/x/%j.log"\n',
            ("wrong value for output in jobs/mine.toml, line 3", "not expanded"),
        ),
        ('[resources]\nchdir = "$HOME"\n', ("wrong value for chdir", "'~' and '$' have no meaning")),
        ('[resources]\nerror = "logs/"\n', ("error = 'logs/': it is a folder", "logs/%j.log")),
        ('[resources]\noutput = "/"\n', ("output = '/': it is a folder",)),
        ('[launch]\noutput = "~/%t.log"\n', ("wrong value for output in jobs/mine.toml, line 3",)),
        ('[env]\nWANDB_API_KEY = "x"\n', ("WANDB_API_KEY", "looks like a secret", "0600")),
        ('[env]\n"no-name" = "x"\n', ("'no-name' cannot name a variable",)),
        ("[env]\nA = true\n", ("env.A", "text in quotes")),
        ('name = "a/b"\n', ("'a/b' cannot name a job",)),
        ('name = "a\\nb"\n', ("'a\\nb' cannot name a job",)),
        ("[resources]\nzzz = 1\n", ("unknown key 'zzz'", "that `hpc-kit schema` lists")),
        ("[launch]\nzzz = 1\n", ("unknown key 'zzz'", "one of launcher, ")),
        ('setup = "module load cuda"\n', ('a list: setup = ["module load cuda"]',)),
        ("nodes = \n", ("jobs/mine.toml is not TOML", "line 2")),
    ],
)
def test_a_fault_names_place_value_and_edit(project: Path, text: str, expected: tuple[str, ...]) -> None:
    message = fault(project, MINIMAL + text)
    for part in expected:
        assert part in message


def test_a_command_in_one_text_is_taken_apart_in_the_remedy(project: Path) -> None:
    assert 'do     write a list: command = ["python", "t.py"]' in fault(project, 'command = "python t.py"\n')


def test_a_job_without_a_command_is_refused(project: Path) -> None:
    assert "has no command" in fault(project, "[resources]\nnodes = 2\n")


def test_unquoted_time_of_toml_is_taken_as_slurms(project: Path) -> None:
    write(project, MINIMAL + "[resources]\ntime = 02:00:00\n")
    assert resolved(project).job.resources.time == "02:00:00"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("resources.nodes", "2", 2),
        ("resources.time", "2:00:00", "2:00:00"),
        ("resources.comment", "2", "2"),
        ("resources.requeue", "true", True),
        ("resources.job_name", '"a b"', "a b"),
    ],
)
def test_set_takes_text_where_the_key_wants_text(project: Path, key: str, text: str, value: object) -> None:
    write(project, MINIMAL)
    assert getattr(load.load_job("mine", set={key: text}, root=project).resources, key.partition(".")[2]) == value


def test_gpu_options_are_left_out_and_said_so_where_there_is_no_gpu(project: Path) -> None:
    write(project, MINIMAL + '[resources]\ngpus_per_task = 1\ngres = "gpu:a100:2"\n')
    job = resolved(project)
    assert not {"gpus_per_task", "gres"} & job.job.resources.given().keys()
    assert job.notes == (
        "ignoring --gpus-per-task=1 because cluster 'local' has no GPUs",
        "ignoring --gres=gpu:a100:2 because cluster 'local' has no GPUs",
    )


def test_uneven_tasks_are_kept_as_they_are(project: Path) -> None:
    write(project, MINIMAL + "[resources]\nnodes = 3\nntasks = 7\n")
    job = resolved(project)
    assert (job.ntasks, job.world_size, job.job.resources.ntasks_per_node) == (7, 7, None)


def test_torchrun_counts_ranks_by_agents(project: Path) -> None:
    write(project, MINIMAL + '[resources]\nnodes = 4\n[launch]\nlauncher = "torchrun"\nnproc_per_node = 2\n')
    job = resolved(project)
    assert (job.ntasks, job.world_size) == (4, 8)


def test_a_time_in_a_list_is_text_too(project: Path) -> None:
    text = 'command = ["python", 02:00:00, 2026-01-01]\n[resources]\nnodes = 1\n'
    write(project, text)
    assert resolved(project).job.command == ("python", "02:00:00", "2026-01-01")
    assert "unknown key 'when'" in fault(project, "when = [02:00:00]\n" + text)


def test_a_setting_of_the_cluster_is_named_as_it_was_said(project: Path) -> None:
    assert "unknown key 'nodes' in --set cluster.nodes" in fault(project, MINIMAL, cluster__nodes=3)


def test_the_mark_of_another_editor_is_passed_over(project: Path) -> None:
    write(project, "\ufeff" + MINIMAL)
    assert resolved(project).job.command == ("python", "train.py")


def test_an_unreadable_file_is_one_clear_error(project: Path) -> None:
    (project / "jobs" / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"cannot read jobs/mine\.toml"):
        resolved(project)


def test_setting_a_table_and_its_key_is_refused(project: Path) -> None:
    write(project, MINIMAL)
    with pytest.raises(SpecError, match="already set"):
        load.load("mine", "local", set={"env.A": "1", "env.A.B": "2"}, root=project)


@pytest.mark.parametrize("text", ["1e5", "007", "1_000", "1.50", "true", "[1]", "a b", "0x10", "2"])
def test_set_leaves_a_variable_the_text_it_is(project: Path, text: str) -> None:
    write(project, MINIMAL)
    assert str(load.load_job("mine", set={"env.LR": text}, root=project).env["LR"]) == text


def test_extends_cannot_be_set(project: Path) -> None:
    write(project, MINIMAL, "base")
    assert "extends is not allowed in --set extends" in fault(project, MINIMAL, extends="base")


def test_a_missing_base_names_the_file_that_wants_it(project: Path) -> None:
    write(project, '\nextends = "gone"\n', "middle")
    message = fault(project, 'extends = "middle"\n')
    assert "no job file 'gone', named in jobs/middle.toml, line 2" in message


def test_a_missing_template_names_the_file_that_wants_it(project: Path) -> None:
    message = fault(project, MINIMAL + 'template = "gone"\n')
    assert "no template 'gone', named in jobs/mine.toml, line 2" in message


def test_a_base_beside_the_file_is_found_by_its_file_name(project: Path) -> None:
    (project / "jobs" / "deep").mkdir()
    write(project, MINIMAL + "[resources]\nnodes = 3\n", "deep/base")
    write(project, 'extends = "base.toml"\n', "deep/mine")
    assert resolved(project, "jobs/deep/mine.toml").nodes == 3


def test_a_users_file_may_extend_the_shipped_one_that_it_hides(project: Path) -> None:
    write(project, 'extends = "ddp_4node"\n[resources]\nntasks_per_node = 1\n', "ddp_4node")
    job = resolved(project, "ddp_4node")
    assert (job.nodes, job.ntasks, job.sources) == (
        4,
        4,
        ("jobs/ddp_4node.toml", "jobs/ddp_4node.toml", "jobs/ddp_1node.toml", "env/local.toml"),
    )


def test_a_file_that_only_extends_itself_is_refused(project: Path) -> None:
    assert "extends itself" in fault(project, 'extends = "mine"\n')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abc"),
        ("MYAPIKEY", "abc"),
        ("DB_PWD", "abc"),
        ("PAT", "abc"),
        ("AWS_SECRET_ACCESS_KEY", "abc"),
        ("HFTOKEN", "abc"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(project: Path, name: str, value: str) -> None:
    for text in (f'[env]\n{name} = "{value}"\n', f'setup = ["module load a", "export {name}={value}"]\n'):
        message = fault(project, MINIMAL + text)
        assert f"{name} in jobs/mine.toml, line" in message
        assert value not in message.replace(name, "")
    message = fault(project, MINIMAL, **{f"env.{name}": value})
    assert f"{name} in --set env.{name} looks like a secret" in message
    assert value not in message.replace(name, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [("MAX_TOKENS", "4k"), ("TOKEN_LIMIT", "512"), ("TOKENIZER", "bpe"), ("OLDPWD", "/a"), ("HF_TOKEN_PATH", "/a")],
)
def test_what_is_no_secret_is_taken(project: Path, name: str, value: str) -> None:
    write(project, MINIMAL + f'setup = ["export HF_TOKEN=$(<token)"]\n[env]\n{name} = "{value}"\n')
    assert resolved(project).job.env[name] == value


def test_the_memory_of_a_node_names_its_file(project: Path) -> None:
    (project / "env" / "c.toml").write_text('[node]\nmem = "480 GB"\n')
    message = fault(project, MINIMAL, cluster="c")
    assert "wrong value for node.mem in env/c.toml, line 2" in message
    assert "mem = '480 GB'" in message


@pytest.mark.parametrize(
    ("base", "own", "expected"),
    [
        ('mem = "4G"', 'mem_per_cpu = "1G"', {"mem_per_cpu": "1G"}),
        ('mem_per_gpu = "4G"', 'mem = "8G"', {"mem": "8G"}),
        ("requeue = true", "no_requeue = true", {"no_requeue": True}),
        ("gpus_per_task = 1", "gpus_per_node = 4", {"gpus_per_node": 4}),
        ('gres = "gpu:2,nvme:1"', "gpus = 8", {"gpus": 8}),
        ('gres = "nvme:1"', "gpus = 8", {"gpus": 8, "gres": "nvme:1"}),
        ('mem = "4G"', "time = 5", {"mem": "4G", "time": 5}),
        ('mem = "4G"', "requeue = false", {"mem": "4G"}),
    ],
)
def test_another_way_to_say_the_same_replaces_what_is_extended(
    project: Path, base: str, own: str, expected: dict[str, object]
) -> None:
    (project / "jobs/base.toml").write_text(f'command = ["true"]\n[resources]\n{base}\n')
    (project / "jobs/mine.toml").write_text(f'extends = "base"\n[resources]\n{own}\n')
    assert load.load_job("mine").resources.given() == expected
    name, _, value = own.partition(" = ")
    assert (
        load.load_job("base", set={f"resources.{name}": tomllib.loads(f"x = {value}")["x"]}).resources.given()
        == expected
    )


def test_what_a_clusters_release_lacks_is_refused(project: Path) -> None:
    told = fault(project, MINIMAL + '[resources]\ntres_per_task = "gres/gpu:1"\n', cluster__slurm_version="22.05.8")
    assert "--tres-per-task is not in Slurm 22.05.8" in told
    assert "and 23.11 added it" in told
    told = fault(project, MINIMAL + '[resources]\nrequeue = "expedite"\n', cluster__slurm_version="24.11")
    assert "--requeue=expedite is not in Slurm 24.11" in told
    write(project, MINIMAL + '[resources]\nrequeue = "expedite"\n')
    assert resolved(project, cluster__slurm_version="25.11").job.resources.requeue == "expedite"
    assert "wrong value for slurm_version" in fault(project, MINIMAL, cluster__slurm_version="new")
