"""Rules for containers: programs, variables, GPUs and folders that exist outside only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from hpc_kit.check.bash_syntax import with_nested_parts
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedCommand
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage, may_be_several
from hpc_kit.check.programs import CONTAINER_VALUED, HELPER_PROGRAMS
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern

_RUNTIMES = frozenset({"apptainer", "singularity"})
_ENGINES = frozenset({"docker", "enroot", "podman", "podman-hpc"})
"""Runtimes whose containers see no folder of the host by themselves."""
CONTAINER_WORDS = ("--container-", *_RUNTIMES, *_ENGINES)
"""Texts of which a launch line with a container has one."""


class Container(NamedTuple):
    """A container on a launch line: its stage, its options, and the binds as SOURCE:DESTINATION.

    `is_isolated`: it sees no folder of the host but those of its binds. `image`: the index of the image of apptainer.
    """

    stage: LaunchStage
    options: tuple[str, ...]
    binds: tuple[str, ...]
    is_pyxis: bool
    is_isolated: bool
    image: int = 0

    def has(self, *names: str) -> bool:
        """Tell whether the container has one of these options."""
        return any(option.partition("=")[0] in names for option in self.options)

    def sees(self, path: str) -> bool:
        """Tell whether a path is in a folder that is mounted."""
        return any(f"{path}/".startswith(f"{each}/") for each in self.destinations)

    @property
    def destinations(self) -> list[str]:
        """The folders that the container sees."""
        binds = [bind for text in self.binds for bind in text.split(",") if bind]
        # docker's --mount type=bind,source=/raid,target=/data
        parts = [re.sub(r"\A(target|dst|destination)=", "", bind).split(":") for bind in binds]
        return [(part[1] if len(part) > 1 and part[1] else part[0]).rstrip("/") for part in parts]

    @property
    def read_only(self) -> list[str]:
        """The folders that the program in the container cannot write to."""
        binds = [bind.split(":") for text in self.binds for bind in text.split(",")]
        plain = [part[1].rstrip("/") for part in binds if len(part) > 2 and "ro" in part[2].split("+")]
        mount = re.compile(r"\b(?:target|dst|destination)=([^,]+).*\b(?:ro|readonly)\b")
        return plain + [match[1].rstrip("/") for text in self.binds if (match := mount.search(text))]

    @property
    def renamed(self) -> dict[str, str]:
        """The folders of the host that the container sees under another name, with that name."""
        binds = (bind.split(":") for text in self.binds for bind in text.split(","))
        pairs = {part[0].rstrip("/"): part[1].rstrip("/") for part in binds if len(part) > 1}
        # docker's --mount type=bind,source=/raid,target=/data
        mount = re.compile(r"\b(?:source|src)=([^,]+).*?\b(?:target|dst|destination)=([^,]+)")
        pairs |= {match[1]: match[2] for text in self.binds for match in mount.finditer(text)}
        return {source: name for source, name in pairs.items() if re.match(r"[/$]\w", source)}


def container_of(launch: LaunchLine) -> Container | None:
    """Return the container in which the program of a launch line runs."""
    for stage in launch.stages:
        texts = stage.texts
        if stage.name in _RUNTIMES and {"exec", "run"} & set(texts[1:6]):
            start = next(index for index, text in enumerate(texts) if text in {"exec", "run"}) + 1
            options, image = _leading_options(texts, start)
            # Without it, apptainer mounts $HOME, /tmp and the current folder.
            isolated = any(option in {"-c", "--contain", "-C", "--containall"} for option in options)
            binds = tuple(_values(texts[start:image], ("-B", "--bind", "--mount")))
            return Container(stage, options, binds, is_pyxis=False, is_isolated=isolated, image=image)
        if stage.name in _ENGINES and {"run", "start"} & set(texts[1:3]):
            options = tuple(text for text in texts if text.startswith("-"))
            binds = tuple(_values(texts, ("-m", "--mount", "-v", "--volume")))
            return Container(stage, options, binds, is_pyxis=False, is_isolated=True)
        if stage.kind == "srun" and any(text.partition("=")[0] == "--container-image" for text in texts):
            options = tuple(text for text in texts if text.startswith(("--container-", "--no-container-")))
            binds = tuple(_values(texts, ("--container-mounts",)))
            return Container(stage, options, binds, is_pyxis=True, is_isolated=True)
    return None


def _leading_options(texts: list[str], start: int) -> tuple[tuple[str, ...], int]:
    """Return the options from a word on, without their values, and the index of the word behind them."""
    options, index = [], start
    while index < len(texts) and texts[index].startswith("-"):
        options.append(texts[index])
        index += 2 if texts[index] in CONTAINER_VALUED else 1
    return tuple(options), index


def _values(texts: list[str], names: tuple[str, ...]) -> list[str]:
    """Return the values of an option, `--name VALUE`, `--name=VALUE`, `-n VALUE` or `-nVALUE`."""
    values = [after for before, after in pairwise(texts) if before in names]
    values += [text[2:] for text in texts if text[:2] in names and len(text) > 2]
    return values + [text.partition("=")[2] for text in texts if text.partition("=")[0] in names and "=" in text]


_OUTSIDE = frozenset({"ml", "module", "sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"})
_CALLS_OUTSIDE = lazy_pattern(r"\s*(scontrol|squeue|sacct|srun|sinfo|sbatch)\b")


@rule("KIT504", "warning", needs=CONTAINER_WORDS)
def missing_in_container(script: BatchScript) -> Iterator[Problem]:
    """A command in a container exists on the host only.

    Images contain neither srun, scontrol and sbatch nor their configuration and munge, and `module` is a function of
    the shell outside. In the container the command is "not found", and `$(scontrol show hostnames ...)` is empty. With
    `#SBATCH --container-image`, the batch script itself runs in the container.

    Fix: start the container with srun, rather than srun in the container. Run scontrol in the batch script, and export
    the result. Load modules before the container, or build them into the image.
    Documented: apptainer.org/docs, "Apptainer and MPI applications"; github.com/NVIDIA/pyxis, and its issues 31 and 55.
    """
    given = [line for line in script.directives.lines if "--container-" in line.text]
    image = next((line.line for line in given if "--container-image" in line.text), None)
    if image is not None and not any(re.search(r"slurm|/usr/bin|/usr\b", line.text) for line in given):
        for step in script.batch_commands:
            if step.name in _OUTSIDE or _called_outside(step):
                what = f"the batch script runs in the container of line {image}, which has no commands of Slurm"
                yield Problem(step, what, "write srun --container-image=... instead of #SBATCH", (image,))
                break
    for launch in script.launch_lines:
        container = container_of(launch)
        # Such a mount brings the commands of the host along.
        if container is None or re.search(r"slurm|/usr/bin|/usr\b|/opt/lmod", " ".join(container.binds)):
            continue
        for place, program in filter(None, [_outside_program(script, launch, container)]):
            remedy = f"run {program} outside, and the container inside"
            yield Problem(place, f"{program} is not in the container", remedy, (launch.line,))


def _outside_program(
    script: BatchScript, launch: LaunchLine, container: Container
) -> tuple[LaunchStage | TracedCommand, str] | None:
    """Return the first command inside a container that only the host has."""
    inside = launch.stages[launch.stages.index(container.stage) + 1 :]
    stage = next((each for each in inside if each.name in _OUTSIDE), None)
    if stage is not None:
        return stage, stage.name
    # The program of an image, `apptainer exec IMAGE scontrol`, has no stage of its own.
    program = container.stage.texts[container.image + 1 : container.image + 2] if container.image else []
    if _OUTSIDE.intersection(program):
        return container.stage, program[0]
    for step in script.commands_of(launch):
        name = step.name if step.name in _OUTSIDE else _called_outside(step)
        if name is not None:
            return step, name
    return None


def _called_outside(step: TracedCommand) -> str | None:
    """Return the command of Slurm in a `$(...)`. What is not in the file has been expanded by the batch shell."""
    calls = (_CALLS_OUTSIDE.match(part.text) for part in step.substitutions if part.origin.exact)
    return next((call[1] for call in calls if call), None)


@rule("KIT512", "warning", needs=CONTAINER_WORDS)
def outside_of_container(script: BatchScript) -> Iterator[Problem]:
    """The container ends before the training: only the first command of a line runs in it.

    In `apptainer exec image.sif pip install peft && python train.py`, the `&&` is that of the shell outside. The
    training runs on the host, without the packages of the image.

    Fix: `apptainer exec image.sif bash -c 'pip install peft && python train.py'`.
    Documented: bash(1), Lists; apptainer.org/docs, "apptainer exec".
    """
    for launch in script.training:
        chain = launch.command.position.chain
        if set(chain.operators) != {"&&"} or container_of(launch) is not None or launch.program.kind != "python":
            continue
        for first in script.launch_lines:
            place, container = first.command.position, container_of(first)
            before = place.chain is chain and place.chain_index < launch.command.position.chain_index
            if before and container is not None and _PREPARES.search(_inside(first, container)):
                what = f"this runs outside of the container of line {first.line}, which ends before the &&"
                remedy = "write bash -c '... && ...' behind the image"
                yield Problem(launch.stages[0], what, remedy, (first.line, launch.line))
                break


def _inside(launch: LaunchLine, container: Container) -> str:
    """Return the command that runs in a container, as one text."""
    if launch.program is not container.stage:
        return launch.program.text
    return " ".join(container.stage.texts[container.image + 1 :])


_PREPARES = lazy_pattern(r"\A(\S*/)?(pip3?|(python\S*|uv)( -m)? pip|conda|mamba) install\b|\A(cd|source|export|\.)\s")


@rule("KIT513", needs=("apptainer", "singularity"))
def options_behind_image(script: BatchScript) -> Iterator[Problem]:
    """An option of apptainer behind the image is the command of the container.

    apptainer and singularity read their options up to the image. In `apptainer exec image.sif --nv python train.py`,
    `--nv` is the program to run, which does not exist: the command fails immediately. `apptainer run` passes the option
    on to the program of the image (a warning).

    Fix: `apptainer exec --nv image.sif python train.py`.
    Documented: apptainer.org/docs, "apptainer exec" and "apptainer run".
    """
    for launch in script.launch_lines:
        container = container_of(launch)
        words = container.stage.words if container is not None and container.image else ()
        if container is None or len(words) < container.image + 2:
            continue
        image, option = words[container.image], words[container.image + 1]
        first = next(index for index, word in enumerate(words) if word.text in {"exec", "run"})
        # A variable may contain the options, and a further one the image.
        unsure = any(map(may_be_several, words[first + 1 : container.image])) or not _OF_IMAGE_FILE.search(image.text)
        certain = words[first].text == "exec"
        unsure = unsure or any(word.text == option.text for word in words[first + 1 : container.image])
        if unsure or not re.match(r"-\w|--\w", option.text) or not (certain or option.text in _ONLY_OF_APPTAINER):
            continue
        what = f"{option.text} stands behind the image: the container looks for a program of this name"
        if not certain:
            what = f"{option.text} stands behind the image, whose program gets it: apptainer does not"
        yield Problem(option, what, f"move the options in front of {image.text}", (launch.line,), certain)


_OF_IMAGE_FILE = lazy_pattern(r"(?i)\.(sif|simg|img|sqsh)\Z|/|(sif|image|img|container)(_?(file|path))?\}?\Z")
_ONLY_OF_APPTAINER = frozenset({
    "--cleanenv", "--containall", "--fakeroot", "--no-home", "--nv", "--rocm", "--writable-tmpfs",
})  # fmt: skip


@rule("KIT514", "warning", needs=("--container-image",))
def lost_packages(script: BatchScript) -> Iterator[Problem]:
    """Packages that one step installs in its container are not in the container of the next step.

    pyxis deletes a container without a name when its step ends. The next step with the same image begins with a new
    one: the packages of `srun --container-image=IMAGE pip install ...` are missing, and the import fails.

    Fix: `--container-name=NAME` on both steps, or both commands in one step, `bash -c 'pip install ... && python ...'`;
    or `--container-save=FILE`, and the file as the next image.
    Documented: github.com/NVIDIA/pyxis, --container-name and --container-save.
    """
    if _INSTALLED_ELSEWHERE.search(script.code) or any("--container-" in line.text for line in script.directives.lines):
        return
    started = [(launch, each) for launch in script.launch_lines if (each := container_of(launch)) and each.is_pyxis]
    seen: set[int] = set()
    for launch, container in started:
        kept = container.has("--container-name", "--container-save") or any(map(_HAS_PACKAGES.search, container.binds))
        if kept or id(launch.command) in seen or not _only_installs(script, launch):
            continue
        seen.add(id(launch.command))
        image = _values(container.stage.texts, ("--container-image",))
        for later, other in started:
            inside = [later.program.text, *(step.text for step in script.commands_of(later))]
            again = script.is_before(launch.command, later.command) and not any(map(_INSTALLS.match, inside))
            works = later.is_training or later.program.kind == "python" or later.agent is not None
            if again and works and image == _values(other.stage.texts, ("--container-image",)):
                what = f"the packages are lost when this step ends: line {later.line} starts a new container"
                remedy, lines = "write --container-name=NAME on both steps", (launch.line, later.line)
                yield Problem(launch.program, what, remedy, lines)
                break


_INSTALLS = lazy_pattern(
    r"((python3? -m |uv )?pip3?|conda|mamba|apt|apt-get) (-\S+ )*install\b"
    r"(?!( \S+)* -(t|p|e|-(user|target|prefix|root|editable|dry-run|download))([ =]|\Z))"
)
_INSTALLED_ELSEWHERE = lazy_pattern(r"\bPIP_(TARGET|PREFIX|USER|ROOT)\b|PYTHONUSERBASE")
_HAS_PACKAGES = lazy_pattern(r"site-packages|dist-packages|conda|venv|\.local|:/(usr|opt|root)\b")
_PREPARING = frozenset({"", "cd", "date", "echo", "export", "hostname", "mkdir", "printf", "set", "true"})


def _only_installs(script: BatchScript, launch: LaunchLine) -> bool:
    """Tell whether a step installs packages, and does nothing else."""
    inside = script.commands_of(launch)
    texts = [step.text for step in inside if step.name not in _PREPARING] if inside else [launch.program.text]
    return bool(texts) and all(map(_INSTALLS.match, texts))


_HOST_PATH = lazy_pattern(
    r"/(lustre|scratch|projects?|data|datasets|gpfs|mnt|fsx|nfs|shared|work|home|users|cfs|beegfs|p)(/|\Z)"
)


@rule("KIT505", "warning", needs=CONTAINER_WORDS)
def missing_mount(script: BatchScript) -> Iterator[Problem]:
    """A path of the command is not mounted in the container, or mounted without the right to write.

    pyxis and enroot mount no folder of the host by themselves. apptainer and singularity mount $HOME, the current
    folder and /tmp, and with --contain or -C nothing but --bind: not even the current folder. Further folders such as
    /scratch need --bind, unless the site adds them to apptainer.conf. The program ends with "No such file or
    directory". What it writes to a folder of the image, such as `--output-dir /out` without a mount at /out, vanishes
    with the container. With `--bind /ckpt:/ckpt:ro`, saving a checkpoint there fails ("Read-only file system"). A space
    behind a comma ends the list of mounts: the launcher takes the next mount for its program.

    Fix: add the folder: `--container-mounts=/data:/data`, `--bind /data`; without `:ro` where the program writes.
    Documented: github.com/NVIDIA/pyxis, --container-mounts; apptainer.org/docs, "Bind Paths and Mounts".
    """
    yield from _read_only_results(script)
    yield from _split_lists(script)
    # A variable or a module of the site may bind further folders.
    if script.sources_files or any(map(_BINDS.match, script.assigned)):
        return
    if any(step.name in {"module", "ml"} and re.search("(?i)bind", step.text) for step in script.commands):
        return
    for launch in script.launch_lines:
        container = container_of(launch)
        if container is None or any(text.endswith(",") for text in container.binds):
            continue
        # A variable may stand for any folder, or for further options.
        unknown = any(each.startswith("$") and not _USUAL_FOLDER.match(each) for each in container.destinations)
        if unknown or container.has("--volumes-from") or _may_have_options(launch, container):
            continue
        lost = _lost_result(script, launch, container)
        if lost is not None:
            what = f"{lost.text} is not mounted: what the program writes there ends with the container"
            yield Problem(lost, what, "add the folder to the mounts", (container.stage.line, launch.line))
        elif launch.program is not container.stage:
            yield from _unseen_path(script, launch, container)


def _split_lists(script: BatchScript) -> Iterator[Problem]:
    """Find a list of mounts that a space ends, `--container-mounts=/a:/a, /b:/b`, also in a variable without quotes."""
    for stage in (stage for launch in script.launch_lines for stage in launch.stages):
        for before, word, following in zip(stage.words, stage.words[1:], stage.words[2:], strict=False):
            if not word.text.endswith(","):
                continue
            given = _MOUNTS.match(word.text) or (_MOUNTS.fullmatch(f"{before.text}=") and ":" in word.text)
            if given and re.match(r"[/$~][^:]*:", following.text):
                what = f"the space behind the comma ends the list: {following.text} is no mount, but the program"
                comma = word.slice_of(len(word.text) - 1, len(word.text))
                yield Problem(comma, what, "remove the space", (stage.line,), certain=True)
                return


_MOUNTS = lazy_pattern(r"(--container-mounts|--bind|-B|--mount)=")
_SURELY_WRITTEN = lazy_pattern(r"(?i)(?<![a-z])(out|save|default[-_]root)")
_WRITTEN = lazy_pattern(rf"{_SURELY_WRITTEN.pattern}|(?i:ckpt|checkpoint|log)")
"""Options of any program, and of a training, for files that it writes. Other programs may load a checkpoint."""


_FOR_RESULTS = lazy_pattern(r"/(results?|outputs?|checkpoints?|experiments?)\Z")
"""A folder that is mounted for results."""

_OF_RESULTS = lazy_pattern(r"(?i)(\A|/)(out|outputs?|saved?|ckpts?|checkpoints?|logs?)(/|\Z)")
"""Parts of a path with results."""


def _read_only_results(script: BatchScript) -> Iterator[Problem]:
    """Find an option for results whose folder is mounted read-only."""
    for launch in script.launch_lines:
        container = container_of(launch)
        if container is None or not container.read_only:
            continue
        written = _WRITTEN if launch.is_named_training and not launch.is_auxiliary else _SURELY_WRITTEN
        for option, word in launch.option_values():
            # The innermost mount decides.
            around = (each for each in container.destinations if f"{word.text}/".startswith(f"{each}/"))
            folder = max(around, key=len, default="")
            is_written = written.search(option) or (
                not launch.is_auxiliary
                and (_OF_RESULTS.search(word.text.removeprefix(folder)) or _FOR_RESULTS.search(folder))
            )
            if folder in container.read_only and _RESULT.match(option) and is_written:
                what = f"{folder} is mounted read-only, but the program writes to {word.text}"
                given = re.compile(rf"{re.escape(folder)}/?(:ro|,.*\b(ro|readonly))\b")
                mounts = ((each, match) for each in container.stage.words if (match := given.search(each.text)))
                place = next((each.slice_of(*match.span(1)) for each, match in mounts), word)
                yield Problem(place, what, "remove :ro", (word.line, launch.line), certain=True)


def _may_have_options(launch: LaunchLine, container: Container) -> bool:
    """Tell whether a variable in front of the image may contain options of the container."""
    stage = container.stage
    if container.is_pyxis:
        return stage.may_hide_options
    index = launch.stages.index(stage)
    behind = launch.stages[index + 1].words if index + 1 < len(launch.stages) else ()
    # The word in front of the program is the image.
    return any(may_be_several(word) for word in stage.words[1 : len(stage.words) - len(behind) - 1])


def _unseen_path(script: BatchScript, launch: LaunchLine, container: Container) -> Iterator[Problem]:
    """Find the first path of the host in the arguments of the program that the container does not see."""
    own = [*(_made_outside(script) if container.is_isolated else ()), *container.renamed]
    home = not container.is_isolated or container.has("--container-mount-home", "-H", "--home")
    hides_home = container.has("--no-container-mount-home", "--no-home", "-C", "--containall")
    # $TMPDIR may lie in such a folder, and has another value in the code of a shell inside.
    binds_disk = any(
        re.search(r"tmp|local|scratch|nvme|ssd|raid|disk|jobfs|/work", each) for each in container.destinations
    )
    binds_disk = binds_disk or launch.inner_command is not launch.command
    file = launch.file
    moves = container.has("--pwd", "--cwd", "-W", "--workdir", "-H", "--home", "--app")
    # With --contain, apptainer does not mount the current folder either.
    alone = container.image and container.is_isolated and not (container.binds or moves)
    relative = file is not None and re.match(r"(\./)?[\w-]+(/[\w.-]+)*\.py\Z", file.text)
    if alone and relative and file is not None and launch.inner_command is launch.command:
        what = f"the container does not see {file.text}: --contain hides the current folder"
        yield Problem(file, what, 'add --bind "$PWD" --pwd "$PWD"', (launch.line,))
        return
    for word in launch.program.words:
        path = word.text.rpartition("=")[2]
        in_home = hides_home and re.match(r"(\$\{?HOME\}?|~)/", path)
        outside = in_home or _HOST_PATH.match(path) or any(f"{path}/".startswith(f"{folder}/") for folder in own)
        usual = path[:1] == "$" and not in_home and binds_disk if container.is_isolated else _USUAL_FOLDER.match(path)
        if not outside or usual or (home and re.match(r"/(home|users)/", path)):
            continue
        if not container.sees(path):
            what, renamed = f"the container does not see {path}", container.renamed.items()
            name = next((name for folder, name in renamed if f"{path}/".startswith(f"{folder}/")), None)
            if name is not None:
                words = reversed(launch.inner_command.syntax.words)
                place = next((each for each in words if path in script.resolve(each.raw)), word)
                yield Problem(place, f"{what}: there, its name is {name}", f"write {name}", (word.line, launch.line))
                break
            option = "--container-mounts" if container.is_pyxis else "--bind" if home else "the mounts"
            given = [each.line for each in container.stage.words if each.text.startswith(("--container-m", "--bind"))]
            yield Problem(word, what, f"add the folder to {option}", (launch.line, *given))
            break


def _lost_result(script: BatchScript, launch: LaunchLine, container: Container) -> ExpandedText | None:
    """Return the folder inside the image that an option for results names, if its files end with the container."""
    if _outlives_task(script, launch, container):
        return None
    values = launch.option_values(container.image + 1 if launch.program is container.stage else 0)
    results = (word for option, word in values if _RESULT.match(option))
    inside = (word for word in results if _OF_IMAGE.match(word.text) and not _HOST_PATH.match(word.text))
    return next((word for word in inside if not container.sees(word.text)), None)


def _outlives_task(script: BatchScript, launch: LaunchLine, container: Container) -> bool:
    """Tell whether the files of a container are kept, or copied out of it, or cannot be written at all."""
    kept = container.has("--container-name", "--container-save", "-o", "--overlay")
    # apptainer without --writable-tmpfs refuses to write to its image.
    refused = not container.is_isolated and not container.has("--writable-tmpfs")
    is_engine = container.stage.name in _ENGINES and not container.is_pyxis
    if kept or refused or (is_engine and "--rm" not in container.options):
        return True
    return any(step.name in {"cp", "mv", "rsync"} for step in script.commands_of(launch))


_OF_IMAGE = lazy_pattern(r"/(?!(?:tmp|dev|var|proc)/)[\w.-]+")
_RESULT = lazy_pattern(
    r"(?i)(?!.*(resum|load|restor|init|pretrain|data|config|tokenizer|cache|eval))[-+\w.]*?"
    r"(out|output|save|results?|project|(ckpt|checkpoints?|work|exp|runs?|logs?|root|out|output|save|results?)[-_]?dir"
    r"|dirpath)([-_](dir|path|folder|to))?\Z"
)
"""An option for the folder of results."""


def _made_outside(script: BatchScript) -> list[str]:
    """Return the folders that the batch shell creates."""
    steps = [step for step in script.batch_commands if step.name == "mkdir"]
    return [text.rstrip("/") for step in steps for text in step.texts[1:] if _MADE_BY_JOB.match(text)]


_MADE_BY_JOB = lazy_pattern(r"/(?!(tmp|dev)\b)|\$\{?(SLURM_TMPDIR|TMPDIR|JOBFS|SNIC_TMP)\b")
_BINDS = lazy_pattern(r"(APPTAINER|SINGULARITY|ENROOT|PYXIS|SARUS|PODMAN)_\w*(BIND|MOUNT)")
_USUAL_FOLDER = lazy_pattern(r"\$\{?(PWD|HOME|SLURM_SUBMIT_DIR|SLURM_TMPDIR|TMPDIR)\b")


@rule("KIT506", "warning", needs=CONTAINER_WORDS)
def container_without_gpus(script: BatchScript) -> Iterator[Problem]:
    """The container does not see the GPUs of the job.

    Without --nv (NVIDIA) or --rocm (AMD), apptainer and singularity give the container no GPU. Then
    torch.cuda.is_available() is False, and the training runs on the CPU or stops. Some sites make it the default, often
    with images that a module names: the rule ignores images in a variable that the script does not set, and images
    with ROCm in their name, which need only the devices of the host, and scripts for AMD's GPUs.

    docker and podman need --gpus or --device.

    Fix: `apptainer exec --nv ...`, `docker run --gpus all ...`.
    Documented: apptainer.org/docs, "GPU Support"; docs.docker.com, "docker run --gpus".
    """
    set_outside = any(re.match(r"(APPTAINER|SINGULARITY)_(NV|ROCM)", name) for name in script.assigned)
    given = any(_gives_gpus(container_of(launch)) for launch in script.launch_lines)
    for launch in script.launch_lines if script.size.has_gpus and not set_outside else ():
        container = container_of(launch)
        if not (launch.is_training or (container is not None and _works_alone(script, launch, container))):
            continue
        if container is not None and container.stage.name in {"docker", "podman"} and not container.is_pyxis:
            gives = any(re.match(r"--(gpus?|device|runtime|privileged)\b", option) for option in container.options)
            if not gives and not any(word.text.startswith("$") for word in container.stage.words[1:4]):
                what = f"{container.stage.name} run without --gpus: the container has no GPU"
                yield Problem(container.stage, what, "write --gpus all, or --device nvidia.com/gpu=all", (launch.line,))
            continue
        if container is None or container.stage.name not in _RUNTIMES or not container.stage.words[-1].text:
            continue
        # An unknown variable may hold options, or an image of the site. An image with ROCm needs nothing of the host.
        texts, image = container.stage.texts, container.image
        unsure = re.compile(r"\$[^/]*\Z|.*rocm", re.IGNORECASE)
        opaque = any(map(unsure.match, (*container.options, *texts[image : image + 1])))
        opaque = opaque or re.search(r"(?i)rocm|\bROCR_|\bHIP_|miopen|\blumi\b|gfx9", script.code) is not None
        known = launch.program.kind in {"python", "program"} and launch.program is not container.stage
        # Where another line has the option, a preparation without it is meant to run on CPUs.
        meant = given and launch.agent is None and not launch.is_named_training
        if known and not opaque and not meant and not _gives_gpus(container):
            what = f"{container.stage.name} without --nv: the container has no GPU"
            verb = next(word for word in container.stage.words if word.text in {"exec", "run"})
            edits = (Edit(verb.line, verb.column, verb.text, f"{verb.text} --nv"),)
            remedy = f"write {container.stage.name} exec --nv ..."
            yield Problem(container.stage, what, remedy, (launch.line,), edits=edits)


def _gives_gpus(container: Container | None) -> bool:
    """Tell whether apptainer gives a container the GPUs of the host."""
    return container is not None and container.has("--nv", "--nvccli", "--rocm", "--nv-ccli")


def _works_alone(script: BatchScript, launch: LaunchLine, container: Container) -> bool:
    """Tell whether a program of an image does the work of a job that has no other."""
    program, texts = launch.program, launch.program.text
    if program is container.stage or program.kind != "program" or program.name in HELPER_PROGRAMS or script.training:
        return False
    return len(script.launch_lines) == 1 or re.search(r"\b(cuda|gpus?|train)\b", texts) is not None


@rule("KIT507", "warning", needs=CONTAINER_WORDS)
def container_without_variables(script: BatchScript) -> Iterator[Problem]:
    """The container drops the variables that tell a task its rank.

    `--cleanenv` and `--containall` remove SLURM_PROCID, MASTER_ADDR and all other variables of the host. Each task then
    trains alone, as rank 0 of 1, or waits. In `bash -c 'torchrun --node-rank=$SLURM_NODEID ...'`, the shell in the
    container expands the variable to nothing. `--env NAME=...`, `--env-file` and APPTAINERENV_NAME pass single
    variables.

    Fix: remove the option, or pass the variables: `--env RANK=$SLURM_PROCID,...` within `srun bash -c '...'`.
    Documented: apptainer.org/docs, "Environment and Metadata".
    """
    for launch in script.training:
        container = container_of(launch)
        if container is None or container.is_pyxis or not container.has("-e", "--cleanenv", "-C", "--containall"):
            continue
        passed = _passed_variables(script, container)
        # An unknown word or file may pass any variable.
        if passed is None or _may_have_options(launch, container):
            continue
        remedy = "remove --cleanenv, or pass the variables with --env"
        name = next((name for name in _read_inside(script, launch, container) if name not in passed), None)
        if name is not None:
            what = f"the tasks in the container have no {name}"
            yield Problem(container.stage, what, remedy, (launch.line,))
            continue
        # mpirun inside of the container sets the ranks there. An agent knows its rank and its peers from its options.
        outside = launch.multiplier is not None and launch.stages.index(launch.multiplier) < launch.stages.index(
            container.stage
        )
        ranks = any(re.search(r"RANK|PROCID|WORLD|NTASKS|PMIX?_", each) for each in passed)
        given = any(read.name == "SLURM_PROCID" for word in launch.program.words for read in word.task_variables)
        given = given or re.search(r"\$\{?SLURM_(PROC|LOCAL)ID", launch.program.text) is not None
        if outside and not (ranks or given) and launch.agent is None and script.size_of(launch).has_several_tasks:
            what = "the tasks in the container have no SLURM_PROCID and no MASTER_ADDR"
            yield Problem(container.stage, what, remedy, (launch.line,))


_PASSES = lazy_pattern(r"(?:APPTAINER|SINGULARITY)ENV_(\w+)")


def _passed_variables(script: BatchScript, container: Container) -> set[str] | None:
    """Return the variables that a clean container gets nevertheless; None if it may get any."""
    words = container.stage.texts[: container.image or None]
    names = {match[1] for each in script.assignments if (match := _PASSES.fullmatch(each.name))}
    for file in _values(words, ("--env-file",)):
        body = script.file_written_to(file)
        if body is None:
            return None
        names |= set(re.findall(r"(?m)^(?:export\s+)?(\w+)=", body.text))
    for text in _values(words, ("--env",)):
        names |= set(re.findall(r"(?:\A|,)(\w+)=", text))
        if not re.match(r"\w+=", text):
            return None
    # `export "APPTAINERENV_$name=..."`, `env $(...)`
    dynamic = re.search(r"(APPTAINER|SINGULARITY)ENV_[\"']?[$({`]", script.code)
    return None if dynamic or script.sources_files else names


def _read_inside(script: BatchScript, launch: LaunchLine, container: Container) -> Iterator[str]:
    """Yield the variables of the host that a shell in the container expands: `bash -c '... $SLURM_NODEID'`."""
    behind = launch.stages[launch.stages.index(container.stage) + 1 :]
    if container.stage.words[0] not in launch.command.words or not any(stage.kind == "shell" for stage in behind):
        return
    exported = {each.name for each in script.exported_assignments if not each.in_task}
    inside = {each.name for each in script.assignments if each.in_task or launch in script.launches_of(each)}
    steps = script.commands_of(launch)
    inside |= {each.name for step in steps for each in step.written_assignments}
    inside |= {word for step in steps if step.name == "read" for word in step.texts[1:]}
    inside |= {loop.name for step in steps for loop in step.compounds if loop.kind == "for"}
    # A file that the code sources may set any variable.
    if any(step.name in {".", "source"} and not step.texts[-1].endswith(("/activate", "conda.sh")) for step in steps):
        return
    for part in (part for step in steps for part in with_nested_parts(step.syntax.parts)):
        # The batch shell has expanded what is not in the file. A default or a test allows for an empty variable.
        known = part.text.startswith("SLURM_") or (part.text in exported and part.text not in _KEPT)
        read = part.kind == "variable" and part.origin.exact and not re.match(r":?[-+?=]", part.detail)
        if read and known and part.text not in inside:
            yield part.text


_KEPT = frozenset({"HOME", "PATH", "PWD", "TERM", "LD_LIBRARY_PATH", "PS1", "SHELL", "USER"})
"""Variables that apptainer sets itself."""


@rule("KIT509", "warning", needs=("docker",))
def gpus_of_other_jobs(script: BatchScript) -> Iterator[Problem]:
    r"""The container gets all GPUs of the node, and the job has only some of them.

    A container of docker is a child of its daemon and not of the job: the limits of Slurm do not apply to it. With
    `--gpus all`, the program also uses the GPUs of other jobs. The rule is silent if nothing shows that other jobs
    share the node, such as an amount of memory, and if a comment names a reason.

    Fix: `docker run --gpus "\"device=$SLURM_JOB_GPUS\"" ...`, with the numbers that Slurm gave the job.
    Documented: docs.docker.com, "docker run --gpus"; slurm.schedmd.com/containers.html.
    """
    gpus = script.size.gpus_per_node
    whole = script.is_alone_on_nodes or "mem" not in script.options
    # A node with as few GPUs as a larger request is common.
    if not gpus or gpus > _SHARE_OF_NODE or whole or script.size.has_several_nodes:
        return
    for launch in script.launch_lines:
        container = container_of(launch)
        if container is None or container.stage.name != "docker" or script.has_reason(launch.line, named=True):
            continue
        texts = container.stage.texts
        given = [after for before, after in pairwise(texts) if before == "--gpus"]
        given += [text.partition("=")[2] for text in texts if text.startswith(("--gpus=", "NVIDIA_VISIBLE_DEVICES="))]
        if "all" in given or "--privileged" in texts:
            place = container.stage.word_of("gpus") or container.stage
            what = f"docker gives the container every GPU of the node, but the job has {gpus}"
            remedy = 'write --gpus "\\"device=$SLURM_JOB_GPUS\\""'
            yield Problem(place, what, remedy, (script.line_of_gpus, launch.line))


_SHARE_OF_NODE = 2
"""GPUs. A job with more of them may have a whole node."""
