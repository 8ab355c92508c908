"""Collects the tracebacks of a log, also those of several ranks, and finds the exception that explains most."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from hpc_kit.runs.why.log_reader import SOFTENED, SUCCESS
from hpc_kit.runs.why.rules import DIRECT, Match, match_line, rule_named
from hpc_kit.runs.why.translations import translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpc_kit.runs.why.log_reader import Line, ShapeMemory

MAX_MESSAGE_LINES = 30
MAX_TRACEBACK_LINES = 200
_LOADER = "/torch/utils/data/dataloader.py"
TRACEBACK = "Traceback (most recent call last)"
_OF_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d+)\)")
_IN_WORKER = re.compile(r"[\w.]+: Caught [\w.]+ in (?:DataLoader worker process \d+|pin memory thread)")
"""An exception that contains the traceback of another process or thread as its message."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?')
_RICH_FRAME = re.compile(r"^[│|] (?P<file>\S+\.py):(?P<line>\d+) in (?P<name>\S+)")
_EXCEPTION = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Failure|Iteration|[A-Z]\w*)(?::|$)"
    r"|^[a-z_][\w.]*\.[A-Z]\w*(?::|$)"
)
_CHAIN = (
    "During handling of the above exception",
    "The above exception was the direct cause",
    "The following exception",
)
_NESTED = re.compile(
    r"Original Traceback|-- Process \d|following error(?! \(look up)|^ray::|remote |[Ww]orker.*:$", re.MULTILINE
)
_NOT_MESSAGE = re.compile(
    r"^(?:srun: |slurmstepd|\[?[WEIF]\d{3,4} |\[[WEIF]\d|terminate called|Fatal Python|Exception ignored"
    r"|Error in atexit|Abort\(\d+\) on node |(?:\S+: )?(?:curl|wget|tar|cp|mv|rm|ls|cat|rsync|mkdir|s?scp|ssh): "
    r"|(?i:(?:\S+ ){,2}(?:attempt|try|run|job|step) #?\d+ (?:has )?(?:ended|failed|exited)\b)"
    r"|(?i:(?:\S{1,40} ){,3}\W?(?:attempt|try|retry)(?: number)?[ :=#]+\d+\b)"
    r"|hpc-kit: |\*\*\*|={10}|-{10}|Traceback |WARNING|INFO|ERROR:|wandb:|\d{4}-\d\d-\d\d|\+ |[\w.-]+:\d+:\d+ \[\d\])"
)
_THREAD = re.compile(r"^Exception in thread |^Exception in default")
_CHILD = re.compile(r"^Process \S+:$")
_IGNORED = re.compile(r"^(?:Exception ignored |--- Logging error ---|Error in atexit|Error in sys\.excepthook)")
_LOGGED = re.compile(
    r"\b(?:ERROR|WARNING|WARN|CRITICAL)\b|(?i:\b(?:caught|ignor|skipp|retry|handled|recover|non-fatal"
    r"|will continue))"
)
GOES_ON = re.compile(
    r"(?i)^(?!.*\b(?:error|exception|aborting|exiting|giving up|not be ignored|cannot|please)\b).{,90}"
    r"\b(?:skipp(?:ed|ing)|ignor(?:ed|ing)|continuing|disabl(?:ed|ing)|(?:falling|fell) back|retrying"
    r"|(?:going on|proceeding|continues?|running|training) without)\b"
)
"""A program has caught an exception and prints that it continues."""

_SAYS_IGNORED = re.compile(r"(?i)\((?:ignor(?:ed|ing)|skipp(?:ed|ing)|(?:non-|not )fatal|continuing)\)|\bnon-fatal\b")
"""A logger prints, right before an exception, that the exception does not end the program."""

_WRONG_ARGUMENTS = re.compile(
    r"^TypeError: (?P<what>\S+\(\) (?:got an unexpected keyword argument|got multiple values for|missing \d+ required"
    r"|takes .*positional arguments? but).*)"
)

_KEY = re.compile(r"KeyError: '(?P<variable>\w+)'$")
_OS = re.compile(r"^<frozen os>$|(?:^|/)os\.py$")
"""The file of `os.environ[...]`."""

_READS_ARGUMENT = re.compile(r"^(?!.*\w\[[^\[\]]*argv\[).*argv\[")
"""The only list of the line is that of the arguments: an argument may also be the index of another list."""

_INSTALLED = re.compile(
    r"site-packages|dist-packages|/lib/python\d|lib64/python\d|^<|/(?:usr/)?bin/(?:torchrun|accelerate|deepspeed)$"
    r"|/torch/|/hpc_kit/runtime/|runpy\.py|\.p(?:yx|xi|xd)$"
)
"""Files that are not of the program itself."""

_LACKS = re.compile(
    r"^(?:AttributeError: (?:partially initialized )?module"
    r"|ImportError: cannot import name '\w+' from(?: partially initialized module)?) '(?P<module>\w+)'"
    r"(?:.*\((?P<path>/\S+\.py)\)$)?"
)
"""A module does not have what its importer expects: it may be a file of the project of the same name."""

_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python\d[\d.]*/(?!(?:site|dist)-packages/)|^<frozen (?!importlib)")
"""A file of Python itself, which fits the modules of Python."""

_PACKAGES = frozenset({
    "PIL", "accelerate", "apex", "cv2", "deepspeed", "einops", "h5py", "hydra", "jax", "lightning", "matplotlib",
    "numpy", "omegaconf", "pandas", "ray", "safetensors", "scipy", "sklearn", "tensorboard", "tensorflow", "torch",
    "torchaudio", "torchvision", "tqdm", "transformers", "triton", "wandb", "yaml",
})  # fmt: skip
"""Packages whose names no project gives to a module of its own on purpose."""

_MEETS = {"_rendezvous", "next_rendezvous"}
"""Functions in which the agents of torchrun wait for each other before they start the ranks."""

_GROUP_NOISE = re.compile(r"[\w.]*(?:ExceptionGroup|CancelledError)\b")


@dataclass(slots=True)
class Traceback:
    """A traceback with the chain of its causes."""

    lines: list[str] = field(default_factory=list)
    matches: list[tuple[Match, Line]] = field(default_factory=list)
    """Rules that match its exceptions and their messages."""
    exceptions: list[tuple[str, Line]] = field(default_factory=list)
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    frames_before: list[int] = field(default_factory=list)
    """The number of frames up to each exception."""
    state: Literal["frames", "message", "rich", "ignored"] = "frames"
    """The kind of line that comes next. A traceback of rich has frames; one that Python ignores is no failure."""
    message_lines: int = 0
    is_group: bool = False
    """An exception group. Its cause is the first exception in it that is no group and no cancellation."""
    is_thread: bool = False
    is_child: bool = False
    """It comes from a process of multiprocessing, whose parent may continue."""
    indent: int = 0
    """Spaces that a report puts in front of each line."""
    is_nested: bool = False
    """The message of an exception contains the traceback of another process."""
    is_logged: bool = False
    """A line of a logger comes right before it."""
    logged_as: str = ""
    """The line right before it."""
    rank: int | None = None
    """The rank of a traceback that a rank prints about another one, such as a failed checkpoint of torch."""
    is_survived: bool = False
    """The line right after it states that the program continues."""

    @property
    def text(self) -> str:
        """The traceback as Python printed it."""
        return "\n".join(self.lines).rstrip()

    @property
    def has_cause_of_group(self) -> bool:
        """An exception group already contains the exception that caused it."""
        return self.is_group and any(not _GROUP_NOISE.match(text) for text, _ in self.exceptions)

    @property
    def own_frame(self) -> tuple[str, int, str] | None:
        """The last frame outside of installed packages."""
        own = [frame for frame in self.frames if is_own_file(frame[0])]
        return own[-1] if own else None

    @property
    def begins_program(self) -> bool:
        """Its first frame is the first line of a program: nothing caught the exception, or this line did."""
        first = next(filter(None, map(_FRAME.match, self.lines)), None)
        name = first["name"] if first else self.frames[0][2] if self.frames else ""
        return name in {"<module>", "_run_module_as_main"}

    @property
    def source(self) -> str:
        """The line of code that raised the last exception, if Python printed it."""
        places = [index for index, text in enumerate(self.lines) if _FRAME.match(text)]
        following = self.lines[places[-1] + 1 :][:1] if places else []
        return following[0].strip() if following and following[0].startswith(" ") else ""

    @property
    def waits_in(self) -> str | None:
        """The collective, or the backward pass with its collectives, in which it ended."""
        is_backward = any(name == "_engine_run_backward" for _, _, name in self.frames)
        return self.collective or ("the collectives of backward" if is_backward else None)

    def keep_frames_of(self, line: Line) -> None:
        """Keep the frames of the exception to which a line belongs, if the program itself is among them."""
        place = sum(each.number <= line.number for _, each in self.exceptions)
        ends = [0, *self.frames_before]
        frames = self.frames[ends[max(place - 1, 0)] : ends[place]]
        if any(is_own_file(file) for file, _, _ in frames):
            self.frames = frames

    @property
    def collective(self) -> str | None:
        """The function of torch.distributed in which it ended."""
        calls = [name for file, _, name in self.frames if file.endswith("/torch/distributed/distributed_c10d.py")]
        return calls[-1] if calls else None


def is_own_file(file: str) -> bool:
    """Return whether a file is of the program itself, and not of an installed package."""
    return _INSTALLED.search(file) is None


class TracebackReader:
    """Reads the tracebacks of one file.

    Args:
        memory: The shapes of lines of progress, which end the message of an exception.
        add: Called with each complete traceback: the rule and the line that fit it best.
    """

    def __init__(self, memory: ShapeMemory, add: Callable[[Match, Line, Traceback], None]) -> None:
        self._memory, self._add = memory, add
        self._unfinished: dict[int | None, Traceback] = {}
        """Tracebacks of which further lines may follow, by rank."""
        self._before: Line | None = None

    @property
    def is_open(self) -> bool:
        """The next line may belong to a traceback."""
        return bool(self._unfinished)

    def is_in_worker(self, rank: int | None) -> bool:
        """Return whether the traceback of a rank is in the message about another process of the rank."""
        traceback = self._unfinished.get(rank)
        return traceback is not None and any(_IN_WORKER.match(text) for text, _ in traceback.exceptions)

    def close_all(self, before: Line | None) -> None:
        """End all tracebacks after a line."""
        self._before = before
        for rank in list(self._unfinished):
            self._close(rank)

    def read(self, line: Line, before: Line | None) -> bool:
        """Return whether a line belongs to a traceback. `before` is the line before it."""
        self._before = before
        at = line.body.find(TRACEBACK)
        key = line.rank if line.rank in self._unfinished or at >= 0 else None if None in self._unfinished else line.rank
        traceback = self._unfinished.get(key)
        if at >= 0:
            self._open(line, at, traceback, key)
            return True
        return traceback is not None and self._continue(traceback, line, key)

    def _open(self, line: Line, at: int, traceback: Traceback | None, key: int | None) -> None:
        rich = line.body.lstrip().startswith(("╭", "┌"))
        if traceback is None:
            traceback = self._unfinished[key] = Traceback(is_group="Exception Group" in line.body)
            is_before = self._before and self._before.number >= line.number - 1 and self._before.rank == line.rank
            before = self._before.body if self._before and is_before else ""
            if _IGNORED.match(before):
                traceback.state = "ignored"
            if of_rank := _OF_RANK.match(line.body, at):
                traceback.rank = int(of_rank[1])
            traceback.indent = 2 if line.body.startswith("  traceback : ") else 0
            traceback.is_thread = bool(_THREAD.match(before))
            traceback.is_child = bool(_CHILD.match(before))
            traceback.logged_as = before
            traceback.is_survived = bool(_SAYS_IGNORED.search(before))
            traceback.is_logged = bool(_LOGGED.search(before)) or bool(
                _LOGGED.search(line.text.partition(TRACEBACK)[0])
            )
        elif traceback.state == "message" and not any(
            chain in text for text in traceback.lines[-3:] for chain in _CHAIN
        ):
            # A header within a message begins a nested traceback, or the traceback of the next failure.
            nested = traceback.is_group and line.body.lstrip().startswith("|")
            if not nested and not _NESTED.search("\n".join([*traceback.lines[-2:], line.body])):
                self._close(key)
                self._open(line, at, None, key)
                return
            traceback.is_nested = True
        if traceback.state != "ignored":
            traceback.state = "rich" if rich else "frames"
        traceback.lines.append(line.body if rich else line.body[max(at - 9, 0) if "Original " in line.body else at :])

    def _continue(self, traceback: Traceback, line: Line, key: int | None) -> bool:
        """Add a line to an open traceback. Return whether it belongs to it."""
        body = re.sub(r"^ *(?:\| ?|\+-[-+ \d]*$)", "", line.body) if traceback.is_group else line.body
        if body[: traceback.indent].isspace():
            body = body[traceback.indent :]
        if len(traceback.lines) > MAX_TRACEBACK_LINES:
            # A recursion prints thousands of frames: keep the first and the last ones.
            del traceback.lines[MAX_TRACEBACK_LINES // 2 : MAX_TRACEBACK_LINES // 2 + 50]
            del traceback.frames[MAX_TRACEBACK_LINES // 4 : -20]
        if traceback.state == "ignored":
            if body.startswith(" "):
                return True
            del self._unfinished[key]
            return True
        if traceback.state == "rich":
            traceback.lines.append(body)
            # rich draws a box around the frames; the exception follows below the box.
            if found := _RICH_FRAME.match(body):
                traceback.frames.append((found["file"], int(found["line"]), found["name"]))
            if body.startswith(("╰", "└")):
                traceback.state = "frames"
            return True
        if traceback.state == "frames":
            return self._frame(traceback, line, body, key)
        return self._message(traceback, line, body, key)

    def _frame(self, traceback: Traceback, line: Line, body: str, key: int | None) -> bool:
        if not body or body.startswith((" ", "\t")):
            traceback.lines.append(body)
            if (found := _FRAME.match(body)) and not traceback.has_cause_of_group:
                traceback.frames.append((found["file"], int(found["line"]), found["name"] or ""))
            return True
        if not _EXCEPTION.match(body):
            # Output of another process in the middle of the frames; more than a few lines of it mean a cut log.
            traceback.message_lines += 1
            if traceback.message_lines > 3:
                self._close(key)
            return False
        traceback.lines.append(body)
        if not traceback.has_cause_of_group:
            traceback.exceptions.append((body, line))
            traceback.frames_before.append(len(traceback.frames))
            traceback.matches += [(match, line) for match in match_line(translate(body), exception=True)]
        traceback.state, traceback.message_lines = "message", 0
        return True

    def _message(self, traceback: Traceback, line: Line, body: str, key: int | None) -> bool:
        if any(body.startswith(chain) for chain in _CHAIN):
            traceback.lines.append(body)
            traceback.message_lines = 0
            return True
        traceback.message_lines += 1
        goes_on = GOES_ON.match(body) is not None and not body.startswith((" ", "\t"))
        traceback.is_survived |= goes_on
        is_message = traceback.message_lines <= MAX_MESSAGE_LINES and not _NOT_MESSAGE.match(body) and line.time is None
        if goes_on or not is_message or self._looks_like_output(traceback, line):
            self._close(key)
            return False
        traceback.lines.append(body)
        traceback.matches += [(match, line) for match in match_line(body) if not SOFTENED.search(body)]
        return True

    def _looks_like_output(self, traceback: Traceback, line: Line) -> bool:
        """Return whether a line after an exception is known output of the program, such as a step and its loss."""
        shape = line.text.encode().translate(None, b"0123456789")
        last = traceback.lines[-1].encode().translate(None, b"0123456789")
        repeats = line.body.encode().translate(None, b"0123456789") == last and line.body != traceback.lines[-1]
        if repeats and not line.body.startswith((" ", "\t")):
            return True
        return shape in self._memory.counting or bool(SUCCESS.search(line.body))

    def _close(self, key: int | None) -> None:
        """Turn a traceback into an event of the rule that fits its exceptions best."""
        traceback = self._unfinished.pop(key)
        if traceback.state == "ignored":
            return
        if not traceback.exceptions:
            if traceback.frames and self._before:
                self._add(Match(rule_named("cut-traceback"), {}), self._before, traceback)
            return
        best, line = _primary(traceback)
        traceback.keep_frames_of(line)
        best = _specify(traceback, best, line)
        # The exception of the worker itself is in the part of the message that is missing.
        is_cut = _IN_WORKER.match(traceback.exceptions[-1][0]) is not None
        self._add(best._replace(is_hint=best.is_hint or is_cut), line, traceback)


def _specify(traceback: Traceback, best: Match, line: Line) -> Match:
    """Return the rule that fits an exception better than its text alone, by the frames of its traceback."""
    called_by = traceback.frames[-1] if traceback.frames else ("", 0, "")
    # The main process lost a worker of the data loader, and not another rank.
    if best.rule.class_ == "connection-lost" and any(_LOADER in frame[0] for frame in traceback.frames):
        return Match(rule_named("dataloader-worker"), {})
    # A spawned process reads its arguments from its parent: an EOFError there means that the parent ended.
    if best.rule.class_ == "corrupt-file" and called_by[0].endswith("multiprocessing/spawn.py"):
        return Match(rule_named("spawn-parent"), {})
    if best.rule.class_ == "collective-timeout" and any(name in _MEETS for *_, name in traceback.frames):
        return Match(rule_named("rendezvous-timeout"), {})
    if (found := _WRONG_ARGUMENTS.match(line.body)) and "-packages/" in called_by[0]:
        return Match(rule_named("library-arguments"), {"detail": found["what"]})
    if (found := _KEY.match(line.body)) and called_by[2] == "__getitem__" and _OS.search(called_by[0]):
        return best if best.rule.weight >= DIRECT else Match(rule_named("environment-variable"), found.groupdict())
    if line.body == "OSError: [Errno 22] Invalid argument" and called_by[0].endswith("/torch/serialization.py"):
        return Match(rule_named("corrupt-file"), {})
    if line.body.startswith("IndexError: ") and _READS_ARGUMENT.search(traceback.source):
        return Match(rule_named("missing-argument"), {"detail": traceback.source})
    return _find_shadowed(traceback, best, line.body) or best


def _find_shadowed(traceback: Traceback, best: Match, text: str) -> Match | None:
    """Return that a file of the project has the name of a module, if an exception and its frames show it."""
    found = _LACKS.match(text)
    if found is None or not traceback.frames or best.rule.class_ == "python-version":
        return None
    name = found["module"]
    files = [file for file, _, _ in traceback.frames]
    # Python looks for modules in the folder of the program. A package elsewhere is one that its user edits.
    folder = next((file.rpartition("/")[0] for file in files if is_own_file(file)), "")
    beside = {f"{folder}/{name}.py", f"{folder}/{name}/__init__.py"}
    own = [file for file in (found["path"] or "", *files) if file in beside]
    if not own and found["path"]:
        return None
    is_standard = name in sys.stdlib_module_names
    # Packages and Python itself import no module of the project: it has replaced another one.
    is_foreign = any(file in beside and not is_own_file(before) for before, file in pairwise(files))
    is_foreign |= not is_own_file(files[-1])
    if own and (name in _PACKAGES or (is_standard and is_foreign)):
        return Match(rule_named("shadowed-module"), {"path": own[0]})
    if is_standard and _STANDARD_LIBRARY.search(files[-1]):
        best = Match(rule_named("shadowed-python-module"), {"module": name})
    if best.rule.name != "shadowed-python-module":
        return None
    detail = f"probably {folder}/{name}.py" if is_standard else f"look in {folder}"
    groups = best.groups | ({"detail": detail} if folder else {})
    return best._replace(groups=groups)


def _primary(traceback: Traceback) -> tuple[Match, Line]:
    """Return the clearest match of a chain of exceptions: a direct statement of a cause, else the last one."""
    causes = [pair for pair in traceback.matches if pair[0].rule.kind in {"cause", "soft"}]
    direct = [pair for pair in causes if pair[0].rule.weight >= DIRECT]
    if direct:
        return max(direct, key=lambda pair: (not pair[0].is_hint, pair[0].rule.weight))
    text, line = traceback.exceptions[-1]
    last = [pair for pair in traceback.matches if pair[1] is line]
    specific = [pair for pair in last if pair[0].rule.name != "python-exception"]
    # Rules with a weight of 5 or less match every end of a program.
    victims = [pair for pair in traceback.matches if pair[0].rule.kind == "consequence" and pair[0].rule.weight > 5]
    if traceback.is_nested:
        victims = []
    return (
        specific or victims or last or causes or [(Match(rule_named("python-exception"), {"exception": text}), line)]
    )[0]
