"""Job and cluster files: found, put together, typed; every fault named with file, key, value and the edit to make."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.spec import load
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.secrets import find_secrets, looks_secret, mask_arguments, mask_text, may_be_secret

MINIMAL = 'command = ["python", "train.py"]\n'


def write(project: Path, text: str, name: str = "mine") -> None:
    (project / "jobs" / f"{name}.toml").write_text(text)


def resolved(project: Path, job: str = "mine", cluster: str = "local", **settings: Any) -> Resolved:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return resolve(load.load(job, cluster, set=changes, root=project), root=project)


def error_of(project: Path, text: str, cluster: str = "local", **settings: Any) -> str:
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


@pytest.mark.parametrize("job", ["net.v2", "jobs/net.v2.toml"])
@pytest.mark.parametrize("cluster", ["site.a", "env/site.a.toml"])
def test_a_file_gives_its_whole_name(project: Path, job: str, cluster: str) -> None:
    write(project, MINIMAL, "net.v2")
    (project / "env" / "site.a.toml").write_text("")
    loaded = load.load(job, cluster, root=project)
    assert (loaded.job.name, loaded.cluster.name) == ("net.v2", "site.a")
    assert (load.load_job(job, root=project).name, load.load_cluster(cluster, root=project).name) == (
        "net.v2",
        "site.a",
    )


def test_set_has_priority_over_the_job_and_the_job_over_the_cluster(project: Path) -> None:
    (project / "env" / "c.toml").write_text('[defaults]\ntime = "1:00:00"\npartition = "a"\nqos = "low"\n')
    write(project, MINIMAL + '[resources]\npartition = "b"\nqos = "mid"\n')
    given = resolved(project, cluster="c", resources__qos="high").job.resources.given()
    assert (given["time"], given["partition"], given["qos"]) == ("1:00:00", "b", "high")


def test_a_memory_option_of_the_job_replaces_any_of_the_cluster(project: Path) -> None:
    (project / "env" / "c.toml").write_text('[defaults]\nmem = "100G"\n')
    write(project, MINIMAL + '[resources]\nmem_per_cpu = "2G"\n')
    assert resolved(project, cluster="c").job.resources.mem is None


def test_extends_inherits_all_but_name_and_description(project: Path) -> None:
    write(project, 'name = "b"\ndescription = "base"\n' + MINIMAL + "[resources]\nnodes = 2\ntime = 90\n", "base")
    write(project, 'extends = "base"\n[resources]\nnodes = 4\n')
    job = resolved(project).job
    assert (job.name, job.description, job.resources.nodes, job.resources.time) == ("mine", "", 4, 90)


def test_extends_in_a_circle_is_refused(project: Path) -> None:
    write(project, 'extends = "mine"\n', "other")
    assert "extends itself" in error_of(project, 'extends = "other"\n')


def test_a_users_file_hides_the_shipped_one(project: Path) -> None:
    write(project, MINIMAL, "ddp_4node")
    assert resolved(project, "ddp_4node").nodes == 1


def test_an_unknown_job_suggests_a_near_one(project: Path) -> None:
    with pytest.raises(SpecError, match="no job file 'ddp_4nod'") as caught:
        resolved(project, "ddp_4nod")
    assert (caught.value.remedy or "").startswith("did you mean ddp_4node")


def test_a_notebook_instead_of_a_job_names_the_command_that_converts_it(project: Path) -> None:
    with pytest.raises(SpecError, match=r"'train\.ipynb' is a notebook, and no job file") as caught:
        resolved(project, "train.ipynb")
    assert caught.value.remedy == (
        "convert it to a program first:  jupyter nbconvert --to python train.ipynb\n"
        "then  hpc-kit submit -j 4x2 -- python train.py"
    )


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
        ('[resources]\nnodes = "two"\n', ("nodes = 'two'", "line 3", "such as 4")),
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
        ('[launch]\noutput = "a\\tb"\n', ("wrong value for output", "it contains control characters")),
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
        ("[restart]\nexit_codes = 99\n", ("write a list: exit_codes = [99]",)),
        ("nodes = \n", ("jobs/mine.toml is not TOML", "line 2")),
    ],
)
def test_an_error_names_file_line_value_and_remedy(project: Path, text: str, expected: tuple[str, ...]) -> None:
    message = error_of(project, MINIMAL + text)
    for part in expected:
        assert part in message


def test_the_remedy_splits_a_command_given_as_one_string(project: Path) -> None:
    assert 'do     write a list: command = ["python", "t.py"]' in error_of(project, 'command = "python t.py"\n')


def test_a_job_without_a_command_is_refused(project: Path) -> None:
    assert "has no command" in error_of(project, "[resources]\nnodes = 2\n")


def test_an_unquoted_time_of_toml_is_read_as_slurms(project: Path) -> None:
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
def test_set_keeps_text_for_a_key_of_text(project: Path, key: str, text: str, value: object) -> None:
    write(project, MINIMAL)
    assert getattr(load.load_job("mine", set={key: text}, root=project).resources, key.partition(".")[2]) == value


def test_gpu_options_are_ignored_with_a_note_without_gpus(project: Path) -> None:
    write(project, MINIMAL + '[resources]\ngpus_per_task = 1\ngres = "gpu:a100:2"\n')
    job = resolved(project)
    assert not {"gpus_per_task", "gres"} & job.job.resources.given().keys()
    assert job.notes == (
        "ignoring --gpus-per-task=1 because cluster 'local' has no GPUs",
        "ignoring --gres=gpu:a100:2 because cluster 'local' has no GPUs",
    )


def test_uneven_tasks_are_kept(project: Path) -> None:
    write(project, MINIMAL + "[resources]\nnodes = 3\nntasks = 7\n")
    job = resolved(project)
    assert (job.ntasks, job.world_size, job.job.resources.ntasks_per_node) == (7, 7, None)


def test_with_torchrun_ranks_are_counted_by_agents(project: Path) -> None:
    write(project, MINIMAL + '[resources]\nnodes = 4\n[launch]\nlauncher = "torchrun"\nnproc_per_node = 2\n')
    job = resolved(project)
    assert (job.ntasks, job.world_size) == (4, 8)


def test_a_time_in_a_list_is_text(project: Path) -> None:
    text = 'command = ["python", 02:00:00, 2026-01-01]\n[resources]\nnodes = 1\n'
    write(project, text)
    assert resolved(project).job.command == ("python", "02:00:00", "2026-01-01")
    assert "unknown key 'when'" in error_of(project, "when = [02:00:00]\n" + text)


def test_an_error_names_a_cluster_setting_as_given(project: Path) -> None:
    assert "unknown key 'nodes' in --set cluster.nodes" in error_of(project, MINIMAL, cluster__nodes=3)


def test_a_cluster_key_in_set_names_the_key_with_its_table(project: Path) -> None:
    assert "write --set cluster.runs=/scratch" in error_of(project, MINIMAL, runs="/scratch")
    assert "write --set resources.nodes=3" in error_of(project, MINIMAL, nodes=3)


def test_a_byte_order_mark_is_ignored(project: Path) -> None:
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
def test_set_keeps_the_text_of_a_variable(project: Path, text: str) -> None:
    write(project, MINIMAL)
    assert str(load.load_job("mine", set={"env.LR": text}, root=project).env["LR"]) == text


def test_extends_cannot_be_set(project: Path) -> None:
    write(project, MINIMAL, "base")
    assert "extends is not allowed in --set extends" in error_of(project, MINIMAL, extends="base")


def test_a_missing_base_names_the_file_that_extends_it(project: Path) -> None:
    write(project, '\nextends = "gone"\n', "middle")
    message = error_of(project, 'extends = "middle"\n')
    assert "no job file 'gone', named in jobs/middle.toml, line 2" in message


def test_a_missing_template_names_the_file_that_uses_it(project: Path) -> None:
    message = error_of(project, MINIMAL + 'template = "gone"\n')
    assert "no template 'gone', named in jobs/mine.toml, line 2" in message


def test_a_base_next_to_the_file_is_found_by_its_file_name(project: Path) -> None:
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
    assert "extends itself" in error_of(project, 'extends = "mine"\n')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abc"),
        ("MYAPIKEY", "abc"),
        ("DB_PWD", "abc"),
        ("GITHUB_PAT", "abc"),
        ("WANDB_API_KEY", "0123456789abcdef0123"),
        ("HUB_AUTH", "tk_0a1b2c3d4e5f"),
        ("SMTP_PASS", "first"),
        ("TOKEN", "a1b2c3d4e5f6a7b8"),
        ("ANYTHING", f"hf_{'a1' * 17}"),
        ("AWS_SECRET_ACCESS_KEY", "abc"),
        ("HFTOKEN", "abc"),
        ("DB_PASS", "abc"),
        ("HF_AUTH", "abc"),
        ("DATABASE_URL", "pg://u:hunter2@db/x"),
        ("STORE_CONNECTION_STRING", "AccountKey=abc"),
        ("ANYTHING", "redis://:hunter2@db"),
        ("SLACK_TOKEN", "abc"),
        ("PRIVATE_KEY", "abc"),
        ("BASIC_AUTH", "me:abc"),
        ("DOCKER_PASS", "first"),
        ("ANYTHING", f"AIza{'a1b2c' * 7}"),
        ("MODEL_KEY", "sk-abc123"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(project: Path, name: str, value: str) -> None:
    for text in (f'[env]\n{name} = "{value}"\n', f'setup = ["module load a", "export {name}={value}"]\n'):
        message = error_of(project, MINIMAL + text)
        assert f"{name} in jobs/mine.toml, line" in message
        assert value not in message.replace(name, "")
    message = error_of(project, MINIMAL, **{f"env.{name}": value})
    assert f"{name} in --set env.{name} looks like a secret" in message
    assert value not in message.replace(name, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_TOKENS", "4k"),
        ("TOKEN_LIMIT", "512"),
        ("TOKENIZER", "bpe"),
        ("OLDPWD", "/a"),
        ("HF_TOKEN_PATH", "/a"),
        ("DATABASE_URL", "sqlite:///data.db"),
        ("SSH_AUTH_SOCK", "/tmp/agent"),
        ("DOCS", "https://a.b/c@d"),
        ("EVAL_PASS", "first"),
        ("N_PASS", "first"),
        ("MUNGE_AUTH", "munge"),
        ("PAD_TOKEN", "token_endoftext_50256"),
        ("SORT_KEY", "column_name_2024_abc"),
        ("CACHE_KEY", "linux-py311-cu124-torch26"),
        ("USE_AUTH_TOKEN", "always"),
        ("HF_AUTH_TOKEN", "false"),
        ("OPENAI_API_KEY", "EMPTY"),
        ("VLLM_API_KEY", "token-abc123"),
        ("DATABASE_URL", "pg://me@db/x"),
        ("PRIVATE_KEY", "keys/deploy"),
        ("EOS_TOKEN", "token1_a1b2c3d4e5f6a7b8"),
    ],
)
def test_a_value_that_is_no_secret_is_accepted(project: Path, name: str, value: str) -> None:
    setup = f'setup = ["export HF_TOKEN=$(<token)", "export {name}={value}"]'
    write(project, MINIMAL + f'{setup}\n[env]\n{name} = "{value}"\n')
    assert resolved(project).job.env[name] == value


@pytest.mark.parametrize("value", ["hunter2", "s3cr3t", "Xy7!kq"])
def test_a_short_value_behind_an_unsure_name_gets_a_note(project: Path, value: str) -> None:
    plain = 'SORT_KEY = "a1"\nMAX_TOKEN = "4k"\nEOS_TOKEN = "x01"\n'
    write(project, MINIMAL + f'[env]\nMY_TOKEN = "{value}"\n{plain}')
    assert [note for note in resolved(project).notes if "secret" in note] == [
        "[env] MY_TOKEN may be a secret: script and record contain it; export it in the shell that submits"
    ]


def test_one_note_names_all_that_may_be_secrets(project: Path) -> None:
    write(project, MINIMAL + '[env]\nMY_TOKEN = "hunter2"\nEVAL_PASS = "abc12"\n')
    command = ["python", "train.py", "--token", "llama3", "--key-frames", "24fps", "--auth", "x1"]
    assert [note.partition(":")[0] for note in resolved(project, command=command).notes if "secret" in note] == [
        "[env] MY_TOKEN, EVAL_PASS may be secrets",
        "--token, --auth may be secrets",
    ]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--api-key=abc123"], "--api-key"),
        (["--password", "hunter2"], "--password"),
        (["--wandb_api_key", "abc"], "--wandb_api_key"),
        (["--db", "pg://me:hunter2@db/x"], "a URL"),
        (["trainer.secret=abc"], "trainer.secret"),
        (["--token", "abcdefgh12345678"], "--token"),
        (["--api-key=sk-abc123def456ghi"], "--api-key"),
        (["--api-key", "abc"], "--api-key"),
        (["--password", "hunter22x"], "--password"),
        (["--db-pass", "first"], "--db-pass"),
        (["--auth-token", "abc"], "--auth-token"),
        (["--set", "env.DB_PASS=first"], "env.DB_PASS"),
        (["login", f"ghp_{'a1' * 17}"], "a token"),
        (["--connection-string=AccountKey=abc"], "--connection-string"),
        (["bash", "-c", "cd x; DB_PASSWORD=hunter2 python t.py"], "DB_PASSWORD"),
        (["bash", "-c", "python t.py --api-key 'abc12'"], "--api-key"),
        (["env", "API_KEY=abc", "python"], "API_KEY"),
        (["curl", "-H", "Authorization: Bearer abcdef123"], "a header"),
        (["--key=sk-abc123"], "--key"),
        (["login", f"eyJ{'a1' * 9}.eyJ{'b2' * 9}.{'c3' * 9}"], "a token"),
        (["-c", "db.password=hunter2"], "db.password"),
        (["+db.password=hunter2"], "+db.password"),
        (["--secret-key", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzz1zzzKEY"], "--secret-key"),
        (["--key", "a1b2c3d4" * 5], "--key"),
        (["bash", "-c", f"wandb login {'a1b2c3d4' * 5}"], "a token"),
        (["bash", "-c", f"wandb login --relogin {'a1b2c3d4' * 5}"], "the login of wandb"),
        (["bash", "-c", "curl -sSu bob:hunter2 https://host/x"], "the login of curl"),
        (["bash", "-c", "/usr/bin/mysql -phunter2 db < x"], "the login of mysql"),
        (["bash", "-c", "sshpass -p hunter2 ssh host"], "the login of sshpass"),
    ],
)
def test_a_secret_argument_is_refused_and_not_repeated(project: Path, words: list[str], name: str) -> None:
    message = error_of(project, MINIMAL, command=["python", "train.py", *words])
    assert f"{name} in --set command looks like a secret" in message
    assert words[-1].rpartition("=")[2] not in message.replace(name, "")


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "100"],
        ["--pad-token", "[PAD]"],
        ["--tokenizer=gpt2"],
        ["--password-file", "/home/me/.pw"],
        ["--password", "$DB_PASSWORD"],
        ["--key", "loss"],
        ["--api-key", "--verbose"],
        ["--data", "https://host/path@v2"],
        ["--token-dropout=0.1"],
        ["--db-url", "pg://me@db/x"],
        ["--pass", "3"],
        ["--num-pass", "3"],
        ["--use-auth-token", "1"],
        ["--no-password", "data"],
        ["--ask-password", "train.py"],
        ["--use-secrets", "train.py"],
        ["--auth-token", "yes"],
        ["--hub-token-required", "always"],
        ["--secret-santa", "bob"],
        ["data.image_key=observation_images_top0"],
        ["--key", "train_images_256x256_v1"],
        ["--text-key", "completion_text_v1_0"],
        ["--pad-token", "token_endoftext_50256"],
        ["--vocab-special-token=x01"],
        ["--set", "env.EVAL_PASS=first"],
        ["--config", "sk-learn-random-forest-baseline-with-long-name"],
        ["--author", "bob1"],
        ["--tokens-per-step", "4096a"],
        ["--tokenizer", "gpt2"],
        ["--max-tokens", "4k1"],
        ["--key-bindings", "vim2-a1b2c3d4e5f6a7b8"],
        ["--auto", "x1"],
        ["--auth", "munge"],
        ["--dsn", "localhost:5432"],
        ["--key", "loss1"],
        ["--model-key", "hf_llama2_7b"],
        ["--prompt", "don't stop: token = 1 and key = x"],
        ["model.key=resnet50.a1_in1k"],
        ["--model-key", "vit_base_patch16_224.augreg2_in21k_ft_in1k"],
        ["--model-key", "vit_base_patch16_224_augreg2_in21k_ft_in1k"],
        ["--s3-key", "datasets/imagenet/v1/train_0001.tar"],
        ["--key", "data/train-00001-of-00010.parquet"],
        ["--keys", "img_0a1b,img_1a2b"],
        ["--cache-key", "2024-05-01T12:00:00"],
        ["--private-key", "keys/deploy.pem"],
        ["--api-key", "OPENAI_API_KEY"],
        ["--api-key", "EMPTY"],
        ["--password", "prompt"],
        ["--public-key", "AAAAB3NzaC1yc2EAAAADAQABAAABgQC7a1b2c3d4"],
        ["--token", "meta-llama/Llama-3.1-8B"],
        ["--key-frames", "24fps"],
        ["--pass", "2nd"],
        ["bash", "-c", "curl -u bob:$PW https://host; mysql -p db; docker run -u 1000:1000 x"],
        ["--backend", "mysql", "-port", "3306"],
    ],
)
def test_an_argument_that_is_no_secret_is_accepted(project: Path, words: list[str]) -> None:
    write(project, MINIMAL)
    loaded = resolved(project, command=["python", "train.py", *words])
    assert loaded.job.command[-len(words) :] == tuple(words)
    assert not [note for note in loaded.notes if "secret" in note]
    assert mask_arguments(words) == words


@pytest.mark.parametrize(
    ("words", "name", "masked"),
    [
        (["--connection-string=X"], "--connection-string", ["--connection-string=***"]),
        (["--auth", "X"], "--auth", ["--auth", "***"]),
        (["--token", "llama3"], "--token", ["--token", "***"]),
        (["--my-token", "hunter2"], "--my-token", ["--my-token", "***"]),
        (["bash", "-c", "TOKEN=X"], "TOKEN", ["bash", "-c", "TOKEN=***"]),
        (["env", "TOKEN=X", "python"], "TOKEN", ["env", "TOKEN=***", "python"]),
        (["bash", "-c", "TOKEN=X python X.py"], "TOKEN", ["bash", "-c", "TOKEN=*** python X.py"]),
        (["sh", "-c", "a; TOKEN='q r' b"], "TOKEN", ["sh", "-c", "a; TOKEN='***' b"]),
    ],
)
def test_an_argument_that_may_be_a_secret_gets_a_note_and_a_mask(
    project: Path, words: list[str], name: str, masked: list[str]
) -> None:
    write(project, MINIMAL)
    notes = resolved(project, command=["python", "train.py", *words]).notes
    assert [note.partition(":")[0] for note in notes if "secret" in note] == [f"{name} may be a secret"]
    assert mask_arguments(words) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("+key='sk-abc123'", "+key='***'"),
        ("+    wandb_key = 'HASH'", "+    wandb_key = '***'"),
        ("+API_KEY=hunter2abc", "+API_KEY=***"),
        ("+commit = 'HASH'", "+commit = 'HASH'"),
        ("+image_key='observation_images_top0_left_camera_v2'", "+image_key='observation_images_top0_left_camera_v2'"),
        ("+hub_key='hf_llama2_7b'", "+hub_key='hf_llama2_7b'"),
        (
            "+BEGIN_KEY\n-----BEGIN RSA PRIVATE KEY-----\nab\n-----END",
            "+BEGIN_KEY\n-----BEGIN RSA PRIVATE KEY-----***-----END",
        ),
    ],
)
def test_a_patch_is_masked(text: str, masked: str) -> None:
    digest = "a1b2c3d4" * 5
    assert mask_text(text.replace("HASH", digest)) == masked.replace("HASH", digest)


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["/usr/bin/mysql", "-phunter2"], ["/usr/bin/mysql", "-p***"]),
        (["curl", "--user=bob:hunter2"], ["curl", "--user=bob:***"]),
        (["wandb", "login", "a1b2c3d4" * 5], ["wandb", "login", "***"]),
        (["sshpass", "-p", "hunter2", "ssh"], ["sshpass", "-p", "***", "ssh"]),
        (["bash", "-c", "mysql -phunter2"], ["bash", "-c", "***"]),
    ],
)
def test_logins_are_masked(words: list[str], masked: list[str]) -> None:
    assert mask_arguments(words) == masked


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["eyJ-", "eyJa.", "sk-", "SG.", "--a", "a:", "a://", "key='", "api-key ", "a1/", "KEY1_"]
)
def test_a_long_text_is_searched_in_linear_time(part: str) -> None:
    text = part * (100_000 // len(part))
    start = time.process_time()
    mask_text(text)
    list(find_secrets(["curl", "--token", text]))
    for name in ("API_KEY", "KEY", "DB_URL"):
        looks_secret(name, text)
        may_be_secret(name, text)
    assert time.process_time() - start < 5


def test_too_much_memory_names_the_file_of_the_cluster(project: Path) -> None:
    (project / "env" / "c.toml").write_text('[node]\nmem = "480 GB"\n')
    message = error_of(project, MINIMAL, cluster="c")
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
def test_an_alternative_option_replaces_the_inherited_one(
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


def test_an_option_missing_from_the_release_is_refused(project: Path) -> None:
    output = error_of(
        project, MINIMAL + '[resources]\ntres_per_task = "gres/gpu:1"\n', cluster__slurm_version="22.05.8"
    )
    assert "--tres-per-task is not in Slurm 22.05.8" in output
    assert "and 23.11 added it" in output
    output = error_of(project, MINIMAL + '[resources]\nrequeue = "expedite"\n', cluster__slurm_version="24.11")
    assert "--requeue=expedite is not in Slurm 24.11" in output
    write(project, MINIMAL + '[resources]\nrequeue = "expedite"\n')
    assert resolved(project, cluster__slurm_version="25.11").job.resources.requeue == "expedite"
    assert "wrong value for slurm_version" in error_of(project, MINIMAL, cluster__slurm_version="new")


SITE = """
slurm = "system"
setup = ["module load base"]
[defaults]
account = "physics"
partition = "cpu"
[node]
cpus = 64
[env]
SITE = "x"
[partition.gpu]
setup = ["module load cuda"]
defaults.gpus_per_node = 4
cpus = 32
gpus = 4
env.KIND = "gpu"
[partition.cpu]
gpus = 0
"""


def site(project: Path, **settings: Any) -> load.LoadedJob:
    (project / "jobs/mine.toml").write_text(MINIMAL)
    return load.load("mine", settings.pop("cluster", "site"), set=settings, root=project)


def test_one_cluster_file_describes_the_nodes_of_each_partition(project: Path) -> None:
    (project / "env/site.toml").write_text(SITE)
    cpu = site(project).cluster.for_partition("cpu")
    gpu = site(project, **{"resources.partition": "gpu"}).cluster.for_partition("gpu")
    assert (cpu.node.cpus, cpu.node.gpus, cpu.defaults.gpus_per_node) == (64, 0, None)
    assert (gpu.node.cpus, gpu.node.gpus, str(gpu.defaults.gpus_per_node)) == (32, 4, "4")
    assert (gpu.defaults.account, gpu.env, gpu.setup) == (
        "physics",
        {"SITE": "x", "KIND": "gpu"},
        ("module load cuda",),
    )
    other = site(project, **{"resources.partition": "long", "cluster.node.cpus": "8"}).cluster.for_partition("long")
    assert (other.node.cpus, other.node.gpus) == (8, None)


def test_a_cluster_file_may_extend_another(project: Path) -> None:
    (project / "env/site.toml").write_text(SITE)
    (project / "env/mine.toml").write_text('extends = "site"\n[defaults]\npartition = "gpu"\n')
    loaded = site(project, cluster="mine")
    assert (loaded.cluster.name, loaded.cluster.node.cpus, loaded.cluster.defaults.account) == ("mine", 64, "physics")
    assert loaded.sources[-2:] == ("env/mine.toml", "env/site.toml")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('extends = "mine"\n', "env/mine.toml extends itself"),
        ("[partition.gpu]\ncpuz = 3\n", r"unknown key 'cpuz' in \[partition.gpu\] of env/mine.toml"),
        ("[partition.gpu]\ncpus = 'x'\n", "wrong value for cpus in .*gpu"),
        ("extends = 3\n", "wrong value for extends"),
    ],
)
def test_a_wrong_partition_or_extends_of_a_cluster_is_refused(project: Path, text: str, error: str) -> None:
    (project / "env/mine.toml").write_text(text)
    with pytest.raises(SpecError, match=error):
        site(project, cluster="mine")


@pytest.mark.parametrize(("text", "found", "remedy"), [
    ("[999]", "[999]", "a whole number, at most 255"), ('["a"]', '["a"]', "a whole number"),
    ("99", "99", "a list: exit_codes = [99]"), ("x", '"x"', "a list"),
])  # fmt: skip
def test_an_error_names_the_set_value_as_it_was_meant(project: Path, text: str, found: str, remedy: str) -> None:
    message = error_of(project, MINIMAL, restart__exit_codes=text)
    assert message.endswith(f"found  exit_codes = {found}\n  do     write {remedy}")


@pytest.mark.parametrize(
    ("partition", "notes"),
    [
        ("gpx", ["has no [partition.gpx]; the settings of the whole file apply; did you mean gpu?"]),
        ("gpu,cpu", ["Slurm chooses one later; the settings of the whole file apply, not [partition.gpu]"]),
        ("gpu", []),
        ("cpu,long", []),
    ],
)
def test_a_partition_without_a_table_and_a_list_of_partitions_get_a_note(
    project: Path, partition: str, notes: list[str]
) -> None:
    tables = '[partition.gpu]\nsetup = ["module load cuda"]\n[partition.cpu]\n[partition.long]\nmax_time = "7-0"\n'
    (project / "env" / "mine.toml").write_text(f'slurm = "system"\n{tables}')
    write(project, MINIMAL)
    found = [
        note for note in resolved(project, cluster="mine", resources__partition=partition).notes if "partition" in note
    ]
    assert len(found) == len(notes)
    assert all(note.endswith(end) for note, end in zip(found, notes, strict=True))
