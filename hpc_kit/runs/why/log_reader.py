"""Reads logs of any size: finds their files, skips lines of known shapes, and removes prefixes of launchers."""

from __future__ import annotations

import datetime as dt
import gzip
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from hpc_kit.run_files import PATCH, RECORD, STEPS, SUMMARY, VERDICT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

READ_BYTES = 1 << 16
"""Bytes of one block. Blocks of this size stay in the cache of a CPU."""

MAX_LINE = 1 << 16
"""Bytes of one line that are kept: a line without end must not fill the memory."""

TAIL_BYTES = 1 << 14
KEPT_LINES = 100
"""Lines at the end of a file in which each rank's last line and reports of success are looked for."""

LABEL_SAMPLE = 32
"""Lines in which the label of a launcher is looked for, at least."""

STATES = 10
"""States of a progress bar that count as one line of progress."""

MAX_SHAPES = 200_000
MANY_SHAPES = 20_000
"""Shapes after which a log counts as free text. New lines then matter only with a word of `_TRIGGERS`."""

_TRIGGERS = (
    b"rror", b"xcept", b"raceback", b"fail", b"fatal", b"kill", b"abort", b"annot", b"can't", b"not ", b"no ",
    b"denied", b"exceed", b"invalid", b"mismatch", b"time", b"limit", b"memory", b"warn", b"srun", b"slurm", b"sbatch",
    b"sig", b"segment", b"illegal", b"terminat", b"cancel", b"nan", b"inf", b"refused", b"closed", b"reset", b"lost",
    b"rank", b"nccl", b"xid", b"mpi", b"pmi", b"quota", b"space", b"stale", b"module", b"conda", b"unbound", b"syntax",
    b"container", b"pyxis", b"jobid", b"jobstate", b"exit", b"assert", b"root cause", b"free(", b"cuda", b"license",
    b"unable", b"unrecognized", b"file", b"batch", b"bus ", b"missing", b"shape", b"expected", b"require", b"address",
    b"version", b"interrupt", b"attempt", b"done", b"finish", b"complet", b"master",
    b"transfer", b"horovod", b" pml ", b"daemon", b".lock", b" updates", b"kept ",
)  # fmt: skip
_DIGITS = b"0123456789"
_NOT_TEXT = bytes({*range(1, 32), 127} - {*b"\b\t\n\r\x1b"})
_CONTROLS = bytes({*range(32), 127} - {*b"\n"})
_RECORDS = frozenset({RECORD, PATCH, SUMMARY, STEPS, VERDICT})
_NOT_LOGS = frozenset({
    ".json", ".jsonl", ".patch", ".md", ".toml", ".yaml", ".yml", ".csv", ".pt", ".pth", ".bin", ".ckpt",
    ".safetensors", ".npz", ".npy", ".pkl", ".pickle", ".so", ".o", ".pyc", ".png", ".jpg", ".pdf", ".zip", ".tar",
    ".whl", ".sif", ".h5", ".parquet",
})  # fmt: skip
_PROGRESS = re.compile(
    r"(?i)step|epoch|\biter|it/s|s/it|loss|batch|train|eval|valid|progress|\d ?%|sample|token|\bacc|\blr\b"
    r"|frame(?! #)|chunk|\d+/\d+"
)
_PATH = re.compile(r"/[A-Za-z_][\w.-]*/\S*")
"""The path of a file, whose folders may be named after a training."""

SOFTENED = re.compile(
    r"\b(?:WARN(?:ING)?|[A-Z]\w*Warning|INFO|DEBUG|NOTE|NOTICE)\b(?! ?NET)|^\[?[WI]\d{3,4} |^\[[WI][ \d]|^[Ww]arning:"
    r"|(?i:\bretry(?:ing)?\b|\battempt \d+ ?(?:/|of) ?\d+|will (?:try|retry)|(?<!and )try again|falling back|fallback"
    r"|\bcontinuing\b|\bignor(?:ed|ing)\b"
    r"|\bskipp(?:ed|ing)\b|\brecovered\b|non-fatal|harmless|\bhandled\b)"
)
"""A line states that the program continues, or is a warning."""

SUCCESS = re.compile(
    r"(?i)\b(?:training|train|job|run|evaluation|finetuning|fine-tuning|experiment|script|all (?:ranks|epochs"
    r"|steps))\b(?: \w+){0,2} (?:is )?(?:complete[d]?|finished|done|ended)(?: successfully)?\b(?!.*(?:fail"
    r"|\b(?:code|status|rc)[ :=]+-?[1-9]\d{0,2}\b|\bwith[ :=]+[1-9]\d{0,2}\W*$))"
    r"|\b(?:finished|done) training|\bcompleted successfully|\bsuccessfully (?:completed|finished)"
    r"|`?Trainer\.fit`? stopped: `?max_|\ball done\b|^done[.!]?$|\bsaved (?:the )?final (?:model"
    r"|weights|checkpoint) (?:to|in|at)\b.*$|\btrain_runtime\b"
    r"|\bexit(?:ed)?(?: with)? (?:code|status)[ :=]+0\b"
)
"""The program reports success."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]P^_X][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]"
)


class LogFile(NamedTuple):
    """One file of the job, with the rank and the job that its name shows."""

    path: Path
    name: str
    """The path as the user gave it."""
    rank: int | None = None
    host: str | None = None
    skip: int = 0
    """Bytes at its beginning that are not read."""
    element: str = ""
    """The element of a job array that wrote it, such as `123_4`, or only `_4`; one of several jobs of submitit."""


class Line(NamedTuple):
    """A line of a log without terminal escapes and prefixes."""

    file: str
    number: int
    text: str
    """The line without escapes."""
    body: str
    """The text without the prefixes of launchers and without a time stamp."""
    rank: int | None
    host: str | None
    time: float | None
    """Seconds since the beginning of its year: only differences within a job matter."""
    is_local: bool = False
    """The rank is torchrun's number of the process on its node: the rank itself in a job of one node only."""


# ---- files


def find_logs(paths: Iterable[Path]) -> list[LogFile]:
    """Return the files to read: those of folders, too, except models, archives and the records of a run.

    Ranks, hosts and elements of arrays come from their names.
    """
    files: list[tuple[Path, str]] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(entry for entry in path.rglob("*") if entry.is_file() and entry.suffix not in _NOT_LOGS)
            files += [(entry, str(entry)) for entry in inside]
        else:
            files.append((path, str(path)))
    # `runs/train/*/rank-0.log` names a run twice: by its id, and by the link `latest`.
    read = {path.resolve(): (path, name) for path, name in reversed(files) if path.name not in _RECORDS}
    files = list(read.values())[::-1]
    # The names of the files are compared with each other: `gpu03.log` beside `gpu04.log` are hosts, `fit-0.log` beside
    # `fit-1.log` are ranks, and `9_0.log` beside `9_1.log` are elements.
    numbered = _ranks_of_numbered([path for path, _ in files])
    hosts = _hosts_of_named([path for path, _ in files if path not in numbered or not _NUMBERED.search(path.name)])
    elements = _elements_of_named([path for path, _ in files])
    ranks = {path: _rank_in_name(path) for path, _ in files} | {
        path: rank for path, rank in numbered.items() if path not in elements
    }
    return [
        LogFile(path, name, ranks[path], hosts.get(path), element=elements.get(path, ""))
        for path, name in sorted(files, key=lambda file: natural_order(file[1]))
    ]


_RANK_NAME = re.compile(
    r"(?:^|[^a-z])(?:rank|task|proc|worker|^rsl\.(?:out|error))[-_.]?(\d+)(?!\d)|(?:^|[a-z]-)\d+(?:_\d+)?_(\d+)_log\.(?:out|err)$",
    re.IGNORECASE,
)
_NOT_RANKS = re.compile(
    r"(?:^slurm-.*|node|host|attempt|epoch|step|job|part|chunk|seed|fold|trial|sweep)[-_.]?$", re.IGNORECASE
)
_ELASTIC_NAME = re.compile(r"attempt_\d+/(\d+)/std(?:out|err)\.log$")
_HOST_NAME = re.compile(
    r"^(?:node[-_]|host[-_]|log[-_]|slurmd?-)?([a-z][a-z0-9-]*?\d+[a-z0-9-]*)\.(?:log|out|err|txt)$"
)
_HOST_OF_SYSTEM_LOG = re.compile(
    r"^(?:slurmd|dmesg|kern|kernel|journal|journalctl|syslog|messages|epilog|prolog|health)[-_.]([a-z][a-z0-9-]*?\d+[a-z0-9-]*)(?:\.\w+)?$"
    r"|^([a-z][a-z0-9-]*?\d+[a-z0-9-]*)[-_.](?:slurmd|dmesg|kern|kernel|journal|syslog|messages|epilog|prolog|health)(?:\.\w+)?$"
)
"""A log of the operating system that is named after its host."""

_NUMBERED = re.compile(r"[-_.](?:0|[1-9]\d?)\.\w+$")
"""The end of the name of a program's log, such as `fit-0.log`: hosts have more digits, or no hyphen before them."""

_ELEMENT = re.compile(
    r"(?:^slurm-|(?<![A-Za-z\d.])(?!20\d{6}_|\d_))(?P<array>\d+)_(?P<index>\d{1,7})(?![A-Za-z\d]|_log\.)"
)
"""The name of a log of an array (`%A_%a`). It is no date, and not submitit's name of job and task."""

_ELEMENT_OF_ARRAY = re.compile(r"(?<![\d.])(?P<array>\d+)[-_.](?P<index>\d{1,7})(?!\d|_log\.)")
_ARRAY = re.compile(
    r"(?m)--array[= ]\S*\d|^#SBATCH +-a\b|^ *\d+_(?:\d+|\[[^\]]*\]) *[| ]"
    r"|\b(?:SLURM_ARRAY_TASK_ID|ArrayTaskId)[=:] *\d"
)
"""A script or a listing shows that the job is an array."""

_SUBMITIT_JOB = re.compile(r"(?:^|[a-z]-)(\d+)_\d+_log\.(?:out|err)$")
_FILE_OF_ELEMENT = re.compile(r"""[^\s"'=>/]*(?:%\d*a|\$\{?SLURM_ARRAY_TASK_ID\}?)[\w.%{}$-]*""")
_FILE_OF_TASK = re.compile(r"(?:--output|-o)[= ]?(?!\S*%a)\S*%t")
"""Each task of the job writes to a file of its own."""

_NAMED_RANK = re.compile(rb"(?i)\brank[ _=:#]*(\d+)")
HEAD_BYTES = 1 << 14

_NOT_HOSTS = re.compile(
    r"^(?:rank|task|job|slurm|out|log|err|train|test|step|proc|worker|stdout|stderr|attempt|run|seed|fold|trial|sweep)"
    r"[-_]?\d|^node[-_]\d|.*\d{3,}[-_]\d+\.|.*-\d+-[a-z]"
)


def _rank_in_name(path: Path) -> int | None:
    if found := _RANK_NAME.search(path.name):
        return int(found[1] or found[2])
    found = _ELASTIC_NAME.search(path.as_posix())
    return int(found[1]) if found else None


def _hosts_of_named(paths: list[Path]) -> dict[Path, str]:
    """Return the hosts of files that differ in the name of a host (`gpu03.log`), or of logs of a system."""
    groups: dict[tuple[Path, str], dict[Path, str]] = {}
    for path in paths:
        if found := None if _NOT_HOSTS.match(path.name) else _HOST_NAME.match(path.name):
            groups.setdefault((path.parent, re.sub(r"\d+", "", found[1])), {})[path] = found[1]
    hosts = {path: host for group in groups.values() if len(set(group.values())) > 1 for path, host in group.items()}
    system = {path: found[1] or found[2] for path in paths if (found := _HOST_OF_SYSTEM_LOG.match(path.name))}
    return hosts | system


def _ranks_of_numbered(paths: list[Path]) -> dict[Path, int]:
    """Return the ranks of files that differ only in their last number, if the numbers count from 0 without a gap."""
    groups: dict[tuple[str, str, str], dict[int, Path]] = {}
    for path in paths:
        found = re.match(r"(.*?)(\d+)(\D*)$", path.name)
        if found and not _NOT_RANKS.search(found[1]):
            groups.setdefault((str(path.parent), found[1], found[3]), {})[int(found[2])] = path
    counted = [group for group in groups.values() if len(group) > 1 and sorted(group) == list(range(len(group)))]
    return {path: rank for group in counted for rank, path in group.items()}


def _elements_of_named(paths: list[Path]) -> dict[Path, str]:
    """Return the elements of arrays that wrote files, by the names of the files, or of their folders.

    A name that does not contain Slurm's `ARRAY_INDEX` counts if a script names its files so, or if an array is listed.
    """
    heads = {path: read_head(path) for path in paths if len(paths) > 1}
    # A search in the logs of a thousand ranks takes longer than reading them: scripts and listings are short.
    texts = [head.decode(errors="replace") for head in heads.values() if len(head) < HEAD_BYTES or b"rray" in head]
    patterns = [_ELEMENT_OF_ARRAY if any(map(_ARRAY.search, texts)) else _ELEMENT]
    patterns += [_file_pattern(word) for text in texts if "#SBATCH" in text for word in _FILE_OF_ELEMENT.findall(text)]
    found = {path: match for pattern in patterns for path in paths if (match := pattern.search(path.name))}
    groups = {path: match.groupdict() for path, match in found.items()}
    elements = {path: f"{group.get('array', '')}_{group['index']}" for path, group in groups.items()}
    ranks = {path: set(_NAMED_RANK.findall(heads.get(path, b""))) for path in elements}
    names_ranks = all(ranks[path] == {group["index"].encode()} for path, group in groups.items())
    # With %t in the name, or if each file names the rank of its index, the numbers are ranks.
    if any(map(_FILE_OF_TASK.search, texts)) or (len(elements) > 1 and names_ranks):
        elements = {path: element for path, element in elements.items() if path.name.startswith("slurm-")}
    folders = {path: name for path in paths for name in path.parts[:-1] if re.fullmatch(r"\d+_\d+", name)}
    jobs = {path: match[1] for path in paths if (match := _SUBMITIT_JOB.search(path.name)) and path not in elements}
    # A single folder or job is no array.
    more = [each for each in (folders, jobs) if len(set(each.values())) > 1]
    return {path: element for each in more for path, element in each.items()} | elements


def _file_pattern(word: str) -> re.Pattern[str]:
    """Return the pattern of the names of files that a word of a script gives to elements of an array."""
    parts = re.split(r"(%\d*[A-Za-z]|\$\{?\w+\}?)", word)
    kinds = {"A": r"(?P<array>\d+)", "a": r"(?P<index>\d+)"}
    names = {part: "a" if "TASK_ID" in part else part.lstrip("%0123456789") for part in parts[1::2]}
    text = "".join(
        re.escape(part) if at % 2 == 0 else kinds.pop(names[part], r"[^/]+?") for at, part in enumerate(parts)
    )
    return re.compile(rf"^{text}$")


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file; none if it cannot be read."""
    try:
        with _open(path) as file:
            return file.read(HEAD_BYTES)
    except (OSError, EOFError, gzip.BadGzipFile):
        return b""


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return the key that sorts names by the numbers in them."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


# ---- lines


class ShapeMemory:
    """The shapes of lines that no rule matches. A shape is a line without its digits."""

    def __init__(self) -> None:
        self.plain: set[bytes] = set()
        self.counting: set[bytes] = set()
        """Shapes of progress, such as steps and losses."""

    def add(self, shape: bytes, text: str) -> bool:
        """Remember the shape of a line. Return whether it is a new shape of progress."""
        if len(self.plain) < MAX_SHAPES:
            self.plain.add(shape)
            if len(shape) != len(text) and _PROGRESS.search(_PATH.sub("", text)):
                self.counting.add(shape)
                return True
        return False


class LogReader:
    """Reads one log and yields the lines that may matter.

    Args:
        log: The file.
        memory: Shapes of lines that do not matter. It is shared by the files of a job.
        wants_all: Returns whether the next lines matter whatever their shape.
    """

    def __init__(self, log: LogFile, memory: ShapeMemory, wants_all: Callable[[], bool]) -> None:
        self.log = log
        self.lines = 0
        self.last: list[tuple[int, str]] = []
        """The last lines with their numbers."""
        self.is_binary = self.is_cut = False
        """The file is no text, or its last line has no end."""
        self.error: str | None = None
        self._memory = memory
        self._wants_all = wants_all
        self._muted: set[bytes] = set()
        self._seen: set[bytes] = set()
        """Shapes of the memory that the file contains."""
        self._progress_shapes: set[bytes] | None = None
        self._progress = 0
        self._shapes: list[bytes] = []
        self._lines: list[bytes] = []
        self._position = 0
        self._counted = 0

    def mute(self, shape: bytes) -> None:
        """Skip further lines of a shape in this file."""
        self._muted.add(shape)

    def line_before(self) -> str:
        """Return the line before the current one, if it is in the same block; the last state of a progress bar."""
        line = self._lines[self._position - 1] if self._position else b""
        return clean_line(line.rstrip(b"\r").rpartition(b"\r")[2])

    def freeze(self) -> None:
        """Count progress from here on: lines whose shapes were printed before."""
        if self._progress_shapes is None:
            self._seen.update(self._shapes[: self._position])
            self._progress_shapes = self._seen & self._memory.counting
            self._counted = self._position

    def count_progress(self) -> int:
        """Return the lines since `freeze` that repeat a shape of progress: the program went on."""
        seen, counting = self._progress_shapes, self._memory.counting
        if seen is None:
            return self._progress
        # Most lines of a block have the same few shapes.
        for line, number in Counter(self._shapes[self._counted : self._position]).items():
            states = line.split(b"\r") if b"\r" in line else [line]
            if shapes := counting.intersection(states):
                is_known = not seen.isdisjoint(shapes)
                # A progress bar that is closed prints a few states more.
                self._progress += (number - (not is_known)) * (1 + len(states) // STATES)
                seen |= shapes
        self._counted = self._position
        return self._progress

    def has_progress(self) -> bool:
        """Return whether the file contains lines of a shape of progress."""
        return not self._seen.isdisjoint(self._memory.counting)

    def __iter__(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield number, text and shape of each line that may matter."""
        try:
            with _open(self.log.path) as file:
                if self.log.skip:
                    file.seek(self.log.skip)
                yield from self._blocks(file)
        except (OSError, EOFError, gzip.BadGzipFile) as error:
            self.error = (error.strerror if isinstance(error, OSError) else None) or str(error)

    def _blocks(self, file: BinaryIO) -> Iterator[tuple[int, str, bytes]]:
        rest = b""
        tail = b""
        while data := file.read(READ_BYTES):
            if not self.lines and not rest:
                data = _decode_wide(data)
                self.is_binary = _is_binary(data)
                if self.is_binary:
                    return
            data = rest + data
            cut = data.rfind(b"\n")
            if cut < 0 and len(data) < MAX_LINE:
                rest = data
                continue
            block, rest = (data[:cut], data[cut + 1 :]) if cut >= 0 else (data, b"")
            yield from self._lines_of(block)
            # A short block alone may have less than the last lines.
            tail = block if len(block) > 4096 or not tail else tail + b"\n" + block
        if rest:
            self.is_cut = True
            yield from self._lines_of(rest)
            tail += b"\n" + rest
        self._keep_last(tail)

    def _lines_of(self, block: bytes) -> Iterator[tuple[int, str, bytes]]:
        """Yield the lines of a block whose shapes are new, and those that follow while the reader wants all."""
        shapes = self._shapes = block.translate(None, _DIGITS).split(b"\n")
        first, self._counted, self._position = self.lines, 0, 0
        self.lines += len(shapes)
        distinct = set(shapes)
        new = distinct - self._memory.plain
        if self._muted:
            new -= self._muted
        # A program whose lines never repeat would be read line by line: search for words first.
        if len(self._memory.plain) > MANY_SHAPES:
            new = {shape for shape in new if has_trigger(shape.lower())}
        if new or self._wants_all():
            lines = self._lines = block.split(b"\n")
            for index in self._indices(shapes, new):
                self._position = index
                yield from self._segments(first + index + 1, lines[index], shapes[index])
        self._position = len(shapes)
        if self._progress_shapes is not None:
            self.count_progress()
        # Before the first error, lines are only noted as normal output.
        else:
            self._seen |= distinct & self._memory.plain

    def _indices(self, shapes: list[bytes], new: set[bytes]) -> Iterator[int]:
        """Yield the indices of lines to read, in order. What the reader wants may change with each line."""
        plain, wants_all = self._memory.plain, self._wants_all
        last = -1
        following = chain((index for index, shape in enumerate(shapes) if shape in new), [len(shapes)])
        for index in following:
            while last + 1 < index and wants_all():
                last += 1
                yield last
            if (
                index > last
                and index < len(shapes)
                and ((shapes[index] not in plain and shapes[index] not in self._muted) or wants_all())
            ):
                last = index
                yield index

    def _segments(self, number: int, line: bytes, shape: bytes) -> Iterator[tuple[int, str, bytes]]:
        """Yield a line; each state of a progress bar apart."""
        if b"\r" not in line:
            yield number, clean_line(line[:MAX_LINE]), shape
            return
        for part in line[-MAX_LINE:].split(b"\r"):
            part_shape = part.translate(None, _DIGITS)
            if part and (part_shape not in self._memory.plain or self._wants_all()):
                yield number, clean_line(part), part_shape

    def _keep_last(self, tail: bytes) -> None:
        lines = tail[-TAIL_BYTES:].split(b"\n")[-KEPT_LINES:]
        text = b"\n".join(lines)
        if text.isascii() and len(text.translate(None, _CONTROLS)) == len(text):
            texts = text.decode().split("\n")
        else:
            texts = [clean_line(line.rstrip(b"\r").rpartition(b"\r")[2]) for line in lines]
        first = self.lines - len(lines) + 1
        self.last = [(number, clean) for number, line in enumerate(texts, first) if (clean := line.rstrip())]


def has_trigger(shape: bytes) -> bool:
    """Return whether a lower-case line contains a word that messages about failures contain."""
    return any(word in shape for word in _TRIGGERS)


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    return open(path, "rb", buffering=0)  # noqa: PTH123 - unbuffered: large blocks


def _decode_wide(data: bytes) -> bytes:
    """Return UTF-16, which PowerShell writes, as UTF-8."""
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return data.decode("utf-16", errors="replace").encode()
    return data


def _is_binary(data: bytes) -> bool:
    sample = data[:4096]
    # Logs contain single zeros, where nodes wrote to one file over NFS.
    controls = len(sample) - len(sample.translate(None, _NOT_TEXT))
    return data[:4] == b"\x7fELF" or sample.count(0) > len(sample) // 10 or controls > len(sample) // 20


def clean_line(line: bytes) -> str:
    """Decode a line and remove terminal escapes and control characters."""
    return _without_escapes(line.decode("utf-8", errors="replace"))


def _without_escapes(text: str) -> str:
    return text if text.isprintable() else _ESCAPES.sub("", text)


def read_end_times(log: LogFile, labels: re.Pattern[str] | None, size: int) -> list[float]:
    """Return the times in front of the lines in the last bytes of a log: see `read_end_lines`."""
    return [line.time for line in read_end_lines(log, labels, size) if line.time is not None]


def read_end_lines(log: LogFile, labels: re.Pattern[str] | None, size: int) -> list[Line]:
    """Return the lines in the last bytes of a log, without those of Slurm; none if it is gone.

    The lines are numbered from the end: the last one is 0, the one before it is -1.

    Args:
        log: The log.
        labels: The pattern of its labels.
        size: Bytes at its end that are read. Of a compressed log, these are the first ones.
    """
    try:
        with _open(log.path) as file:
            file.seek(max(log.path.stat().st_size - size, 0) if log.path.suffix != ".gz" else 0)
            lines = file.read(size).split(b"\n")
    except (OSError, EOFError, gzip.BadGzipFile):
        return []
    if lines[-1:] == [b""]:
        lines.pop()
    # The first line may be a part of one.
    parsed = (parse_line(log, labels, 1 - at, clean_line(lines[-at][:MAX_LINE])) for at in range(len(lines) - 1, 0, -1))
    return [line for line in parsed if "slurmstepd" not in line.text]


def time_of_day(line: Line) -> float | None:
    """Return the seconds since midnight that a line begins with, also if it has no date."""
    if line.time is not None:
        return line.time % 86400
    found = _TIME_OF_DAY.match(line.text)
    return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3]) if found else None


# ---- prefixes


_RANK_PREFIX = re.compile(
    r"\[(?:(?P<host2>[a-z][a-z-]*\d[\w.-]*)[ :|/] ?)?[Rr](?:ank)?:? ?(?P<rank>\d+)(?:(?: ?/ ?| of )\d+)?\](?:: ?| )"
    r"|\[(?:default|trainer|worker|role)_?(?P<local>\d+)\]: ?"
    r"|\[\d+,(?P<mpi>\d+)\](?:<std\w+>)?: ?"
    r"|\[(?P<bare>\d+)\]:? (?!NCCL)"
    r"|\((?:(?:Worker_TP|VllmWorker rank=)(?P<vllm>\d+) |[\w.<>-]+ )?pid=\d+(?:, ip=(?P<host>[\d.]+))?\) ?"
)
_STAMP = re.compile(
    r" ?[\[(]?(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _,](?P<time>\d\d:\d\d:\d\d)"
    r"(?P<fraction>[.,]\d+)?(?:Z"
    r"|[+-]\d\d:?\d\d)?[\])]?:? ?"
)
_VLLM = re.compile(
    r"(?:ERROR|WARNING|INFO) (?P<month>\d\d)-(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d) \[[\w./]+:\d+\](?: |$)"
)
"""The prefix of each line that vLLM logs, also of those of a traceback."""

_SHORT_STAMP = re.compile(
    r"\[?(?P<month>\d\d)/(?P<day>\d\d)(?:/\d{4})? (?P<time>\d\d:\d\d:\d\d)(?P<fraction>[.,]\d+)?\]?:? ?"
)
"""The date of the examples of Transformers, and of Detectron2: the month comes first."""

_SYSLOG = re.compile(r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d) (?P<host>[\w.-]+) ")
_STAMPS = (_SYSLOG, _STAMP, _VLLM, _SHORT_STAMP)
_CLOCK = re.compile(r":\d\d:\d\d")
_DMESG = re.compile(
    r"\[[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d) (?P<year>\d{4})\] "
)
"""The time in `dmesg -T`."""

_TIME_OF_DAY = re.compile(r"(?:\s*\d+: ?)?(?:[\[(][\w-]+[\])] ?)?[\[(]?([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?![\d:])")
_GLOG = re.compile(r"\[?[EWIF](?P<month>\d{1,2}?)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)(?P<fraction>\.\d+)?")
_IN_TEXT = re.compile(r"(?:CANCELLED AT |: )(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T_ ](?P<time>\d\d:\d\d:\d\d)")
_HOST_IN_TEXT = re.compile(
    r"^(?P<host>[\w.-]+):\d+:\d+ \[\d+\] |^slurmstepd-(?P<host2>[\w.-]+): |^\[(?P<host3>[a-z][\w.-]*):\d+(?: *:\d+)*\]"
)
_RANK_IN_TEXT = re.compile(
    r"\[(?:PG [^\]]*?)?Rank ?(\d+)\]|[|(\[] ?rank[ _:=]?(\d+) ?[|)\]]"
    r"|\bon rank:? (\d+)\b|(?:^|\b(?:DEBUG|INFO|WARNING|ERROR)\b[\s|:\])-]+(?:[\w.]+ ?[|:\])-]+)*)\s*rank (\d+)\b"
    r"|\(rank (\d+) in comm \d|\brank=(\d+)\b",
    re.IGNORECASE,
)
_SRUN_LABEL = re.compile(r"\s*(?P<rank>\d+):(?!\d\d:\d\d\b) ?")  # a time of day is no label
_HOST_LABEL = re.compile(r"(?P<host>[a-z][a-z0-9-]*\d[\w.-]*|localhost): ")
_HOST_WORD = (
    r"(?P<host>(?!(?:step|epoch|iter|rank|cuda|batch|device|default|trainer|worker|role)[-_]?\d|gpu\d\b)"
    r"[a-z][a-z0-9-]*\d[\w.-]*)"
)
_CLEAR_HOST = re.compile(r"(?<!\d)0\d|\d{4}")
_RANK_AND_HOST_LABELS = (
    re.compile(rf"\[[Rr](?:ank)? ?(?P<rank>\d+)\]:? {_HOST_WORD}(?::? |$)"),
    re.compile(rf"\[?{_HOST_WORD}\]?[:/ ] ?\[?[Rr]ank ?(?P<rank>\d+)\]?(?::? |$)"),
    re.compile(rf"\[?(?P<rank>\d+)[@/]{_HOST_WORD}(?:\]:?|:) ?"),
)
"""Labels of programs and site wrappers: `[rank3] n07 `, `n07 [rank3]: `, `3@n07: `."""

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def detect_labels(path: Path, rank: int | None = None) -> re.Pattern[str] | None:
    """Return the pattern of the labels that a launcher writes in front of the lines of a file, if it does.

    Labels are `3: ` (srun --label), `n3: ` (pdsh, clush), or name rank and host. The groups are `rank` and `host`. If
    the name of the file gives the rank, one line is enough that names it with a host.
    """
    head = [line for line in read_head(path).splitlines() if line.strip()]
    sample = head[:: max(len(head) // LABEL_SAMPLE, 1)]
    # Lines of one shape have labels, or have none.
    shapes = [line.translate(None, _DIGITS) for line in sample]
    of_shape = {shape: line.decode(errors="replace") for shape, line in zip(shapes, sample, strict=True)}
    for pattern in (_SRUN_LABEL, _HOST_LABEL):
        labelled = {shape for shape, line in of_shape.items() if match_label(pattern, line)}
        if len(sample) > 1 and sum(shape in labelled for shape in shapes) * 2 > len(sample):
            return pattern
    for pattern in _RANK_AND_HOST_LABELS:
        labelled = {shape for shape, line in of_shape.items() if pattern.match(line)}
        lines = [line.decode(errors="replace") for line, shape in zip(sample, shapes, strict=True) if shape in labelled]
        found = [(label["rank"], label["host"]) for line in lines if (label := pattern.match(line))]
        # A host stays the same in all lines of a rank, other words with a number do not. A single one may be a model.
        hosts = {host for _, host in found}
        ranks = {number for number, _ in found}
        is_enough = len(ranks) < len(found) or ranks == {str(rank)}
        if (len(hosts) > 1 or any(map(_CLEAR_HOST.search, hosts))) and len(set(found)) == len(ranks) and is_enough:
            return pattern
    return None


def match_label(labels: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the label of a line, also behind the time stamp that a pipe to `ts` adds."""
    stamp = _STAMP.match(text)
    return labels.match(text, stamp.end() if stamp else 0)


def parse_line(log: LogFile, labels: re.Pattern[str] | None, number: int, text: str) -> Line:
    """Return a line without its prefixes, with the rank, host and time that they give."""
    body, rank, host, time = text, log.rank, log.host, None
    local = bare = stated = None
    if labels and (label := match_label(labels, body)):
        given = label.groupdict()
        rank = int(given["rank"]) if "rank" in given else rank
        host = given.get("host", host)
        body = body[: label.start()] + body[label.end() :]
    # The search for a time of day is faster than that for its formats.
    stamps = _STAMPS if _CLOCK.search(body) else ()
    for _ in range(4):
        if prefix := _RANK_PREFIX.match(body):
            stated = prefix["rank"] or prefix["mpi"] or prefix["vllm"] or stated
            local, bare = prefix["local"] or local, prefix["bare"] or bare
            host = prefix["host"] or prefix["host2"] or host
        elif prefix := next(filter(None, (pattern.match(body) for pattern in stamps)), None):
            time = _seconds(prefix)
            host = prefix.groupdict().get("host") or host
        else:
            break
        body = body[prefix.end() :]
    if stamps and time is None and (stamp := _DMESG.match(body) or _GLOG.match(body) or _IN_TEXT.search(body)):
        time = _seconds(stamp)
    if found := _HOST_IN_TEXT.match(body):
        host = found["host"] or found["host2"] or found["host3"] or host
    # If torchrun labels the processes, the label of srun is the number of a node.
    rank = int(stated) if stated else log.rank if local else rank
    if rank is None and (found := _RANK_IN_TEXT.search(body)):
        rank = int(next(filter(None, found.groups())))
    is_local = rank is None and local is not None
    if rank is None and (own := local or bare):
        rank = int(own)
    return Line(log.name, number, text, body, rank, host, time, is_local)


def _seconds(stamp: re.Match[str]) -> float | None:
    """Return the seconds since the beginning of the year. Years are ignored, because some formats have none."""
    name = stamp["month"]
    month = _MONTHS.index(name) + 1 if name.isalpha() else int(name)
    fraction = stamp.groupdict().get("fraction") or ""
    try:
        moment = dt.datetime.combine(dt.date(2024, month, int(stamp["day"])), dt.time.fromisoformat(stamp["time"]))
    except ValueError:
        return None
    return seconds_of_year(moment) + float(f"0.{fraction[1:] or 0}")


def seconds_of_year(moment: dt.datetime) -> float:
    """Return the seconds since the beginning of the year, counted as in a leap year."""
    day = dt.date(2024, moment.month, moment.day).timetuple().tm_yday
    return day * 86400 + moment.hour * 3600 + moment.minute * 60 + moment.second
