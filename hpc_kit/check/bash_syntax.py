"""Reads shell text: commands and words, each with its place in the file.

tree-sitter parses the text, and this module turns its tree into the few types that the checks need. After an error,
tree-sitter goes on silently. Here an error ends the reading (`SyntaxTree.problem`), so that no rule has to guess.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import dropwhile, pairwise, takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hpc_kit.check.bash_grammar import NAME, BashGrammar, HereDocument, marked_nodes, parse_quoted
from hpc_kit.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from tree_sitter import Node


class SyntaxProblem(NamedTuple):
    """The first place that is not valid shell, or that the grammar does not know. Nothing from there on is read."""

    line: int
    what: str


class Origin(NamedTuple):
    """A place in the file. Not `exact`: the text is not written there as it is, so all of it counts as that place."""

    line: int = 1
    column: int = 1
    exact: bool = True


class Piece(NamedTuple):
    """The text from `start` up to the next piece comes from `origin`."""

    start: int
    origin: Origin


WHOLE_FILE = (Piece(0, Origin()),)


class Part(NamedTuple):
    """One part of a word.

    `text` is the literal text, the name of the variable, or the source inside `$(...)` or `$((...))`. `detail` is what
    follows the name in `${name...}`. `raw` is the part as written, without the quotes around it.
    """

    kind: Literal["text", "variable", "command", "arithmetic", "process"]
    text: str
    raw: str
    quoted: bool = False
    detail: str = ""
    origin: Origin = Origin()


class Word(NamedTuple):
    """One word. `elements` are the words of an array, as in `NAME=(a b c)`."""

    parts: tuple[Part, ...]
    raw: str
    line: int
    column: int
    elements: tuple[Word, ...] | None = None

    @property
    def literal(self) -> str | None:
        """The text of the word; None if bash expands something in it."""
        if self.elements is not None or any(part.kind != "text" for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)

    @property
    def plain(self) -> str | None:
        """The text of a word without any quotes or expansions; None otherwise."""
        return self.literal if not any(part.quoted for part in self.parts) else None

    @property
    def unquoted(self) -> str:
        """The word as it is written, without quotes around it."""
        return self.raw.strip("\"'")

    @property
    def variables(self) -> set[str]:
        """The variables that the word reads itself, outside of `$(...)`."""
        return {part.text for part in self.parts if part.kind == "variable"}


class Assignment(NamedTuple):
    """`NAME=value` or `NAME+=value`. `indexed`: one element of an array."""

    name: str
    value: Word
    append: bool
    indexed: bool


class Redirection(NamedTuple):
    """`2>FILE`: the operator, the target, and the descriptor if it is written. `|&` is `2>&1` in front of the `|`."""

    operator: str
    target: Word
    descriptor: str = ""

    @property
    def is_file(self) -> bool:
        """True if the target is a file: neither another descriptor, `2>&1`, nor a process, `> >(tee log)`."""
        copies = self.operator in {">&", "<&"} and re.fullmatch(r"\d*-?|\$\w+|\$\{\w+\}", self.target.raw)
        return not copies and all(part.kind != "process" for part in self.target.parts)

    @property
    def takes_errors(self) -> bool:
        """True for the standard error, also together with the standard output."""
        return self.descriptor == "2" or self.operator in {"&>", "&>>"} or (self.operator == ">&" and self.is_file)


def _last_file(redirections: Sequence[Redirection], *operators: str) -> Word | None:
    return next((each.target for each in reversed(redirections) if each.operator in operators and each.is_file), None)


class SimpleCommand(NamedTuple):
    """`NAME=value program word ... >output <input`. `document` has the parts of its here-document."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    line: int
    column: int
    document: tuple[Part, ...] | None = None
    redirections: tuple[Redirection, ...] = ()

    @property
    def output(self) -> Word | None:
        """The file that a redirection such as `>` empties."""
        return _last_file(self.redirections, ">", ">|", "&>", ">&")

    @property
    def appended(self) -> Word | None:
        """The file of `>>`."""
        return _last_file(self.redirections, ">>", "&>>")

    @property
    def input(self) -> Word | None:
        """The target of `<` or `<&`, or the text of `<<<`. `3<FILE` is not the standard input."""
        found = [each.target for each in self.redirections if each.operator in {"<", "<&"} and not each.descriptor]
        return found[-1] if found else None

    @property
    def parts(self) -> list[Part]:
        """The parts of all words and of all values of assignments."""
        values = [each.value for each in self.assignments]
        return [part for word in (*self.words, *values) for part in word.parts]

    @property
    def variables(self) -> set[str]:
        """The variables that the words read."""
        return {name for word in self.words for name in word.variables}


class CompoundCommand(NamedTuple):
    """`if`, `for`, `while`, `until`, `case`, `select`, `group`, `subshell`, `function`, `test` or `arithmetic`.

    `bodies` are its blocks with their roles: `condition`, `then`, `else`, `body`. `words` are the words of a `for`
    loop, or the word of a `case` and its patterns. `expression` is the text of `[[ ... ]]` or `((...))`.
    """

    kind: str
    bodies: tuple[tuple[str, Block], ...]
    line: int
    name: str = ""
    words: tuple[Word, ...] = ()
    expression: str = ""
    redirections: tuple[Redirection, ...] = ()

    @property
    def texts(self) -> list[str]:
        """The words as they are written."""
        return [word.raw for word in self.words]

    @property
    def parts(self) -> list[Part]:
        """The parts of all words."""
        return [part for word in self.words for part in word.parts]


Command = SimpleCommand | CompoundCommand


def program_of(command: Command) -> str | None:
    """Return the program or builtin of a simple command, if its name is written without quotes and expansions."""
    return command.words[0].plain if isinstance(command, SimpleCommand) and command.words else None


class Pipeline(NamedTuple):
    """Commands joined by `|`."""

    commands: tuple[Command, ...]
    negated: bool


class Chain(NamedTuple):
    """Pipelines joined by `&&` or `||`."""

    pipelines: tuple[Pipeline, ...]
    operators: tuple[str, ...]


class Statement(NamedTuple):
    """A chain up to its `;`, `&` or the end of the line."""

    chain: Chain
    background: bool
    line: int


Block = tuple[Statement, ...]


class SyntaxTree(NamedTuple):
    """The statements of a text, its comments, and the problem that ended the reading, if there was one.

    `comments` are the columns in which comments begin, by line.
    """

    block: Block
    comments: Mapping[int, int]
    problem: SyntaxProblem | None = None


def parse(text: str, pieces: Sequence[Piece] = WHOLE_FILE) -> SyntaxTree:
    """Parse shell text, up to the first statement that cannot be read.

    Args:
        text: Shell text.
        pieces: Where the text stands in the file (default: it is the file).
    """
    return _Reader(text, pieces).tree()


def simple_commands(block: Block) -> Iterator[SimpleCommand]:
    """Yield the simple commands of a block, also those in compound commands."""
    for pipeline in (each for statement in block for each in statement.chain.pipelines):
        for command in pipeline.commands:
            if isinstance(command, SimpleCommand):
                yield command
            else:
                for _, inner in command.bodies:
                    yield from simple_commands(inner)


def nested_block(part: Part) -> Block:
    """Return the commands of a `$(...)`, `<(...)` or `>(...)` with their places in the file; none for other parts."""
    return _parse_nested(part) if part.kind in {"command", "process"} else ()


@lru_cache(maxsize=1024)
def _parse_nested(part: Part) -> Block:
    start = part.origin
    if start.exact:
        start = start._replace(column=start.column + max(0, part.raw.find(part.text)))
    return parse(part.text, (Piece(0, start),)).block


def with_nested_parts(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts of words, and behind each `$(...)` the parts of the commands in it."""
    for part in parts:
        yield part
        for command in simple_commands(nested_block(part)):
            yield from with_nested_parts((*command.parts, *(command.document or ())))


class PipelineUse(NamedTuple):
    """A pipeline, and what contains it: `part` is the `$(...)` in a word of the command `user`.

    Without a `part`, `user` is the function with the pipeline, or None. `outer` is the pipeline of `user`.
    """

    pipeline: Pipeline
    user: Command | None = None
    part: Part | None = None
    outer: PipelineUse | None = None


def pipelines_of(block: Block, *inside: Any) -> Iterator[PipelineUse]:
    """Yield the pipelines of a block, also those in compound commands and in `$(...)`."""
    for pipeline in (each for statement in block for each in statement.chain.pipelines):
        use = PipelineUse(pipeline, *inside)
        yield use
        for command in pipeline.commands:
            for part in command.parts:
                yield from pipelines_of(nested_block(part), command, part, use)
            if isinstance(command, CompoundCommand):
                around = (command, None, use) if command.kind == "function" else inside
                for _, inner in command.bodies:
                    yield from pipelines_of(inner, *around)


class WrittenFile(NamedTuple):
    """A file that a command writes. `appends`: the command keeps what the file contains."""

    name: Word
    appends: bool


def written_files(command: Command) -> Iterator[WrittenFile]:
    """Yield the files that a command writes: by a redirection, as `tee FILE`, or by a process such as `>(tee FILE)`."""
    for each in command.redirections:
        if ">" in each.operator and each.is_file:
            yield WrittenFile(each.target, ">>" in each.operator)
    words = command.words if isinstance(command, SimpleCommand) else ()
    # A wrapper such as `stdbuf -oL tee` may start it.
    copies = list(dropwhile(lambda word: word.plain != "tee", words)) if program_of(command) in _TEES else []
    appends = any(re.match(r"-\w*a|--append\Z", word.plain or "") for word in copies)
    for word in copies[1:]:
        if not word.raw.startswith("-") and all(part.kind != "process" for part in word.parts):
            yield WrittenFile(word, appends)
    for part in (part for word in (*words, *(each.target for each in command.redirections)) for part in word.parts):
        if part.kind == "process":
            for inner in simple_commands(nested_block(part)):
                yield from written_files(inner)


_TEES = frozenset({"tee", "stdbuf", "unbuffer"})


_ASSIGNMENT = lazy_pattern(rf"({NAME})(\[[^\]]*\])?(\+?)=")


def as_assignment(word: Word, *, declared: bool = False) -> Assignment | None:
    """Return the assignment that a word is, or None. `declared`: it is an argument of `export`, which may be quoted."""
    head = word.parts[0] if word.parts else None
    readable = head is not None and head.kind == "text" and (declared or not head.quoted)
    match = _ASSIGNMENT.match(head.text) if head is not None and readable else None
    if head is None or match is None:
        return None
    origin = head.origin._replace(column=head.origin.column + match.end() if head.origin.exact else head.origin.column)
    rest = head._replace(text=head.text[match.end() :], raw=head.raw[match.end() :], origin=origin)
    parts = (rest, *word.parts[1:]) if rest.text else word.parts[1:]
    # In `export "NAME=value"`, the quote stands in front of the name.
    raw = word.raw[0] + word.raw[match.end() + 1 :] if head.quoted else word.raw[match.end() :]
    value = Word(parts, raw, word.line, origin.column, word.elements)
    return Assignment(match[1], value, bool(match[3]), match[2] is not None)


_TEXT = lazy_pattern(
    rf"[^\\$`]+|\$(?P<name>{NAME}|[0-9@*#?$!-])|\$\{{(?P<braced>[^{{}}]*)\}}|`(?P<command>(?:[^`\\]|\\.)*)`"
    r"|\\(?P<escaped>.|\Z)|[$`]",
    re.DOTALL,
)
_SPECIAL = lazy_pattern(r"[\\$`'\"()<>]")
"""Characters with a meaning in words: quotes, expansions and lists."""
_LOST = lazy_pattern(r"(?:(?!\\\n)\S)+")
_RESERVED = frozenset({
    "case", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "select", "then", "until", "while",
    "{", "}",
})  # fmt: skip
_ANSI = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "a": "\a", "r": "\r", "e": "\x1b"}
_BRACED = lazy_pattern(rf"{NAME}|[0-9]+|[@*#?$!-]")

_EXPANSIONS = frozenset({
    "string", "raw_string", "ansi_c_string", "translated_string", "simple_expansion", "expansion",
    "command_substitution", "arithmetic_expansion", "process_substitution",
})  # fmt: skip
_SIMPLE = frozenset({
    "command", "declaration_command", "unset_command", "variable_assignment", "variable_assignments",
})  # fmt: skip
_COMPOUND = {
    "test_command": "test", "compound_statement": "group", "subshell": "subshell", "if_statement": "if",
    "while_statement": "while", "for_statement": "for", "c_style_for_statement": "for", "case_statement": "case",
    "function_definition": "function",
}  # fmt: skip
_SEPARATORS = frozenset({"comment", ";", "&", "\n"})
_STATEMENTS = _SIMPLE | _COMPOUND.keys() | {"list", "pipeline", "negated_command", "redirected_statement"}
_READABLE = _STATEMENTS | _SEPARATORS
_ROLES = {
    "if": "condition", "elif": "condition", "while": "condition", "until": "condition", "then": "then", "else": "else",
    "case_item": "then", "do": "body", "{": "body", "(": "body",
}  # fmt: skip
"""Tokens and nodes that begin a block of a compound command, and its role there."""


_ERRORS_TOO = Redirection(">&", Word((Part("text", "1", "1"),), "1", 1, 1), "2")


class _Unreadable(Exception):
    """The tree of a statement is not what bash would read."""


class _Lost(NamedTuple):
    """A word without a node of its own."""

    start_byte: int
    end_byte: int
    type: str = "word"
    children: tuple[Node, ...] = ()


if TYPE_CHECKING:
    _Spanned = Node | _Lost


class _Reader:
    """One text, and the tree that tree-sitter makes of it."""

    def __init__(self, text: str, pieces: Sequence[Piece]) -> None:
        self.text = text
        self.pieces = pieces
        self._starts = [piece.start for piece in pieces]
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._grammar = BashGrammar(text)

    def tree(self) -> SyntaxTree:
        root = self._grammar.root
        origins = (self._origin(node.start_byte) for node in marked_nodes(root, "comment"))
        comments = {origin.line: origin.column for origin in origins}
        statements: list[Statement] = []
        problem: SyntaxProblem | None = None
        nodes = list(_unwrapped(root))
        for index, node in enumerate(nodes):
            try:
                if node.has_error or node.type not in _READABLE:
                    problem = self._problem(node.start_byte)
                elif node.type in _STATEMENTS:
                    statements.append(self._statement(nodes, index))
            except _Unreadable:
                problem = self._problem(node.start_byte)
            except RecursionError:
                problem = SyntaxProblem(self._origin(node.start_byte).line, "commands are nested too deep")
            if problem is not None:
                break
        if problem is None and root.has_error:
            problem = self._problem(len(self.text))
        if problem is not None:
            # A statement without an end before the problem belongs to what cannot be read.
            statements = [each for each in statements if each.line < problem.line]
        return SyntaxTree(tuple(statements), comments, problem)

    def _problem(self, start: int) -> SyntaxProblem:
        start += len(self.text[start:]) - len(self.text[start:].lstrip())
        line = self._origin(min(start, max(len(self.text) - 1, 0))).line
        shown = self.text[start:].partition("\n")[0].strip()[:40]
        shown = "".join(letter if letter.isprintable() else "?" for letter in shown)
        return SyntaxProblem(line, f"cannot read {shown!r}" if shown else "the end is missing")

    # Commands

    def _block(self, nodes: Sequence[Node]) -> Block:
        return tuple(self._statement(nodes, index) for index, node in enumerate(nodes) if node.type in _STATEMENTS)

    def _statement(self, nodes: Sequence[Node], index: int) -> Statement:
        node = nodes[index]
        background = index + 1 < len(nodes) and nodes[index + 1].type == "&"
        return Statement(self._chain(node), background, self._origin(node.start_byte).line)

    def _chain(self, node: Node) -> Chain:
        """Group the commands of a statement as bash does: in the grammar, `>` binds weaker than `|` and `&&`."""
        pipelines: list[Pipeline] = []
        operators: list[str] = []
        commands: list[Command] = []
        current: list[Node] = []
        negated = False
        for token in (*_tokens(node), None):
            kind = token.type if token is not None else ""
            if token is not None and kind not in {"&&", "||", "|", "|&"}:
                negated = negated or (not (current or commands) and self._is_negated(token))
                current.append(token)
            else:
                if current:
                    command = self._command(current)
                    if kind == "|&":
                        command = command._replace(redirections=(*command.redirections, _ERRORS_TOO))
                    commands.append(command)
                    current = []
                if kind not in {"|", "|&"}:
                    pipelines.append(Pipeline(tuple(commands), negated))
                    commands, negated = [], False
                    operators += [kind] if kind else []
        return Chain(tuple(pipelines), tuple(operators))

    def _is_negated(self, first: Node) -> bool:
        """Tell whether an odd number of `!` stands before a command."""
        if not self._grammar.negations:
            return False
        source, start = self._grammar.source, first.start_byte
        while start > 0 and source[start - 1 : start].isspace():
            start -= 1
        return len(self._grammar.negations.intersection(range(start, first.start_byte))) % 2 == 1

    def _command(self, nodes: list[Node]) -> Command:
        """Read a command and its redirections."""
        redirects = [node for node in nodes if node.type == "file_redirect"]
        node = next((node for node in nodes if node.type != "file_redirect"), None)
        if node is None:
            return self._simple([], redirects)
        if node.start_byte in self._grammar.tests:
            return CompoundCommand("test", (), self._origin(node.start_byte).line, expression=self._text(node))
        if node.type in _COMPOUND:
            return self._compound(node)._replace(redirections=tuple(self._redirections(redirects, [])))
        return self._simple([node] if node.type == "variable_assignment" else node.children, redirects)

    def _redirections(self, nodes: list[Node], words: list[_Spanned]) -> Iterator[Redirection]:
        """Yield redirections, and append to `words` what the grammar takes for names of files behind `>FILE`."""
        for node in sorted(nodes, key=lambda node: node.start_byte):
            operator = next(child for child in node.children if not child.is_named)
            target, *rest = self._runs(node.children[node.children.index(operator) + 1 :]) or [[]]
            words += [span for run in rest for span in run]
            if target and operator.start_byte not in self._grammar.documents:
                descriptor = self._text(node.children[0]) if operator != node.children[0] else ""
                yield Redirection(operator.type, self._word(target), descriptor)

    def _simple(self, nodes: list[Node], redirects: list[Node]) -> SimpleCommand:
        redirects = [*(node for node in nodes if node.type == "file_redirect"), *redirects]
        spans: list[_Spanned] = [node for node in nodes if node.type not in {"file_redirect", "comment"}]
        start = min(node.start_byte for node in (*spans, *redirects))
        redirections = tuple(self._redirections(redirects, spans))
        operators = [child.start_byte for node in redirects for child in node.children if not child.is_named]
        documents = [self._grammar.documents[each] for each in sorted(operators) if each in self._grammar.documents]
        document = self._document_parts(documents[-1]) if documents else None
        spans += self._lost([*spans, *redirects])
        assignments: list[Assignment] = []
        words: list[Word] = []
        for run in self._runs(sorted(spans, key=lambda span: span.start_byte)):
            word = self._word(run)
            assignment = as_assignment(word) if not words else None
            if assignment is not None:
                assignments.append(assignment)
            elif not words and word.plain in _RESERVED:
                raise _Unreadable
            else:
                words.append(word)
        place = self._origin(start)
        return SimpleCommand(tuple(assignments), tuple(words), place.line, place.column, document, redirections)

    def _lost(self, spans: list[_Spanned]) -> list[_Lost]:
        """Find words of a command that the grammar passes over, as the `-` of `a - 2>&1 | b`."""
        spans = sorted(spans, key=lambda span: span.start_byte)
        gaps = (_LOST.finditer(self.text, left.end_byte, right.start_byte) for left, right in pairwise(spans))
        return [_Lost(match.start(), match.end()) for matches in gaps for match in matches]

    def _compound(self, node: Node) -> CompoundCommand:
        first = node.children[0].type
        line = self._origin(node.start_byte).line
        kind = {"((": "arithmetic", "until": "until", "select": "select"}.get(first, _COMPOUND[node.type])
        if kind == "function":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            block = self._block([body]) if body is not None else ()
            return CompoundCommand(kind, (("body", block),), line, self._text(name) if name is not None else "")
        if kind in {"test", "arithmetic"}:
            return CompoundCommand(kind, (), line, expression=self._text(node))
        variable = node.child_by_field_name("variable") if kind in {"for", "select"} else None
        bodies = [(role, self._block(nodes)) for role, nodes in _sections(node)]
        written = [child for child in _named(node) if child.type not in {"case_item", "do_group", "compound_statement"}]
        if kind == "case":
            written += [each for item in node.children if item.type == "case_item" for each in _patterns(item)]
        elif variable is None or node.type.startswith("c_style"):
            written = []
        words = tuple(map(self._word, self._runs(each for each in written if each != variable)))
        return CompoundCommand(kind, tuple(bodies), line, self._text(variable) if variable is not None else "", words)

    # Words

    def _runs(self, nodes: Iterable[_Spanned]) -> list[list[_Spanned]]:
        """Group nodes that make one word: nothing stands between them, or a continued line."""
        runs: list[list[_Spanned]] = []
        for node in nodes:
            if runs and not self.text[runs[-1][-1].end_byte : node.start_byte].replace("\\\n", ""):
                runs[-1].append(node)
            else:
                runs.append([node])
        return runs

    def _word(self, run: list[_Spanned]) -> Word:
        start, end = run[0].start_byte, run[-1].end_byte
        raw, place = self.text[start:end], self._origin(start)
        # Most words are plain text.
        if raw and not _SPECIAL.search(raw):
            return Word((Part("text", raw, raw, origin=place),), raw, place.line, place.column)
        array = next((child for node in run for child in node.children if child.type == "array"), None)
        parts: list[Part] = []
        self._add_parts(parts, run, start, end if array is None else array.start_byte)
        elements = None
        if array is not None:
            elements = tuple(self._word(each) for each in self._runs(_named(array)))
        return Word(tuple(parts), raw, place.line, place.column, elements)

    def _add_parts(
        self, parts: list[Part], nodes: Iterable[_Spanned], start: int, end: int, *, shift: int = 0, quotes: str = ""
    ) -> None:
        """Append the parts between two offsets: the expansions of nodes, and the text between them.

        Args:
            parts: The parts so far.
            nodes: What holds the expansions.
            start: Offset in the text.
            end: Offset in the text.
            shift: What the offsets of the nodes are less than those of the text.
            quotes: Characters that a backslash escapes, where it does not escape all; empty outside quotes.
        """
        for node in (expansion for each in nodes for expansion in _expansions(each)):
            first, last = node.start_byte + shift, node.end_byte + shift
            # Blanks in front of an expansion are a part of its node.
            while self.text[first : first + 1] in {" ", "\t", "\n", "\\"} and first < last:
                first += 1
            if start <= first and last <= end:
                self._add_text(parts, start, first, quotes)
                self._add_expansion(parts, node, first, last, shift, quoted=bool(quotes))
                start = last
        self._add_text(parts, start, end, quotes)

    def _add_text(self, parts: list[Part], start: int, end: int, quotes: str) -> None:
        """Append literal text, and the expansions in it that the grammar does not see."""
        for match in _TEXT.finditer(self.text, start, end):
            offset, escaped, quoted = match.start(), match["escaped"], bool(quotes)
            if match["command"] is not None:
                parts.append(Part("command", match["command"], match[0], quoted, "", self._origin(offset)))
            elif match["name"] or match["braced"]:
                self._add_variable(parts, match[0], offset, quoted=quoted)
            elif escaped is None:
                # The `$` of `$"..."` is no text.
                if match[0] != "$" or quoted or not self.text.startswith('"', match.end()):
                    self._add_literal(parts, match[0], offset, quoted=quoted)
            elif quoted:
                kept = "" if escaped == "\n" else escaped if escaped and escaped in quotes else match[0]
                self._add_literal(parts, kept, offset, quoted=True)
            elif escaped != "\n":
                self._add_literal(parts, escaped, offset, quoted=True)

    def _add_variable(self, parts: list[Part], raw: str, offset: int, *, quoted: bool) -> None:
        """Append `$name` or `${name...}`."""
        if raw.startswith("${"):
            name = _BRACED.match(raw, 2)
            known = name[0] if name else ""
            parts.append(Part("variable", known, raw, quoted, raw[2 + len(known) : -1], self._origin(offset)))
        else:
            parts.append(Part("variable", raw[1:], raw, quoted, "", self._origin(offset)))

    def _add_literal(self, parts: list[Part], text: str, offset: int, *, quoted: bool) -> None:
        """Append literal text; unquoted text joins the part before it."""
        if not quoted and parts and parts[-1].kind == "text" and not parts[-1].quoted:
            last = parts.pop()
            parts.append(last._replace(text=last.text + text, raw=last.raw + text))
        else:
            parts.append(Part("text", text, text, quoted, "", self._origin(offset)))

    def _add_expansion(
        self, parts: list[Part], node: _Spanned, start: int, end: int, shift: int, *, quoted: bool
    ) -> None:
        raw, place = self.text[start:end], self._origin(start)
        if node.type in {"string", "translated_string"}:
            start += raw.index('"') + 1
            before = len(parts)
            self._add_parts(parts, node.children, start, end - 1, shift=shift, quotes='$`"\\')
            if len(parts) == before:
                self._add_literal(parts, "", start, quoted=True)
        elif node.type == "raw_string":
            self._add_literal(parts, raw[1:-1], start + 1, quoted=True)
        elif node.type == "ansi_c_string":
            text = re.sub(r"\\(.)", lambda match: _ANSI.get(match[1], match[0]), raw[2:-1], flags=re.DOTALL)
            self._add_literal(parts, text, start, quoted=True)
        elif node.type == "process_substitution":
            parts.append(Part("process", raw[2:-1], raw, quoted=True, origin=place))
        elif node.type == "command_substitution":
            parts.append(Part("command", raw[2:-1], raw, quoted, "", place))
        elif node.type == "arithmetic_expansion":
            inner = raw[2:-1] if raw.startswith("$[") else raw[3:-2]
            parts.append(Part("arithmetic", inner, raw, quoted, "", place))
        elif node.type == "simple_expansion" and raw[1:2].isdigit():
            # The grammar takes `$1_NAME` for one variable.
            self._add_variable(parts, raw[:2], start, quoted=quoted)
            self._add_text(parts, start + 2, end, '$`"\\' if quoted else "")
        else:
            self._add_variable(parts, raw, start, quoted=quoted)

    def _document_parts(self, document: HereDocument) -> tuple[Part, ...]:
        """Read the body of a here-document: bash expands it as if it were in double quotes, of which it has none."""
        start, end = document.start, document.end
        parts: list[Part] = []
        if document.quoted or not re.search(r"[$`\\]", self.text[start:end]):
            if start < end:
                self._add_literal(parts, self.text[start:end], start, quoted=True)
            return tuple(parts)
        root = parse_quoted(self.text[start:end])
        string = next((node for child in root.children for node in _expansions(child)), root)
        self._add_parts(parts, string.children, start, end, shift=start - 1, quotes="$`\\")
        return tuple(parts)

    def _text(self, node: Node) -> str:
        return self.text[node.start_byte : node.end_byte]

    def _origin(self, offset: int) -> Origin:
        """Return the place of an offset in the file."""
        if self.pieces is WHOLE_FILE:
            row = bisect_left(self._newlines, offset)
            return Origin(row + 1, offset - self._newlines[row - 1] if row else offset + 1)
        piece = self.pieces[max(0, bisect_right(self._starts, offset) - 1)]
        if not piece.origin.exact:
            return piece.origin
        first, row = bisect_left(self._newlines, piece.start), bisect_left(self._newlines, offset)
        if row == first:
            return Origin(piece.origin.line, piece.origin.column + offset - piece.start)
        return Origin(piece.origin.line + row - first, offset - self._newlines[row - 1])


def _tokens(node: Node) -> Iterator[Node]:
    """The commands, operators and redirections of a statement, in the order of the text."""
    if node.type in {"list", "pipeline", "negated_command", "redirected_statement"}:
        for child in node.children:
            yield from _tokens(child)
    elif node.type not in _SEPARATORS and node.type != "!":
        yield node


def _named(node: Node) -> list[Node]:
    return [child for child in node.children if child.is_named and child.type != "comment"]


def _patterns(item: Node) -> Iterator[Node]:
    """The patterns of one item of a `case`."""
    return takewhile(
        lambda child: child.type != ")", (child for child in item.children if child.type not in {"|", "("})
    )


def _unwrapped(node: Node) -> Iterator[Node]:
    """The statements of a text; those before an error may stand in the node of the error."""
    for child in node.children:
        if child.is_error:
            yield from child.children
            return
        yield child


def _expansions(node: _Spanned) -> Iterator[_Spanned]:
    """The outermost expansions and quotes in a node, or the node itself."""
    if node.type in _EXPANSIONS:
        yield node
    else:
        for child in node.children:
            yield from _expansions(child)


def _sections(node: Node) -> list[tuple[str, list[Node]]]:
    """The blocks of a compound command, with their roles."""
    sections: list[tuple[str, list[Node]]] = []
    for child in node.children:
        if child.type in _ROLES and (not child.is_named or child.type == "case_item"):
            sections.append((_ROLES[child.type], []))
        if child.type in {"elif_clause", "else_clause", "do_group"}:
            sections += _sections(child)
        elif child.type == "case_item":
            sections[-1][1].extend(child.children)
        elif child.type == "compound_statement" and node.type.endswith("for_statement"):
            sections += _sections(child)
        elif sections and (child.type in _STATEMENTS or child.type == "&"):
            sections[-1][1].append(child)
    return sections
