"""How each launcher reads its own options: srun and mpirun, torchrun and its like, Python."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.shell.values import Text
from hpc_kit.check.stages import Stage, starts_something
from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.directives import PLUGIN_OPTION
from hpc_kit.slurm.getopt import parse_options

_MPIRUN_ARITY = {
    "H": 1, "N": 1, "bind-to": 1, "c": 1, "env": 2, "f": 1, "genv": 2, "genvlist": 1, "gmca": 2, "host": 1,
    "hostfile": 1, "hosts": 1, "machinefile": 1, "map-by": 1, "mca": 2, "n": 1, "np": 1, "npernode": 1, "o": 1,
    "output": 1, "path": 1, "ppn": 1, "prefix": 1, "rank-by": 1, "wdir": 1, "x": 1,
}  # fmt: skip
"""How many words each of mpirun's options takes, over all MPIs."""

_AGENT_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher.api": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "hpc_kit.runtime.torchrun": "torchrun",
}
_FLAGS = {
    "standalone", "module", "m", "no-python", "run-path", "use-env", "multi-gpu", "cpu", "tpu", "debug", "quiet", "q",
    "use-deepspeed", "use-fsdp", "use-megatron-lm", "same-network", "help", "force", "no-local-rank",
    "enable-each-rank-log", "save-pid", "no-ssh", "no-ssh-check", "use-xpu", "ipex", "use-tp",
}  # fmt: skip


def srun(words: list[Text]) -> tuple[Stage, list[Text]]:
    """The srun with its options, and the words of what it starts."""
    plain, opaque = _without_plugins(words[1:])
    fault = None
    try:
        given, rest = parse_options([word.text for word in plain], "srun")
        start = len(plain) - len(rest)
        options = {
            each.option.name: _value(plain[each.word], each.value) for each in given.given if each.word < len(plain)
        }
    except DirectiveError as error:
        fault, options = error, {}
        start = next((index for index, word in enumerate(plain) if starts_something(word)), len(plain))
    # A variable in front of a program that we know holds more options.
    while start < len(plain) and plain[start].opaque and any(starts_something(word) for word in plain[start + 1 :]):
        opaque = True
        more, after = srun([words[0], *plain[start + 1 :]])
        options |= more.options
        fault = fault or more.fault
        start = len(plain) - len(after)
        break
    return Stage("srun", tuple(words), options, opaque=opaque, fault=fault), plain[start:]


def _without_plugins(words: list[Text]) -> tuple[list[Text], bool]:
    """The words without options of plugins that many sites add (`--container-image`, `--environment`, ...)."""
    kept: list[Text] = []
    found, before, index = False, True, 0
    while index < len(words):
        text = words[index].text
        # Behind the program only pyxis' own are sure to be no words of that.
        before = before and not starts_something(words[index])
        if re.match(r"--(no-)?container-", text) or (before and PLUGIN_OPTION.match(text)):
            found = True
            takes_next = "=" not in text and not re.search(r"writable|readonly|entrypoint|home|root|ccm", text)
            index += 2 if takes_next else 1
            continue
        kept.append(words[index])
        index += 1
    return kept, found


def _value(word: Text, value: str | None) -> Text:
    """The value of an option with the place where it stands."""
    if not value:
        return word._replace(text="")
    start = len(word.text) - len(value)
    return word.part(start, len(word.text)) if start >= 0 and word.text.endswith(value) else word


def exported(stage: Stage) -> Iterator[tuple[str, Text]]:
    """The variables of `srun --export=ALL,NAME=value`."""
    text = stage.options.get("export")
    for match in re.finditer(r"(?:^|,)([A-Za-z_]\w*)=([^,]*)", text.text if text else ""):
        if text is not None:
            yield match[1], text.part(match.start(2), match.end(2))


def mpirun(words: list[Text]) -> tuple[Stage, list[Text], list[tuple[str, Text]]]:
    """The mpirun with its options, what it starts, and the variables it gives that (`-x NAME=value`)."""
    index, gives, options = 1, list[tuple[str, Text]](), dict[str, Text]()
    while index < len(words) and words[index].text.startswith("-"):
        name = words[index].text.lstrip("-")
        name, equals, _ = name.partition("=")
        arity = 0 if equals else _MPIRUN_ARITY.get(name, 0)
        if arity and index + 1 < len(words):
            value = words[index + 1]
            options[name] = value
            if name == "x" and "=" in value.text:
                start = value.text.index("=") + 1
                gives.append((value.text[: start - 1], value.part(start, len(value.text))))
        index += 1 + arity
    if index < len(words) and not starts_something(words[index]):
        known = [place for place in range(index, len(words)) if starts_something(words[place])]
        index = known[0] if known else index
    return Stage("mpirun", tuple(words), options), words[index:], gives


def agent(name: str, words: list[Text]) -> tuple[Stage, list[Text]]:
    """The torchrun, `accelerate launch` or deepspeed, and the Python program behind its options."""
    rest = words[1:]
    if name == "accelerate":
        if not rest or rest[0].text != "launch":
            return Stage("program", tuple(words), {}), []
        rest = rest[1:]
    return _argparse(name, words, rest)


def _may_be_several(word: Text) -> bool:
    """A variable that is not known, and may hold options."""
    return word.opaque or bool(re.fullmatch(r"\$[@*]|\$\{(\w+\[)?[@*]\]?\}", word.text))


def _is_file(word: Text) -> bool:
    return word.text.endswith(".py")


def _argparse(kind: str, words: list[Text], rest: list[Text]) -> tuple[Stage, list[Text]]:
    """Options as argparse takes them, up to the program; that one is Python's unless it is said otherwise."""
    options: dict[str, Text] = {}
    overruled: list[Text] = []
    index, opaque = 0, False
    while index < len(rest):
        text = rest[index].text
        if _may_be_several(rest[index]) and index + 1 < len(rest):
            opaque = True
        elif not text.startswith("-"):
            break
        else:
            name, equals, value = text.lstrip("-").partition("=")
            name = name.replace("_", "-")
            overruled += [options[name]] if name in options else []
            following = rest[index + 1] if index + 1 < len(rest) else None
            if equals:
                options[name] = rest[index].part(len(text) - len(value), len(text))
            elif name in _FLAGS or following is None or following.text.startswith("-") or _is_file(following):
                options[name] = rest[index]._replace(text="")
            else:
                options[name] = following
                index += 1
        index += 1
    program = rest[index:]
    opaque = opaque or (bool(program) and _may_be_several(program[0]))
    stage = Stage(kind, tuple(words), options, opaque=opaque, overruled=tuple(overruled))
    if not program or "no-python" in options:
        return stage, program
    module = [program[0]._replace(text="-m")] if options.keys() & {"m", "module"} else []
    return stage, [program[0]._replace(text="python"), *module, *program]


def python(words: list[Text]) -> tuple[Stage, list[Text]]:
    """A Python: `module`, `file` or `code` among its options says what it runs."""
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        if text in {"-m", "-c"} and index + 1 < len(words):
            target = words[index + 1]
            if text == "-c":
                return Stage("python", tuple(words), {"code": target}), []
            kind = _AGENT_MODULES.get(target.text)
            if target.text == "accelerate" and [word.text for word in words[index + 2 : index + 3]] == ["launch"]:
                kind, index = "accelerate", index + 1
            if kind:
                return _argparse(kind, words, words[index + 2 :])
            return Stage("python", tuple(words), {"module": target}), []
        index += 2 if text in {"-W", "-X"} else 1
    while (
        index < len(words) and words[index].opaque and index + 1 < len(words) and words[index + 1].text.endswith(".py")
    ):
        index += 1
    return Stage("python", tuple(words), {"file": words[index]} if index < len(words) else {}), []
