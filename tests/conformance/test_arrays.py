"""Job arrays: ids, variables, logs, limits, and actions on one element."""

from __future__ import annotations

from tests.conformance.engine import Engine


def elements_end(engine: Engine, array: str) -> None:
    engine.wait_until(lambda: engine.output_of("squeue", "-h", "-j", array) == "")


def test_elements_get_their_index(engine: Engine) -> None:
    names = "TASK_ID TASK_COUNT TASK_MIN TASK_MAX TASK_STEP"
    body = "echo " + " ".join(f"$SLURM_ARRAY_{name}" for name in names.split())
    array = engine.submit(body, "--array=1-5:2%1", "--output=array-%A-%a")
    elements_end(engine, array)
    output = {index: engine.read_text(f"array-{array}-{index}") for index in (1, 3, 5)}
    assert output == {index: f"{index} 3 1 5 2\n" for index in (1, 3, 5)}


def test_the_last_element_has_the_job_id_of_the_array(engine: Engine) -> None:
    array = engine.submit("echo $SLURM_JOB_ID $SLURM_ARRAY_JOB_ID", "--array=0-2%1", "--output=number-%A-%a")
    elements_end(engine, array)
    numbers = [engine.read_text(f"number-{array}-{index}").split() for index in range(3)]
    assert {own for _, own in numbers} == {array}
    assert numbers[2][0] == array
    assert len({number for number, _ in numbers}) == 3


def test_an_element_has_a_default_log(engine: Engine) -> None:
    array = engine.submit("echo here", "--array=4,7")
    elements_end(engine, array)
    assert [engine.read_text(f"slurm-{array}_{index}.out") for index in (4, 7)] == ["here\n", "here\n"]


def test_the_number_of_parallel_elements_is_limited(engine: Engine) -> None:
    array = engine.submit("sleep 300", "--array=0-5%2", "--mem=100", "--output=/dev/null")
    engine.wait_until(
        lambda: sorted(engine.output_of("squeue", "-h", "-t", "R", "-j", array, "-o", "%K").split()) == ["0", "1"]
    )
    engine.wait_until(
        lambda: (
            engine.output_of("squeue", "-h", "-t", "PD", "-j", array, "-o", "%i|%K|%r")
            == f"{array}_[2-5%2]|2-5%2|JobArrayTaskLimit\n"
        )
    )
    apart = engine.output_of("squeue", "-h", "-r", "-t", "PD", "-j", array, "-o", "%i").split()
    assert apart == [f"{array}_{index}" for index in range(2, 6)]
    engine.output_of("scancel", array)
    elements_end(engine, array)


def test_one_element_is_cancelled(engine: Engine) -> None:
    array = engine.submit("sleep 300", "--array=0-3%1", "--mem=100", "--output=/dev/null")
    engine.wait_until(lambda: engine.output_of("squeue", "-h", "-t", "R", "-j", array, "-o", "%K") == "0\n")
    engine.output_of("scancel", f"{array}_2")
    left = engine.output_of("squeue", "-h", "-t", "PD", "-j", array, "-o", "%K")
    assert left == "1,3%1\n"
    engine.output_of("scancel", f"{array}_[0-1,3]")
    elements_end(engine, array)


def test_elements_are_accounted_separately(engine: Engine) -> None:
    array = engine.submit("exit $SLURM_ARRAY_TASK_ID", "--array=0,3", "--output=/dev/null")
    elements_end(engine, array)
    asked = ("sacct", "-nPX", "-j", array, "-o", "JobID,State,ExitCode")
    wanted = [f"{array}_0|COMPLETED|0:0", f"{array}_3|FAILED|3:0"]
    engine.wait_until(lambda: sorted(engine.output_of(*asked).splitlines()) == wanted)


def test_an_index_above_the_limit_is_refused(engine: Engine) -> None:
    assert "MaxArraySize            = 20\n" in engine.output_of("scontrol", "show", "config")
    refused = engine.run("sbatch", "--array=20", "--wrap=true")
    assert (refused.returncode, refused.stdout) == (1, "")
    taken = engine.output_of("sbatch", "--parsable", "--array=19", "--hold", "--wrap=true").strip()
    engine.output_of("scancel", taken)
