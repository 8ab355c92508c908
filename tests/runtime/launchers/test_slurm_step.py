"""The srun step is read correctly, although several of Slurm's variables describe the job or another process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime import World, resolve
from hpc_kit.slurm import nodelist
from tests.runtime.launches import Environ, Step, captured_case


def summarize(world: World) -> tuple[int | str | None, ...]:
    return (world.rank, world.local_rank, world.world_size, world.local_world_size, world.node_rank, world.nnodes)


def batch_shell(**others: str) -> Environ:
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "n[5-6]",
        "SLURM_NTASKS": "8",
        "SLURM_TASKS_PER_NODE": "4(x2)",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": "0",
        "SLURMD_NODENAME": "n5",
    } | others


@given(
    tasks=st.lists(st.integers(1, 6), min_size=1, max_size=9),
    distribution=st.sampled_from(["block", "cyclic"]),
    first=st.integers(0, 3),
)
def test_every_rank_of_any_layout_has_its_values(tasks: list[int], distribution: str, first: int) -> None:
    job_hosts = tuple(f"gpu{number:03d}" for number in range(len(tasks) + first))
    step = Step.of(*tasks, distribution=distribution, hosts=job_hosts[first:])
    step = Step(step.placement, step.hosts, distribution, job_hosts=job_hosts)
    for rank, environ in enumerate(step.environs()):
        world, node = resolve(environ), step.placement[rank]
        local = step.placement[:rank].count(node)
        assert summarize(world) == (rank, local, sum(tasks), tasks[node], node, len(tasks))
        assert (world.launcher, world.master_addr) == ("slurm", job_hosts[first])
        assert (world.hosts, world.tasks_per_node) == (step.hosts, tuple(tasks))


@given(placement=st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_with_arbitrary_distribution_the_host_of_rank_0_is_unknown(placement: list[int]) -> None:
    nodes = {node: index for index, node in enumerate(sorted(set(placement)))}
    step = Step(tuple(nodes[node] for node in placement), tuple(f"n{node}" for node in sorted(nodes)), "arbitrary")
    first = step.hosts[step.placement[0]]
    for environ in step.environs():
        world = resolve(environ)
        assert world.master_addr in {first, None}
        assert first in world.hosts
        assert world.master_addr == first or len(step.hosts) > 2


@pytest.mark.parametrize("step_id", ["-5", "-6", "4294967290", "4294967291"])
def test_named_step_ids_are_no_steps(step_id: str) -> None:
    environ = Step.of(4, 4).environ(5) | {"SLURM_STEP_ID": step_id}
    assert resolve(environ).launcher == "single"


def test_the_batch_shell_is_one_process_and_not_rank_0_of_8() -> None:
    world = resolve(batch_shell())
    assert (summarize(world), world.launcher) == ((0, 0, 1, 1, 0, 1), "single")
    (warning,) = world.warnings
    assert warning.startswith("this job has 8 tasks (SLURM_NTASKS), and this is one process outside of any step: ")
    assert warning.endswith("put srun in front of the command")


def test_a_batch_shell_on_two_nodes_without_ntasks_gets_the_advice_to_use_srun() -> None:
    environ = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[5-6]"}
    assert resolve(environ).warnings[0].startswith("this job has 2 nodes (SLURM_JOB_NUM_NODES)")


def test_a_job_of_one_task_needs_no_srun() -> None:
    environ = batch_shell(SLURM_NTASKS="1", SLURM_JOB_NUM_NODES="1", SLURM_TASKS_PER_NODE="1")
    assert resolve(environ).warnings == ()


def test_an_ssh_shell_with_a_job_id_alone_is_one_process() -> None:
    world = resolve({"SLURM_JOB_ID": "77"})
    assert (world.launcher, world.name) == ("single", "one process in job 77, outside of any step")


def test_step_variables_of_the_submitter_do_not_make_a_batch_shell_a_rank() -> None:
    leaked = Step.of(4, 4).environ(0)
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE")
    environ = batch_shell(SLURM_STEP_ID="0", **{name: leaked[name] for name in names})
    assert resolve(environ).launcher == "single"


def test_step_variables_do_not_make_a_batch_shell_on_the_submitters_node_a_rank() -> None:
    leaked = Step.of(4, 4, hosts=("n5", "n6")).environ(0)
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE")
    environ = batch_shell(SLURM_STEP_ID="0", **{name: leaked[name] for name in names})
    assert resolve(environ).launcher == "single"


def test_an_interactive_step_of_a_job_of_eight_is_one_process() -> None:
    environ = Step.of(1).environ(0) | {"SLURM_NTASKS": "8"}
    world = resolve(environ)
    assert (world.launcher, world.world_size, len(world.warnings)) == ("single", 1, 1)


@pytest.mark.parametrize("rank", [1, 5])
def test_a_task_without_the_size_of_its_step_is_refused(rank: int) -> None:
    environ = Step.of(4, 4).environ(rank)
    del environ["SLURM_STEP_NUM_TASKS"]
    for ids in ({}, {"SLURM_STEP_ID": ""}):
        with pytest.raises(IncompleteEnvironment, match=r"^SLURM_STEP_NUM_TASKS is not set"):
            resolve(environ | ids)


def test_rank_0_without_the_size_of_its_step_is_refused_in_a_numbered_step() -> None:
    environ = Step.of(4, 4).environ(0)
    del environ["SLURM_STEP_NUM_TASKS"]
    with pytest.raises(IncompleteEnvironment, match=r"^SLURM_STEP_NUM_TASKS is not set"):
        resolve(environ)


def test_without_task_counts_the_tasks_of_this_node_are_used() -> None:
    step = Step((0, 1, 1, 0, 1), ("n1", "n2"), "arbitrary")
    worlds = [resolve(environ | {"SLURM_STEP_TASKS_PER_NODE": ""}) for environ in step.environs()]
    assert [world.local_world_size for world in worlds] == [2, 3, 3, 2, 3]
    assert worlds[0].sources["local_world_size"] == "SLURM_GTIDS = 0,3"


def test_nodes_of_a_het_step_have_the_order_of_its_components() -> None:
    first, *_, last = (resolve(environ) for environ in captured_case("72_het_first_component_last@22.05"))
    assert first.hosts == last.hosts == ("n3", "n4", "n1")
    assert (first.node_rank, last.node_rank, last.master_addr) == (0, 2, "n3")
    assert last.sources["master_addr"] == "first of SLURM_JOB_NODELIST_HET_GROUP_0 = n[3-4]"


def test_a_step_of_eight_tasks_with_a_terminal_has_eight_ranks() -> None:
    assert resolve(Step.of(4, 4).environ(5) | {"SLURM_PTY_PORT": "4711"}).world_size == 8


def test_a_step_does_not_need_ntasks() -> None:
    environ = Step.of(2, 2).environ(3)
    del environ["SLURM_NTASKS"], environ["SLURM_TASKS_PER_NODE"]
    assert summarize(resolve(environ)) == (3, 1, 4, 2, 1, 2)


def test_sizes_of_the_job_do_not_count_in_a_step() -> None:
    environ = captured_case("08_step_n3n4_in_4node_job@22.05")[4]
    world = resolve(environ)
    assert (world.master_addr, world.node_rank, world.nnodes) == ("n3", 1, 2)
    assert "SLURM_JOB_NODELIST = n[1-4] (the job's, wider than this step)" in world.ignored


def test_components_with_separate_node_numbers_are_identified_by_host_name() -> None:
    environ = captured_case("21_het_group_0_1@22.05")[5] | {"SLURM_NODEID": "0"}
    assert summarize(resolve(environ)) == (5, 1, 6, 2, 1, 2)


def test_pmi_of_the_step_agrees_and_pmi_of_another_launch_is_ignored() -> None:
    environ = Step.of(4, 4).environ(5)
    assert resolve(environ | {"PMI_RANK": "5", "PMI_SIZE": "8"}).agrees == ("PMI_RANK = 5", "PMI_SIZE = 8")
    assert "PMI_RANK = 0 (left by another launch)" in resolve(environ | {"PMI_RANK": "0", "PMI_SIZE": "2"}).ignored


def test_the_variables_of_the_standalone_script_agree() -> None:
    plain = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
    world = resolve(Step.of(4, 4).environ(5) | plain | {"MASTER_ADDR": "n1", "MASTER_PORT": "12345"})
    assert world.agrees == ("RANK = 5", "WORLD_SIZE = 8", "LOCAL_RANK = 1", "LOCAL_WORLD_SIZE = 4", "MASTER_ADDR = n1")
    assert world.master_port == 12345


def test_stale_ranks_are_refused_with_both_numbers() -> None:
    with pytest.raises(ContradictoryEnvironment) as refused:
        resolve(Step.of(4, 4).environ(5) | {"RANK": "0", "WORLD_SIZE": "1"})
    assert str(refused.value) == (
        "two launchers claim this process\n"
        "  found  the srun step 1234.0 says rank 5 of 8 (SLURM_PROCID, SLURM_STEP_NUM_TASKS)\n"
        "         the environment says rank 0 of 1 (RANK, WORLD_SIZE), set before the step began\n"
        "  do     unset RANK WORLD_SIZE in the batch script; or start the step with --ntasks-per-node=1 and torchrun;\n"
        "         or HPC_KIT_LAUNCHER=env, where a launcher inside of the step has set them"
    )


@pytest.mark.parametrize(
    ("stale", "words"),
    [
        ({"WORLD_SIZE": "4"}, "rank 5 of 8 (SLURM_STEP_NUM_TASKS)"),
        ({"LOCAL_RANK": "3"}, "local rank 1 of 4 (SLURM_LOCALID)"),
        ({"LOCAL_RANK": "0"}, "local rank 1 of 4 (SLURM_LOCALID)"),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, "SLURM_STEP_TASKS_PER_NODE = 4(x2), node 1"),
    ],
)
def test_one_stale_variable_is_enough(stale: Environ, words: str) -> None:
    with pytest.raises(ContradictoryEnvironment) as refused:
        resolve(Step.of(4, 4).environ(5) | stale)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"])
def test_a_half_set_step_is_refused_with_the_missing_variable(name: str) -> None:
    environ = Step.of(4, 4).environ(5)
    del environ[name]
    with pytest.raises(IncompleteEnvironment, match=f"^{name} is not set"):
        resolve(environ)


@pytest.mark.parametrize("value", ["-1", "x", "1.5", "2(x2)", "٣", "1" * 30])
@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS", "RANK"])
def test_a_value_that_is_no_number_is_refused(name: str, value: str) -> None:
    with pytest.raises(IncompleteEnvironment) as refused:
        resolve(Step.of(4, 4).environ(5) | {name: value})
    assert refused.value.what == f"{name} is not a number from 0 up"
    assert refused.value.found == f"{name} = {value!r}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"SLURM_PROCID": "8"}, ("rank 8 does not fit world_size 8", "rank = 8 from SLURM_PROCID")),
        ({"SLURM_LOCALID": "4"}, ("local_rank 4 does not fit local_world_size 4", "local_rank = 4 from SLURM_LOCALID")),
        (
            {"SLURM_STEP_NUM_TASKS": "9"},
            ("contradict each other", "SLURM_STEP_NUM_TASKS = 9, SLURM_STEP_TASKS_PER_NODE"),
        ),
        ({"SLURM_STEP_NUM_NODES": "3"}, ("contradict each other", "SLURM_STEP_NUM_NODES = 3")),
        ({"SLURM_STEP_NUM_TASKS": "0"}, ("contradict each other", "SLURM_STEP_NUM_TASKS = 0")),
    ],
)
def test_contradictory_numbers_are_refused(change: Environ, words: tuple[str, str]) -> None:
    with pytest.raises(ContradictoryEnvironment) as refused:
        resolve(Step.of(4, 4).environ(5) | change)
    assert [word in str(refused.value) for word in words] == [True, True]


@pytest.mark.parametrize("name", ["SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"])
def test_a_malformed_list_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(IncompleteEnvironment, match=f"^{name} is not a "):
        resolve(Step.of(4, 4).environ(5) | {name: "4[x"})


def test_without_a_node_list_the_host_of_rank_0_is_unknown() -> None:
    with pytest.raises(IncompleteEnvironment, match="no variable names the host of rank 0"):
        resolve(Step.of(4, 4).environ(5) | {"SLURM_STEP_NODELIST": ""})
    assert resolve(Step.of(4, 4).environ(5) | {"SLURM_STEP_NODELIST": "", "MASTER_ADDR": "n1"}).master_addr == "n1"
    assert resolve(Step.of(4, 4).environ(0) | {"SLURM_STEP_NODELIST": ""}).master_addr == "n1"


@pytest.mark.parametrize(
    ("given_address", "used", "warned"),
    [
        ("n1", "n1", ()),
        ("n1-ib0", "n1-ib0", ()),
        ("10.1.2.3", "10.1.2.3", ()),
        ("n2", "n1", ("MASTER_ADDR = n2 is not used: rank 0 of this step is on n1",)),
        ("localhost", "n1", ("MASTER_ADDR = localhost is not used: on each of the 2 nodes it names that node",)),
        ("127.0.0.1", "n1", ("MASTER_ADDR = 127.0.0.1 is not used: on each of the 2 nodes it names that node",)),
    ],
)
def test_an_address_set_by_the_job_counts_if_it_can_be_right(
    given_address: str, used: str, warned: tuple[str, ...]
) -> None:
    world = resolve(Step.of(4, 4).environ(5) | {"MASTER_ADDR": given_address})
    assert (world.master_addr, world.warnings) == (used, warned)


@pytest.mark.parametrize("port", ["0", "65536"])
def test_an_invalid_master_port_is_refused(port: str) -> None:
    with pytest.raises(IncompleteEnvironment, match="MASTER_PORT is no port"):
        resolve(Step.of(4, 4).environ(5) | {"MASTER_PORT": port})


def test_steps_elements_and_attempts_have_separate_ports() -> None:
    environ = Step.of(2, 2).environ(1)
    others: list[Environ] = [
        {},
        {"SLURM_STEP_ID": "1"},
        {"SLURM_JOB_ID": "1235"},
        {"SLURM_ARRAY_TASK_ID": "3"},
        {"SLURM_ARRAY_TASK_ID": "4"},
        {"SLURM_RESTART_COUNT": "1"},
        {"SLURM_HET_SIZE": "2"},
        {"SLURM_CLUSTER_NAME": "other"},
        {"HPC_KIT_SLURM_STATE": "/home/me/.local/state/hpc_kit/slurm"},
    ]
    worlds = [resolve(environ | other) for other in others]
    assert len({world.master_port for world in worlds}) == len({world.key for world in worlds}) == len(others)


@pytest.mark.parametrize("change", [{"SLURM_PROCID": "4"}, {"SLURM_LOCALID": "2"}])
def test_a_rank_that_its_node_lists_at_another_place_is_refused(change: Environ) -> None:
    with pytest.raises(ContradictoryEnvironment, match="contradict each other") as refused:
        resolve(Step.of(4, 4).environ(5) | change)
    assert "SLURM_GTIDS = 4,5,6,7" in str(refused.value)


def test_nodes_of_a_het_step_have_the_order_of_its_components_without_counts_too() -> None:
    for environ in captured_case("56_het_reversed@22.05"):
        whole, part = resolve(environ), resolve(environ | {"SLURM_STEP_TASKS_PER_NODE": ""})
        assert (part.node_rank, part.hosts) == (whole.node_rank, whole.hosts)


@pytest.mark.parametrize("missing", [["SLURM_STEP_NUM_NODES"], ["SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST"]])
def test_without_a_number_of_nodes_the_lists_are_counted(missing: list[str]) -> None:
    environ = {name: value for name, value in Step.of(2, 1, 1).environ(0).items() if name not in missing}
    assert resolve(environ).nnodes == 3


def add_container_variables(environ: Environ) -> Environ:
    """Return the variables of a task or shell with those that enroot's hook for PyTorch (50-slurm-pytorch.sh) adds."""
    names = {"WORLD_SIZE": "SLURM_NTASKS", "RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID"}
    added = {name: environ[of] for name, of in names.items() if of in environ} | {"MASTER_PORT": "62234"}
    if hosts := environ.get("SLURM_STEP_NODELIST"):
        added["MASTER_ADDR"] = nodelist.expand(hosts)[0]
    return environ | added


@pytest.mark.parametrize("case", ["05_srun_uneven_3n7t", "08_step_n3n4_in_4node_job"])
def test_variables_copied_by_a_container_hook_agree_with_the_step(case: str) -> None:
    for environ in captured_case(f"{case}@22.05"):
        bare, inside = resolve(environ), resolve(add_container_variables(environ))
        assert (summarize(inside), inside.launcher, inside.warnings) == (summarize(bare), "slurm", ())


def test_a_container_hook_with_the_wrong_host_of_rank_0_is_corrected() -> None:
    for environ in captured_case("09_arbitrary@22.05"):
        inside = resolve(add_container_variables(environ))
        assert (summarize(inside), inside.master_addr) == (summarize(resolve(environ)), "n2")
        assert inside.warnings == ("MASTER_ADDR = n1 is not used: rank 0 of this step is on n2",)


def test_a_batch_shell_with_torch_variables_of_rank_0_gets_the_advice_to_use_srun() -> None:
    """Also with `export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS` in the batch script and no srun."""
    for case in ("10_batch_shell_8task_job@22.05", "10_batch_shell_8task_job@26.05", "26_interactive_step@22.05"):
        shell = add_container_variables(captured_case(case)[0]) | {"MASTER_ADDR": "n1"}
        world = resolve(shell)
        assert (world.launcher, world.rank, world.world_size) == ("env", 0, 8)
        (warning,) = world.warnings
        assert warning.startswith("RANK = 0, WORLD_SIZE = 8 are those of the job's shell; unless others start")
        assert resolve(shell | {"WORLD_SIZE": "4"}).warnings == ()
        assert resolve(shell | {"RANK": "1"}).warnings == ()
