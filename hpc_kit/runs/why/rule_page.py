"""The page docs/why.md, with a section for each class of failure."""

from __future__ import annotations

import re
from collections import defaultdict

from hpc_kit.runs.why.rules import Rule, all_rules

_HEAD = """\
# Why did a job fail?

`hpc-kit why` names the cause, the rank that is to blame, and the fix. It reads logs offline and sends nothing anywhere.

```console
hpc-kit why                        # the latest run
hpc-kit why 77                     # a run by id, or the latest run of a job: hpc-kit why ddp_4node
hpc-kit why --log slurm-88.out     # any logs, also of jobs that hpc-kit did not submit
hpc-kit why --log logs/ sacct.txt job.sbatch
sacct -j 88 -P -o JobID,State,ExitCode,MaxRSS,ReqMem,NodeList > sacct.txt
```

```text
cause   rank 5 on n3 ran out of host memory: the kernel killed it
proof   slurm-77.out:1  slurmstepd-n3: error: Detected 1 oom_kill event in StepId=77.0.
also    ranks 0-4, 6, 7 failed because of it (lost connection)
fix     ask for more memory (--mem, --mem-per-cpu), or lower what the ranks hold
```

`--log` reads files and folders in any mix:

- output of jobs and ranks: `slurm-*.out`, logs of single ranks, submitit's `*_log.out` and `*_log.err`
- prefixes of `srun --label`, torchrun, mpirun and Ray, and labels of rank and host such as `[rank3] n07`
- outputs of `sacct`, `squeue`, `seff`, `scontrol show job`, `scontrol show node` and `sinfo -R`
- kernel messages, a refusal of sbatch, and the script

Secrets are masked, and terminal escapes are removed.

| exit status | meaning |
|---|---|
| 0 | the job did not fail: it succeeded, waits or runs |
| 1 | it failed, or the cause is unknown, or there is no such job |
| 2 | wrong use |

`--json` prints one document: `cause` (a sentence that begins with "unknown" or "did not fail" if that is the answer),
`class`, `rank`, `host`, `evidence` (`file`, `line`, `text`), `traceback` (or null), `fix`, and `confidence`: `certain`
if the evidence proves the cause, otherwise `likely`.

The elements of an array are separate jobs. The answer contains each cause once, with the elements that it ended. The
most common cause comes first. The JSON document lists them as `elements`, and each item also has the key `jobs`.
With `--log`, names such as `slurm-12_3.out`, `12_3_0_log.err` and `sweep_12_3.out` (`%A_%a`) give the elements, and so
do the names that a script among the files gives to them (`fold%a.log`). Names such as `sweep-12-3.out` are those of
elements if a script or a listing shows an array; otherwise, a last number that counts from 0 is a rank.

The lines `failed` and `fix` at the end of `hpc-kit submit --wait` and `hpc-kit logs`, and the sentence of
`hpc-kit status`, are the same answer.

## How the culprit is found

1. **Lines become events.** The rules below match lines and the exceptions of tracebacks. Each event has a rank, a host,
   a time and an attempt, as far as the prefix, the file name or the line gives them.
2. **Handled errors do not count.** The program continued after an error if it then printed more lines of a shape that
   it had printed before. It also continued if a line right after the traceback states it ("skipped", "disabled"), or
   if the job succeeded. An error before "retrying" was handled, too. So was one that had been handled before and is
   followed by Slurm's order to end. A success that the script prints (`echo training finished`) counts only after
   `set -e`.
3. **Victims do not count.** A lost connection, a collective that timed out and a step that Slurm ended are
   consequences, unless nothing else is found. So is a rank that reached no other rank, if that one has an error of its
   own. If torchrun starts the ranks, its report names the one that failed: the tasks of srun are only its agents.
4. **The first cause wins.** Launchers' reports, the kind of the error and the time decide between several errors. A
   direct statement, such as an out-of-memory kill, explains a vaguer one, such as a dead DataLoader worker. A line
   explains a later exception only if the program printed no progress in between. An error about a missing value, such
   as `None` or an empty queue, follows from the logged error or the dead thread before it. It is `likely`.
5. **Without a cause, the ranks are compared.** A rank that called another collective, or another shape, or that did
   not come while the remaining ranks waited, is the culprit. If the job hung, the last stacks of its ranks are
   compared, which faulthandler or `py-spy dump` printed. In a log without labels, the ids of processes and threads
   distinguish the ranks. A line about a wait explains the time limit if no progress follows. If nothing was printed
   for 30 minutes and for much longer than before, the answer is that the job stood still, and not that its limit was
   too short. It is `likely`. The time in the message of Slurm, or `Elapsed` of sacct, shows the end. Lines of a
   monitor of the job, such as "no new step" or the use of the GPUs, do not count.
6. **A certain answer needs proof.** A rule has patterns that prove its sentence, and hints: lines that other failures
   print, too. A hint, an error that may have been handled, and a comparison with ranks whose logs are missing are
   `likely`.
7. **The last attempt counts.** The answer also names the causes of earlier attempts of a requeued job. If a batch
   script continues with another step after a step has failed, that step counts. The answer is `likely` unless the
   script announced a retry. The first step counts if the later command only misses a file. An earlier attempt counts,
   and is `likely`, if the later ones only met what it had left behind: a folder that exists, a lock, a port in use.

A job that Slurm booked as COMPLETED failed if its training ended with an exception: the program or its script hid the
exit status. It probably failed in these cases:

- An uncaught exception ended its program, and only the script continued. The exception is in the last lines, or a
  launcher reported a failed rank below it, and no step follows. Without a report, the job "did not fail", and the
  answer names the line and is `likely`.
- It did nothing after an error, such as a launcher that was not found.
- One of its last lines reports that a file could not be written.

If one terminal shows several submissions, the last refusal counts. A job that waits again after Slurm had ended it did
not fail, and an exception in a job that still runs is `likely`.

Without Slurm's state, a log that ends with a result, such as a saved model, shows a success that is `likely`. The
answer about a job that never started, because of its dependency, is that of the job before it. If the watchdog has
reported a stall of a job that still runs, the answer names the rank that the remaining ranks wait for.

An error that hpc-kit itself printed is the cause, and its lines after `do` are the fix. In a kernel's log, messages
about other jobs and from days before the job do not count.

## Limits

- A kill without a message has no proven cause: the answer is "killed", and not "out of memory".
- Large logs are read once, at a fifth of the speed of `grep -c` or more and in less than 200 MB of memory
  (`python bench/why.py`). Lines that differ from earlier lines only in their digits are skipped.

## All classes

This list is generated from the rules (`make golden`).
"""

_ANSWERS = {
    "no-failure": "The job did not fail.",
    "pending": "The job waits in the queue for a normal reason.",
    "held": "The job is held in the queue.",
    "nodes-unavailable": "The job waits for nodes that are down, drained or reserved.",
    "running": "The job has not ended.",
    "unknown": "The evidence does not decide.",
}


def why_page() -> str:
    """Return the page in Markdown."""
    classes: dict[str, list[Rule]] = defaultdict(list)
    for rule in all_rules():
        # The rule that is named like its class is the general one.
        classes[rule.class_].insert(0 if rule.name == rule.class_ else len(classes[rule.class_]), rule)
    lines = [_HEAD, "| class | meaning |", "|---|---|"]
    lines += [
        f"| [{name}](#{name}) | {_sentence(classes[name][0])} |" for name in sorted(classes) if name not in _ANSWERS
    ]
    lines += [f"| {name} | {meaning} |" for name, meaning in _ANSWERS.items()]
    for name in sorted(set(classes) - set(_ANSWERS)):
        lines += ["", f"## {name}"]
        for rule in classes[name]:
            lines += ["", f"{_sentence(rule)}{_weight_note(rule)}", "", f"Fix: {_plain(rule.fix)}.", "", "```text"]
            lines += [*rule.examples, "```"]
    return "\n".join(lines) + "\n"


def _sentence(rule: Rule) -> str:
    """Return the sentence of a rule, with words in place of its values and without its optional parts."""
    text = re.sub(r"\[[^\[\]]*\{\w+\}[^\[\]]*\]", "", rule.cause).replace("{who}", "a rank")
    text = _plain(text)
    return text[:1].upper() + text[1:] + "."


def _plain(text: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), text).replace("|", "\\|").replace("<", "&lt;")


def _weight_note(rule: Rule) -> str:
    remarks = {
        "consequence": " A consequence: it counts only if nothing else is found.",
        "soft": " It counts if the job fails later.",
        "symptom": " It counts only if nothing else is found.",
        "end": " An error that came before it counts more.",
        "cause": "",
    }
    return remarks[rule.kind]
