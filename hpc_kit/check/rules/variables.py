"""Rules for shell variables: names, expansion and use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher, get_close_matches
from itertools import pairwise, takewhile

from hpc_kit.check.bash_grammar import NAME
from hpc_kit.check.bash_syntax import Assignment, Origin, Part, nested_block, program_of, simple_commands
from hpc_kit.check.batch_script import CSH, RESOLVER, BatchScript
from hpc_kit.check.command_trace import DECLARING, BlockPosition, TracedCommand
from hpc_kit.check.expansion import TASK_VARIABLES
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.job_variables import JOB_VARIABLES


@rule("KIT128", "warning", needs=("~",))
def quoted_tilde(script: BatchScript) -> Iterator[Problem]:
    """A `~` in quotes.

    The shell expands `~` only outside of quotes. `"~/data"` is a folder named `~`, unless the program expands it. For
    `cd` and `source`, it is an error.

    Fix: `"$HOME/data"`.
    Documented: bash(1), Tilde Expansion.
    """
    for step in script.commands:
        values = [assignment.value for assignment in step.syntax.assignments]
        for word in (*step.syntax.words[1:], *values) if step.name not in {"echo", "printf", "ssh"} else ():
            before = [*takewhile(lambda part: not (part.quoted and re.match(r"~(/|\Z)", part.text)), word.parts)]
            tilde = word.parts[len(before)] if len(before) < len(word.parts) else None
            if tilde is None or tilde.kind != "text" or " " in tilde.text:
                continue
            leading = "".join(part.text for part in before)
            if leading == "" or leading.endswith("="):
                certain = step.name in {"cd", "source", ".", "pushd", "ls", "cp", "mkdir", "tar"}
                origin, text = tilde.origin, tilde.text
                what = f"the shell does not expand the ~ of {text} in quotes"
                double = script.lines[origin.line - 1][origin.column - 2 : origin.column - 1] == '"'
                edits = (Edit(origin.line, origin.column, text, f"$HOME{text[1:]}"),) if double else ()
                yield Problem(origin, what, 'write "$HOME/..."', certain=certain, edits=edits)


@rule("KIT129", "warning")
def misspelt_variable(script: BatchScript) -> Iterator[Problem]:
    """A variable that nothing sets, with a name much like one that exists.

    The shell expands it to nothing, without a message: the option behind it gets the next word, or none. A variable
    that the script sets but never reads shows what was meant. A name ends at the first character that is no letter,
    digit or `_`: `$MODEL_fold` and `$MODEL_$SEED` read the variables MODEL_fold and MODEL_, and not MODEL.

    Fix: the spelling; `${MODEL}_fold`; `set -u` makes it an error at run time.
    Documented: bash(1), set -u and Parameter Expansion; sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    """
    if not script.is_readable or script.interpreter in CSH or script.sources_files:
        return
    variables = [part for _, part in script.nested_parts if part.kind == "variable" and part.text.isidentifier()]
    unset = [part for part in variables if part.text not in script.assigned and part.text not in JOB_VARIABLES]
    unset = [part for part in unset if not _HAS_DEFAULT.match(part.detail)]
    if not unset:
        return
    known = set_variables(script)
    others = _may_set_others(script)
    longer = _longer_names(script, known) if not others else {}
    yield from longer.values()
    seen = {*longer}
    meant: dict[str, str | None] = {}
    ends = [step for step in script.batch_commands if step.name == "exit" and not step.around("function")]
    statuses = {id(part) for step in ends for part in step.syntax.parts}
    for part in unset:
        name = part.text
        if name in known or name in seen or (others and not name.startswith("SLURM_")):
            continue
        if name not in meant:
            if script.tests_variable(name):
                seen.add(name)
                continue
            # Short names such as `LR` and `LN` resemble each other by chance.
            near = _resembling(name, known) if len(name) >= 6 else None
            meant[name] = near or next(
                (other for other in _unread_variables(script) if _shares_word(name, other)), None
            )
        match = meant[name]
        if id(part) in statuses and name not in {"PIPESTATUS", "RANDOM"}:
            seen.add(name)
            what = f"nothing sets ${name}: this is the status of the command before"
            yield Problem(part.origin, what, "write the variable that has the status", (part.origin.line,))
        elif match is not None:
            seen.add(name)
            what = f"nothing sets ${name}; there is ${match}"
            yield Problem(part.origin, what, f"write ${match}", (part.origin.line,))


_ALWAYS_SET = frozenset({"HOME", "HOSTNAME", "USER"})


def _longer_names(script: BatchScript, known: set[str]) -> dict[str, Problem]:
    """Return the variables that text behind another one makes: `$MODEL_fold`."""
    if any(step.name in {".", "source"} and re.search(r"bashrc|profile", step.text) for step in script.batch_commands):
        return {}
    found: dict[str, Problem] = {}
    comments = "\n".join(text for _, text in script.comment_lines)
    targets = (part for step in script.commands for each in step.syntax.redirections for part in each.target.parts)
    for part in (*(part for _, part in script.nested_parts), *targets):
        name = part.text
        if part.kind != "variable" or "_" not in name[1:] or name in known or part.raw != f"${name}" or name in found:
            continue
        cuts = [match.start() for match in re.finditer("_", name)]
        own = next((cut for cut in reversed(cuts) if name[:cut] in known | JOB_VARIABLES | _ALWAYS_SET), 0)
        # The environment may have a variable in capitals, such as DATA_DIR beside DATA.
        outside = name.isupper() and re.search("[A-Z]", name[own:])
        if not own or outside or name.endswith("_proxy") or name in script.options.get("export", ""):
            continue
        # `declare "MODEL_$i=..."` sets variables of such names, and a comment may tell how to submit the script.
        by_eval = re.search(rf"(?<![$\w{{]){name[:own]}_[\"']?\$", script.code)
        by_user = re.search(rf"\b{name}=", comments)
        if not by_eval and not by_user and not script.tests_variable(name):
            what = f"nothing sets ${name}: the name of the variable goes on behind ${name[:own]}"
            remedy = f"write ${{{name[:own]}}}{name[own:]}"
            found[name] = Problem(part.origin, what, remedy, (part.origin.line,))
    return found


def _may_set_others(script: BatchScript) -> bool:
    """Tell whether commands may set variables of any name: `eval "$(...)"`, `export $(cat .env)`."""
    for step in script.batch_commands:
        if step.name == "eval" and not re.search(r"conda|mamba|module|ssh-agent", step.text):
            return True
        words = step.syntax.words[1:] if step.name in DECLARING else ()
        if any(word.parts[:1] and word.parts[0].kind != "text" for word in words):
            return True
    return False


_HAS_DEFAULT = lazy_pattern(r":?[-+?=]")


def _unread_variables(script: BatchScript) -> list[str]:
    """Return the variables that the script sets for itself alone, but never reads."""
    own = dict.fromkeys(each.name for each in script.assignments if not each.is_exported and each.position is not None)
    uses = Counter(re.findall(NAME, script.code))
    return [name for name in own if uses[name] == 1]


_SET_OUTSIDE = lazy_pattern(
    r"(CONDA|CUDA|HIP|HSA|MKL|MPI|NCCL|OMPI|PYTHON|ROCM|ROCR|SLURM|TORCH|UCX|WANDB)_"
    r"|\w+_(HOME|PREFIX|ROOT|(INC|INCLUDE|LIB|LIBRARY)(_?(DIR|PATH))?)\Z"
)
"""Variables of Slurm, of modules, and of the user's own settings for libraries."""


_OF_SLURM = sorted(JOB_VARIABLES | set(TASK_VARIABLES))


def _shares_word(name: str, other: str) -> bool:
    """Tell whether two names begin with the same word, or one is short for the other: MEM and MEMORY, CKPT_DIR."""
    word = name.partition("_")[0]
    own = len(word) > 2 and not _SET_OUTSIDE.match(name)
    short, long = sorted((name, other), key=len)
    rest = long.removeprefix(short)
    # MODE is no part of MODEL_NAME.
    begins = rest != long and (rest.startswith("_") or "_" not in long)
    return own and (begins or other.partition("_")[0] == word)


def _resembling(name: str, known: set[str]) -> str | None:
    """Return the variable that a name surely means."""
    if name.startswith("SLURM_"):
        if name in JOB_VARIABLES or re.match(r"SLURM_(\w+_)?(HET|PACK|CLI|SPANK|STEP|TRES|TOPOLOGY)_", name):
            return None
        near = get_close_matches(name, _OF_SLURM, n=1, cutoff=0.8)
        return near[0] if near else None
    for other in get_close_matches(name, sorted(known), n=1, cutoff=0.85):
        pieces = SequenceMatcher(None, name, other).get_opcodes()
        changed = [name[i:j] + other[k:m] for tag, i, j, k, m in pieces if tag != "equal"]
        # NODE and NODES, DATA1 and DATA2 may be two variables.
        at_end = name.startswith(other) or other.startswith(name)
        if not at_end and not any(re.search(r"[\d_]", text) for text in changed) and max(map(len, changed)) <= 2:
            return other
    return None


_WHOLE_LIST = lazy_pattern(rf"\"?\$\{{({NAME})\[[@*]\]\}}\"?")


@rule("KIT139", needs=("=(",))
def first_element(script: BatchScript) -> Iterator[Problem]:
    """The name of a list without `[@]` is its first element.

    `for seed in $SEEDS` runs once, and `python train.py $ARGS` passes only the first of the arguments. A list whose
    first element is no option is a warning, because the element may be meant: `--lr $RATES`. Spaces separate the
    elements: `RATES=(0.1,0.01)` is one element (a warning), and with `RATES=(0.1, 0.01)` the program gets `0.1,`.

    Fix: `"${SEEDS[@]}"`, and `(0.1 0.01)`.
    Documented: bash(1), Arrays.
    """
    loops = script.compounds("for")
    over = {match[1] for loop in loops for match in map(_WHOLE_LIST.fullmatch, loop.texts) if match}
    yield from _commas(script, over)
    lists = {each.name: each.value.elements or () for each in script.written_assignments}
    other = {each.name for each in script.written_assignments if each.value.elements is None and not each.indexed}
    other |= {text for step in script.commands if step.name in {"read", "unset"} for text in step.texts[1:]}
    several = "|".join(name for name, elements in lists.items() if len(elements) > 1 and name not in other)
    # In zsh, the name of a list is all of its elements.
    if not several or script.sources_files or script.interpreter == "zsh":
        return
    mention = re.compile(rf"[\"']?\$(?:\{{({several})\}}|({several})\b(?!\[))[\"']?")
    for loop in loops:
        if match := next(filter(None, map(mention.fullmatch, loop.texts)), None):
            name = match[1] or match[2]
            what = f"${name} is the first of the {len(lists[name])} elements of {name}: the loop runs once for it"
            yield Problem(Origin(loop.line), what, f'write "${{{name}[@]}}"')
    for launch in script.training:
        for word in launch.program.words[1:]:
            if (match := mention.fullmatch(word.text)) and word.line:
                name = match[1] or match[2]
                what = f"${name} is the first of the {len(lists[name])} elements of {name}"
                certain = lists[name][0].raw.startswith("-")
                yield Problem(word, what, f'write "${{{name}[@]}}"', (launch.line,), certain)


def _commas(script: BatchScript, over: set[str]) -> Iterator[Problem]:
    """Find a list with commas between its elements. `over`: the lists of the loops."""
    for each in script.written_assignments:
        elements = each.value.elements or ()
        if each.name in over and len(elements) == 1 and re.fullmatch(r"[\w.+-]+(,[\w.+-]+)+,?", elements[0].raw):
            what = f"this is one element: the loop over {each.name} runs once, with all of the text"
            # It may be the text of a tuple.
            remedy = f"write {each.name}=({' '.join(elements[0].raw.split(','))})"
            yield Problem(elements[0], what, remedy, certain=False)
        elif len(elements) > 1 and all(re.fullmatch(r"(?!-).*[^,],", word.raw) for word in elements[:-1]):
            parts = (part for _, part in script.nested_parts if part.text == each.name)
            indexed = any(re.match(r"\[[^@*]+\]\Z", part.detail) for part in parts)
            removed = re.search(r"%%?,|/,[/}]|\b(tr|sed)\b.*,", script.code) is not None
            if (indexed or each.name in over) and not removed:
                what = f"the comma belongs to the element: {each.name} contains {elements[0].raw}"
                remedy = f"write {each.name}=({' '.join(word.raw.rstrip(',') for word in elements)})"
                yield Problem(elements[0], what, remedy)


_UNREAD = {
    **dict.fromkeys(("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_GPUS"), "CUDA_VISIBLE_DEVICES"),
    **dict.fromkeys(("GLOO_IFNAME", "GLOO_SOCKET_IFACE"), "GLOO_SOCKET_IFNAME"),
    "HF_OFFLINE": "HF_HUB_OFFLINE",
    "MASTER_ADDRESS": "MASTER_ADDR",
    "NCCL_DEBUG_LEVEL": "NCCL_DEBUG",
    **dict.fromkeys(("NCCL_DISABLE_IB", "NCCL_IB_DISABLED"), "NCCL_IB_DISABLE"),
    **dict.fromkeys(("NCCL_DISABLE_P2P", "NCCL_P2P_DISABLED"), "NCCL_P2P_DISABLE"),
    **dict.fromkeys(("NCCL_IFNAME", "NCCL_INTERFACE", "NCCL_SOCKET_IFACE"), "NCCL_SOCKET_IFNAME"),
    **dict.fromkeys(("NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT", "TORCH_NCCL_TIMEOUT"), ""),
    **dict.fromkeys(("OMP_NUM_THREAD", "OMP_THREADS", "OMP_NUMTHREADS"), "OMP_NUM_THREADS"),
    **dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONFIG", "TORCH_CUDA_ALLOC_CONF"), "PYTORCH_CUDA_ALLOC_CONF"),
    **dict.fromkeys(("PYTHON_UNBUFFERED", "PYTHONUNBUFFER", "PYTHONBUFFERED"), "PYTHONUNBUFFERED"),
    **dict.fromkeys(("WANDB_API_TOKEN", "WANDB_APIKEY", "WANDB_KEY", "WANDB_TOKEN"), "WANDB_API_KEY"),
}
"""Variables that no library reads, with the one that was surely meant; empty: there is none."""


@rule("KIT142", "warning")
def unread_setting(script: BatchScript) -> Iterator[Problem]:
    """A setting for a library, in a variable or a form that it does not read.

    A variable of another name has no effect, and no message says so. NCCL and torch read no timeout of collectives from
    the environment: NCCL_TIMEOUT changes nothing. NCCL's switches are numbers: NCCL_IB_DISABLE=true
    is 0. The rule is silent if the script itself uses the variable, or if a comment says which program reads it.
    PYTORCH_CUDA_ALLOC_CONF is a list of NAME:VALUE with commas: with `max_split_size_mb=512` or
    `expandable_segments:true`, torch stops at the first allocation (an error). So it does with an option of another
    name.

    Fix: the name in the documentation; `init_process_group(timeout=timedelta(hours=2))` for a timeout.
    Documented: NCCL documentation, "Environment Variables"; pytorch.org/docs/stable/distributed.html.
    """
    for each in script.assignments_of(*_UNREAD):
        meant = _UNREAD[each.name]
        read = re.search(rf"\$\{{?{each.name}\b|[\"']{each.name}[\"']", script.code)
        told = re.search(r"\b([Rr]eads?|used|passed) by\b|\b[Rr]eads\b", script.comment_at(each.line))
        if read or told or not each.is_exported or meant in script.assigned:
            continue
        what = f"nothing reads {each.name}" + (f"; there is {meant}" if meant else ": the timeout stays as it was")
        remedy = f"write {meant}" if meant else "pass timeout=timedelta(...) to init_process_group in the program"
        yield Problem(each, what, remedy, (each.line,))
    for each in script.assignments:
        if re.match(r"NCCL_\w+_(DISABLE|ENABLE)\Z", each.name) and each.value.text.lower() in {"true", "yes", "on"}:
            yield Problem(each, f"NCCL reads a number: {each.name}={each.value.text} is 0", "write 1", (each.line,))
    for each in script.exported_assignments if script.assigned.intersection(_ALLOCATORS) else ():
        if (
            each.name in _ALLOCATORS
            and each.value.is_known
            and (fault := _fault_of_allocator(each.value.text)) is not None
        ):
            what, remedy, is_certain = fault
            what = f"torch stops at the first allocation: {what}"
            yield Problem(each, what, remedy, (each.line,), certain=is_certain)


_ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_OF_ALLOCATOR = {
    **dict.fromkeys(("backend", "max_split_size_mb", "max_non_split_rounding_mb", "roundup_power2_divisions"), ""),
    **dict.fromkeys(("roundup_bypass_threshold_mb", "pinned_num_register_threads", "large_segment_size_mb"), ""),
    **dict.fromkeys(("per_process_memory_fraction", "pinned_reserve_segment_size_mb"), ""),
    "garbage_collection_threshold": r"0?\.\d+",
    **dict.fromkeys(("expandable_segments", "release_lock_on_cudamalloc", "throw_on_cudamalloc_oom"), "True|False"),
    **dict.fromkeys(("pinned_use_cuda_host_register", "pinned_use_background_threads"), "True|False"),
    "graph_capture_record_stream_reuse": "True|False",
}
"""Options of torch's allocator, each with a pattern for its value, if not all values have the same form."""


def _fault_of_allocator(text: str) -> tuple[str, str, bool] | None:
    """Return a fault in the options of torch's allocator, the remedy, and whether it is certain; None without one."""
    # `roundup_power2_divisions:[256:1,512:2]` has commas in a list.
    for item in filter(None, re.sub(r"\[[^\]]*\]", "0", re.sub(r"\s", "", text)).split(",")):
        name, colon, value = item.partition(":")
        near = get_close_matches(name, [*_OF_ALLOCATOR], n=1, cutoff=0.85)
        if not colon or re.search("[;=]", item):
            return f"{item} is no NAME:VALUE", "write NAME:VALUE, with a comma between two options", True
        # A later release, or torch for ROCm, may have further options.
        if name not in _OF_ALLOCATOR and near and "hip" not in name:
            return f"there is no option {name}", f"write {near[0]}", False
        if (form := _OF_ALLOCATOR.get(name)) and not re.fullmatch(form, value):
            wanted = "True or False" if "True" in form else "a number between 0 and 1"
            fault = f"{name} takes {wanted}, and not {value or 'nothing'}"
            return fault, f"write {name}:{value.capitalize() or 'True'}", True
    return None


_KEPT_BY_BASH = frozenset({
    "BASHPID", "BASH_LINENO", "BASH_SOURCE", "BASH_SUBSHELL", "FUNCNAME", "GROUPS", "HISTCMD",
})  # fmt: skip
_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
_OWN_USER = lazy_pattern(r"[\"']?(\$\(\s*id -u\s*\)|`id -u`|\$\{?E?UID\}?)[\"']?")


@rule("KIT147", needs=tuple(name.lower() for name in (*_KEPT_BY_BASH, *_READ_ONLY)))
def variable_of_bash(script: BatchScript) -> Iterator[Problem]:
    """A variable that bash itself sets.

    An assignment to GROUPS, FUNCNAME, BASHPID or a similar variable has no effect, and no message says so: GROUPS stays
    the list of the user's groups. UID, EUID, PPID, BASHOPTS and SHELLOPTS are read-only: bash prints "readonly
    variable", and the variable keeps its value.

    Fix: another name. Names in lower case never collide with those of bash.
    Documented: bash(1), Shell Variables.
    """
    if script.interpreter not in {None, "bash"}:
        return
    given: list[tuple[str, Place, str, bool]] = []
    for step in script.commands:
        given += [(each.name, each.value, each.value.raw, step.errexit) for each in step.written_assignments]
        read = step.texts[1:] if step.name in {"getopts", "mapfile", "read", "readarray"} else ()
        given += [(name, step, "", step.errexit) for name in read]
    given += [(loop.name, Origin(loop.line), "", False) for loop in script.compounds("for")]
    for name, place, value, errexit in given:
        # `UID=$(id -u)` would change nothing.
        same = _OWN_USER.fullmatch(value) is not None and not errexit
        if name in _READ_ONLY and not same:
            yield Problem(place, f"{name} is a read-only variable of bash: it keeps its value", "use another name")
        elif name in _KEPT_BY_BASH and any(part.text == name for _, part in script.nested_parts):
            yield Problem(place, f"bash sets {name} itself: the assignment has no effect", "use another name")


@rule("KIT148", "warning", needs=("ifs",))
def lasting_separator(script: BatchScript) -> Iterator[Problem]:
    """IFS stays changed, so that bash no longer separates words at spaces.

    `IFS=,` in a line of its own is for the rest of the script. An unquoted `$OPTIONS` is then one argument, with all
    its spaces, and `for host in $(scontrol show hostnames)` runs once. In front of `read`, it is for that command
    alone.

    Fix: `IFS=, read -r LR WD <<< "$ROW"`; or `unset IFS` after the command that needs it. Use a list for options:
    `"${OPTIONS[@]}"`.
    Documented: bash(1), Word Splitting.
    """
    # zsh splits no variable.
    for each in script.assignments_of("IFS") if script.interpreter in {None, "bash", "sh", "dash"} else ():
        place = each.position
        if place is None or each.is_for_one_command or each.in_task or not each.is_literal:
            continue
        own = "local IFS" in script.code or len(place.pipeline.commands) > 1
        if own or any(outer.kind == "subshell" or outer.role == "code" for outer in place.outward()):
            continue
        separators = each.value.text
        for step in script.commands[each.number + 1 :]:
            ends = step.name in {"local", "unset"} and "IFS" in step.texts
            if ends or any(other.name == "IFS" for other in step.written_assignments):
                break
            part = next((part for part in _split_parts(step, place) if _stays_one(script, part, separators)), None)
            if part is not None:
                what = f"IFS stays changed: in line {part.origin.line}, {_shown(part)} is one word, with all its spaces"
                yield Problem(each, what, "write unset IFS behind the command that needs it", (part.origin.line,))
                break


def _shown(part: Part) -> str:
    return part.raw if part.kind == "variable" else "the output of $(...)"


def _split_parts(step: TracedCommand, place: BlockPosition) -> Iterator[Part]:
    """Yield what bash separates into words: in arguments, elements of lists, and loops that are not around a place."""
    loop = step.around("for")
    loop = None if any(outer.compound is loop for outer in place.outward()) else loop
    lists = [word for each in step.written_assignments for word in each.value.elements or ()]
    for word in (*(step.syntax.words[1:] if step.name != "echo" else ()), *lists, *(loop.words if loop else ())):
        yield from (part for part in word.parts if not part.quoted and len(word.parts) == 1)


def _stays_one(script: BatchScript, part: Part, separators: str) -> bool:
    """Tell whether a part certainly has several words, and none of the separators between them."""
    if part.kind == "command":
        return "\n" not in separators and _SEVERAL_LINES.match(part.text) is not None
    values = [each.value.text for each in script.assignments_of(part.text)] if not part.detail else []
    known = part.kind == "variable" and values and part.text not in script.loop_variables
    return bool(known) and all(
        # A path may contain a space on purpose.
        re.search(r"\S[ \t]+-|-\S*[ \t]+\S" if "/" in text else r"\S[ \t]+\S", text)
        and "$(" not in text
        and not set(separators) & set(text)
        for text in values
    )


_SEVERAL_LINES = lazy_pattern(r"\s*(scontrol\s+show\s+hostnames?\b[^|]*|seq\s[^|]*|(ls|find)\s[^|]*)\Z")


@rule("KIT143", needs=("${now", "${hydra", "${oc."))
def expanded_resolver(script: BatchScript) -> Iterator[Problem]:
    """The shell expands an expression that is meant for Hydra.

    In double quotes or without quotes, `${now:%Y-%m-%d}` and `${hydra:job.num}` are expansions of bash: the value is
    empty, or the script stops with "unbound variable" or "bad substitution".

    Fix: single quotes, `'hydra.run.dir=out/${now:%Y-%m-%d}'`.
    Documented: bash(1), Parameter Expansion; hydra.cc/docs/configure_hydra/intro, "Resolvers provided by Hydra".
    """
    for step, part in script.nested_parts:
        written = script.lines[part.origin.line - 1][part.origin.column - 1 :] if part.origin.exact else ""
        resolver = RESOLVER.match(written) if part.kind == "variable" else None
        if resolver is not None:
            what = f"the shell expands {resolver[0]}, which is meant for Hydra"
            yield Problem(part.origin, what, "use single quotes", (step.line,))


@rule("KIT145", needs=("..", "seq", "eval"))
def unexpanded_range(script: BatchScript) -> Iterator[Problem]:
    """A range in braces that bash does not expand.

    bash expands braces before variables: the loop `for i in {0..$N}` runs once, with the text `{0..7}`. `$(echo
    {0..$N})` gives the same text. In quotes, bash expands no range either, and `"$(seq 0 7)"` is one word for all
    numbers.

    Fix: `for ((i = 0; i <= N; i++))`, or `$(seq 0 "$N")` without quotes.
    Documented: bash(1), Brace Expansion and Word Splitting.
    """
    # zsh and ksh expand variables first.
    if script.interpreter not in {None, "bash", "sh"}:
        return
    loops = [(loop.words, True) for loop in script.compounds("for")]
    lists = [(each.value.elements, False) for each in script.written_assignments if each.value.elements]
    for words, is_loop in (*loops, *lists):
        effect = "the loop runs once, with this text" if is_loop else "the list gets this text as one element"
        printed = [part for word in words for part in word.parts if part.kind == "command"]
        echoes = [
            each for part in printed for each in simple_commands(nested_block(part)) if program_of(each) == "echo"
        ]
        alone = words[0] if is_loop and len(words) == 1 else None
        for word in (*words, *(word for each in echoes for word in each.words[1:])):
            if _VARIABLE_RANGE.match(word.raw) or (word is alone and _QUOTED_RANGE.fullmatch(word.raw)):
                what = f"bash does not expand {word.raw}: {effect}"
                yield Problem(word, what, 'write $(seq FIRST "$LAST"), or for ((i = 0; i < N; i++))')
        if alone is not None and _QUOTED_NUMBERS.match(alone.raw):
            what = f"the quotes make one word of all numbers: the loop runs once, with {alone.unquoted}"
            yield Problem(alone, what, "remove the quotes")


@rule("KIT146", "warning", needs=("..",))
def expanded_shards(script: BatchScript) -> Iterator[Problem]:
    """The shell expands a range that is meant for the program.

    Without quotes, bash makes one argument of each number in `shards/{00000..01023}.tar`. WebDataset reads one pattern,
    which it expands itself: it gets the first file alone, or the program stops at the second one.

    Fix: quotes around the pattern.
    Documented: bash(1), Brace Expansion; github.com/webdataset/webdataset, README.
    """
    for launch in script.training:
        words = launch.inner_command.syntax.words
        for before, word in pairwise(words):
            # Several files are the arguments of a program, or the values of one option.
            several = "=" not in word.raw and not re.match(r"-.*(?<!s)\Z", before.raw)
            if not several and (shards := _SHARDS.search(word.raw)):
                what = f"the shell expands {shards[0]} into many arguments, and WebDataset reads one pattern"
                yield Problem(word, what, "use quotes", (launch.line,))


_EXPANSION = r"\$(?:\w+|\{[^{}]*\}|\(+(?:[^{}()]|\{[^{}]*\}|\([^()]*\))*\)+)"
_VARIABLE_RANGE = lazy_pattern(
    rf"[^\s\"'$`{{]*\{{(?:-?\w*\.\.{_EXPANSION}|{_EXPANSION}\.\.(?:-?\w+|{_EXPANSION}))(?:\.\.(?:\w+|{_EXPANSION}))?\}}"
)
"""A range with a variable at one of its ends, outside of quotes and `$(...)`."""
_QUOTED_RANGE = lazy_pattern(r"([\"'])\{-?[\w$]+\.\.[\w$]+\}\1")
_QUOTED_NUMBERS = lazy_pattern(r"\"\$\(\s*(seq\s|eval echo \{)[^()]*\)\"\Z")
_SHARDS = lazy_pattern(r"(?<!\w)[^\s\"'{]*\{0\d+\.\.\d+\}[^\s\"'{]*\.tar(\.\w+)?\Z")
"""A pattern of WebDataset, which has leading zeros, without quotes."""


_INNER_QUOTES = lazy_pattern(r"""\A"(?!.*(?:\$\(|`)).*(?:'[^'"]*\s[^'"]*'|\\"[^"]*\s[^"]*\\").*"\Z""", re.DOTALL)
"""A value in double quotes with quoted words inside. Quotes in a command substitution are those of its command."""

_CONFIGURATION = lazy_pattern(r".*(\.(json|ya?ml|toml|ini|cfg|conf|config)|(host|machine)s?_?file(\.\w+)?)\Z")


@rule("KIT134", "warning", needs=("'", "<<", "\\"))
def unexpanded_document(script: BatchScript) -> Iterator[Problem]:
    r"""Single quotes or a quoted here-document contain a variable, or a variable contains quotes.

    After `<<'END'`, bash expands nothing: the file contains the characters `$OUT`. Programs that read JSON, YAML or
    TOML take them for the name of a folder. So does a program with `--out 'runs/$SLURM_JOB_ID'`. Quotes in the value of
    a variable are characters, too: after `ARGS="--text 'a b'"`, `$ARGS` is three words.

    Fix: `<<END` without quotes, and `\$` for each `$` that must stay; double quotes for an argument.
    Documented: bash(1), Here Documents and QUOTING.
    """
    yield from _single_quotes(script)
    for step in script.batch_commands:
        output = step.syntax.output
        if output is None or step.syntax.document is None:
            continue
        quoted = re.search(r"<<-?\s*[\"'\\]", script.lines[step.line - 1])
        if quoted is None or not _CONFIGURATION.match(script.resolve(output.raw).strip("\"'")):
            continue
        text = "".join(part.text for part in step.syntax.document or ())
        names = re.findall(r"(?<![\\$])\$(\w+)", text)
        # `${KEY}` may be an interpolation of the program itself, unless the variable is a folder.
        paths = {each.name for each in script.assignments if re.match(r"[/~$]", each.value.text)}
        if script.resolve(output.raw).strip("\"'").endswith(".json"):
            # Few programs read variables in JSON, and none reads those that it does not get.
            paths |= script.assigned - {each.name for each in script.exported_assignments}
        names += [name for name in re.findall(r"\$\{(\w+)\}", text) if name in paths and f"{name}:" not in text]
        name = next((name for name in names if name in script.assigned or name.startswith("SLURM_")), None)
        if name is not None and not re.search(r"\b(envsubst|expandvars|sed|perl)\b", script.code):
            what = f"${name} stays as it is in {output.raw}: the here-document is quoted"
            yield Problem(step, what, "remove the quotes around the word behind <<", (step.line,))


def _single_quotes(script: BatchScript) -> Iterator[Problem]:
    """Find a variable in single quotes in a program of awk or sed, or among the arguments of a training.

    Find quotes in the value of a variable, too: they are characters, and the text between them becomes several words.
    """
    for step, part in script.nested_parts:
        if part.kind != "text" or not part.quoted or "SLURM_" not in part.text:
            continue
        selects = re.match(r"\s*NR\s*==\s*\$(SLURM_\w+)|\$\{?(SLURM_\w+?)\}?p\Z", part.text)
        filters = selects and re.search(r"\b(awk|gawk|mawk|sed)\b", script.lines[part.origin.line - 1])
        if selects and filters and not step.in_task:
            what = f"${selects[1] or selects[2]} in single quotes stays as it is: awk and sed do not know the variable"
            yield Problem(part.origin, what, "use double quotes", (step.line,), certain=True)
    written = [each for step in script.batch_commands for each in step.written_assignments]
    yield from _quoted_substitution(script, written)
    for launch in script.training:
        if not launch.file or launch.inner_command.name == "eval":
            continue
        # Words behind `--` are mostly a command, which may be a shell.
        # A `:` is in front of the next component of a step, such as the shell of other tasks.
        words = list(takewhile(lambda word: word.raw not in {"--", ":"}, launch.inner_command.syntax.words))
        for word in words:
            match = re.fullmatch(r"\$\{?(\w+)\}?", word.raw) if word.raw.startswith("$") else None
            name = match[1] if match else ""
            given = next((each for each in written if each.name == name and _INNER_QUOTES.search(each.value.raw)), None)
            # A later assignment may replace the value.
            if given is not None and re.search("[\"']", "".join(launch.inner_command.texts)):
                what = f"the quotes in the value of ${name} stay: the program gets each word between them by itself"
                remedy = f'write an array: {name}=(--option "two words"), and "${{{name}[@]}}"'
                yield Problem(word, what, remedy, (given.value.line,))
                return
        for part in (part for word in words for part in word.parts):
            # In double quotes, a `\$` is a part of its own.
            is_text = part.kind == "text" and part.quoted
            match = re.search(r"\$(\w+|\{SLURM_\w+\})", part.text) if is_text else None
            name = match[1].strip("{}") if match is not None else ""
            if name.startswith("SLURM_") or name in script.assigned:
                what = f"${name} in single quotes stays as it is: the program gets these characters"
                yield Problem(part.origin, what, "use double quotes", (launch.line,))
                return


def _quoted_substitution(script: BatchScript, written: list[Assignment]) -> Iterator[Problem]:
    """Find a variable whose value is a command substitution in single quotes, and that no shell reads as code."""
    for each in written:
        if not re.fullmatch(r"'(\$\([^']+\)|`[^`']+`)'", each.value.raw):
            continue
        uses = [line for line in script.code.splitlines() if re.search(rf"\$\{{?{each.name}\b", line)]
        if not any(re.search(r"\beval\b|\bssh\b|\s-\w*c\b|\benvsubst\b|@P\}", line) for line in uses):
            what = f"in single quotes, bash does not run this command: ${each.name} gets these characters"
            yield Problem(each.value, what, "use double quotes", ())
            return


_SETTERS = frozenset({
    "read", "mapfile", "readarray", "getopts", "local", "declare", "export", "printf", "unset", "for",
})  # fmt: skip


def sets(name: str) -> re.Pattern[str]:
    """Return the pattern of code that sets a variable: an assignment, a loop, or a command such as `read`."""
    return re.compile(
        rf"(?<![\w$-]){name}\+?=|(\(\(|\b(for|select))\s*{name}\b"
        rf"|\b(getopts|mapfile|read|readarray)\b[^;|]*(?<![\w${{]){name}\b"
    )


def set_variables(script: BatchScript) -> set[str]:
    """Return the variables that assignments, loops, `read` and similar commands set."""
    names = set(script.assigned)
    for step in script.commands:
        names |= {compound.name for compound in step.compounds}
        if step.name in _SETTERS:
            # `printf "$NAME"` sets nothing.
            names |= {name for word in step.texts[1:] if (name := word.partition("=")[0]).isidentifier()}
    # Trap code, here-documents and arithmetic set variables that the trace does not list.
    found = re.findall(r"\b([A-Za-z_]\w*)(?:\+\+|--|[-+*/]?=)|\bfor\s+([A-Za-z_]\w*)", script.code)
    names |= {name for code in re.findall(r"\(\((.*?)\)\)", script.code) for name in _COMPUTED.findall(code)}
    return names | {name for pair in found for name in pair} | set(re.findall(r"\$\{(\w+):?=", script.code))


_COMPUTED = lazy_pattern(rf"({NAME})\s*[-+*/%]?=(?!=)")
"""An assignment of arithmetic."""
