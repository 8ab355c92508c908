"""The grammar of shell: makes a tree of tokens, by recursive descent."""

from __future__ import annotations

from hpc_kit.check.shell.lexer import Lexer, Token
from hpc_kit.check.shell.tree import Block, Chain, Command, Compound, Pipeline, Simple, Statement
from hpc_kit.check.shell.words import Assignment, HereDocument, Unreadable, Word, as_assignment

_ENDINGS = {"then", "elif", "else", "fi", "do", "done", "esac", "}"}
_COMPOUND = {"if", "while", "until", "for", "select", "case", "{", "[[", "function"}
_REDIRECTS = {"<", ">", "<<", "<<-", "<<<", "<&", ">&", "<>", ">|", ">>", "&>", "&>>"}


class Parser:
    """`token` is the one to be looked at."""

    def __init__(self, lexer: Lexer, outermost: list[Statement] | None = None) -> None:
        self.lexer = lexer
        self._outermost = outermost if outermost is not None else []
        self._depth = 0
        self._document: HereDocument | None = None
        self._output: Word | None = None
        self.token: Token = lexer.next()

    def block(self, stops: set[str]) -> Block:
        """Statements up to a closing keyword or operator, which stays to be looked at."""
        statements = self._outermost if self._depth == 0 else []
        self._depth += 1
        while True:
            while self.token.kind == "newline" or self.token.text == ";":
                self._advance()
            if self.token.kind == "end" or self.token.text in stops or self._keyword() in _ENDINGS:
                self._depth -= 1
                return tuple(statements)
            statements.append(self._statement())

    def expect_end(self) -> None:
        """Nothing may follow."""
        if self.token.kind != "end":
            raise self._unexpected()

    def _advance(self) -> Token:
        token, self.token = self.token, self.lexer.next()
        return token

    def _keyword(self) -> str | None:
        return self.token.word.plain if self.token.word is not None else None

    def _unexpected(self) -> Unreadable:
        shown = self.token.word.raw if self.token.word else self.token.text.strip() or "the end"
        return self.lexer.fail(self.token.offset, f"{shown[:40]!r} was not expected")

    def _expect(self, *keywords: str) -> None:
        if self._keyword() not in keywords and self.token.text not in keywords:
            raise self._unexpected()
        self._advance()

    def _skip_newlines(self) -> None:
        while self.token.kind == "newline":
            self._advance()

    def _statement(self) -> Statement:
        line = self.lexer.place(self.token.offset).line
        chain = self._chain()
        background = self.token.text == "&"
        if self.token.text in {";", "&"}:
            self._advance()
        elif self.token.kind == "operator" and self.token.text not in {")", ";;", ";&", ";;&"}:
            raise self._unexpected()
        return Statement(chain, background, line)

    def _chain(self) -> Chain:
        pipelines, operators = [self._pipeline()], list[str]()
        while self.token.text in {"&&", "||"}:
            operators.append(self._advance().text)
            self._skip_newlines()
            pipelines.append(self._pipeline())
        return Chain(tuple(pipelines), tuple(operators))

    def _pipeline(self) -> Pipeline:
        negated = False
        while self._keyword() in {"!", "time"}:
            negated ^= self._advance().word.raw == "!"  # type: ignore[union-attr]  # a keyword is a word
            if self._keyword() == "-p":
                self._advance()
        commands = [self._command()]
        while self.token.text in {"|", "|&"}:
            self._advance()
            self._skip_newlines()
            commands.append(self._command())
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        line, keyword = self.lexer.place(self.token.offset).line, self._keyword()
        if self.token.text != "(" and keyword not in _COMPOUND:
            return self._simple()
        kind, name, bodies = self._compound(keyword) if keyword else self._bracketed()
        self._skip_redirects()
        return Compound(kind, tuple(bodies), line, name)

    def _bracketed(self) -> tuple[str, str, list[tuple[str, Block]]]:
        arithmetic = self.lexer.arithmetic_command()
        self._advance()
        if arithmetic:
            return "arithmetic", "", []
        return "subshell", "", [("body", self._closed(")"))]

    def _compound(self, keyword: str) -> tuple[str, str, list[tuple[str, Block]]]:
        self._advance()
        if keyword == "{":
            return "group", "", [("body", self._closed("}"))]
        if keyword == "[[":
            self._skip_test()
            return "test", "", []
        if keyword == "if":
            return "if", "", self._if()
        if keyword in {"while", "until"}:
            return keyword, "", [("condition", self.block(set())), ("body", self._do())]
        if keyword == "case":
            return "case", "", self._case()
        if keyword == "function":
            name = self._name()
            if self.token.text == "(":
                self._expect("(")
                self._expect(")")
            return self._function(name)
        return keyword, *self._for()

    def _closed(self, ending: str) -> Block:
        body = self.block({ending})
        self._expect(ending)
        return body

    def _do(self) -> Block:
        self._expect("do")
        return self._closed("done")

    def _name(self) -> str:
        if self.token.word is None:
            raise self._unexpected()
        name = self.token.word.raw
        self._advance()
        return name

    def _function(self, name: str) -> tuple[str, str, list[tuple[str, Block]]]:
        self._skip_newlines()
        body = self._command()
        pipeline = Pipeline((body,), negated=False)
        line = body.line
        return "function", name, [("body", (Statement(Chain((pipeline,), ()), background=False, line=line),))]

    def _skip_test(self) -> None:
        while self._keyword() != "]]":
            if self.token.kind == "end":
                raise self._unexpected()
            self._advance()
        self._advance()

    def _if(self) -> list[tuple[str, Block]]:
        bodies = [("condition", self.block(set()))]
        self._expect("then")
        bodies.append(("then", self.block(set())))
        while self._keyword() == "elif":
            self._advance()
            bodies.append(("condition", self.block(set())))
            self._expect("then")
            bodies.append(("then", self.block(set())))
        if self._keyword() == "else":
            self._advance()
            bodies.append(("else", self.block(set())))
        self._expect("fi")
        return bodies

    def _for(self) -> tuple[str, list[tuple[str, Block]]]:
        name = ""
        if self.token.text == "(":
            if not self.lexer.arithmetic_command():
                raise self._unexpected()
            self._advance()
        else:
            name = self._name()
            self._skip_newlines()
            while self._keyword() not in {"do", "{"} and self.token.text != ";" and self.token.kind == "word":
                self._advance()
        while self.token.text == ";" or self.token.kind == "newline":
            self._advance()
        if self._keyword() == "{":
            self._advance()
            return name, [("body", self._closed("}"))]
        return name, [("body", self._do())]

    def _case(self) -> list[tuple[str, Block]]:
        self._name()
        self._skip_newlines()
        self._expect("in")
        bodies: list[tuple[str, Block]] = []
        self._skip_newlines()
        while self._keyword() != "esac":
            if self.token.text == "(":
                self._advance()
            while self.token.word is not None or self.token.text == "|":
                self._advance()
            self._expect(")")
            bodies.append(("then", self.block({";;", ";&", ";;&"})))
            if self.token.text in {";;", ";&", ";;&"}:
                self._advance()
            self._skip_newlines()
            if self.token.kind == "end":
                raise self._unexpected()
        self._advance()
        return bodies

    def _skip_redirects(self) -> bool:
        """Whether there were any."""
        found = False
        while self.token.text in _REDIRECTS or self._is_descriptor():
            if self.token.word is not None:
                self._advance()
            self._skip_redirect()
            found = True
        return found

    def _is_descriptor(self) -> bool:
        """A number, or {name}, that stands right before `<` or `>`."""
        word = self.token.word
        if word is None or not (word.raw.isdigit() or (word.raw[:1] == "{" and word.raw[-1:] == "}")):
            return False
        return self.lexer.text[self.lexer.position : self.lexer.position + 1] in {"<", ">"}

    def _skip_redirect(self) -> None:
        # A here-document begins on the next line: its word must be known before that line is read.
        operator = self.token.text
        offset = self.token.offset
        token = self.lexer.next()
        if token.word is None:
            raise self.lexer.fail(offset, f"{operator} without a word behind it")
        if operator in {"<<", "<<-"}:
            delimiter = token.word.literal if token.word.literal is not None else token.word.raw
            quoted = any(part.quoted for part in token.word.parts)
            self._document = HereDocument(delimiter, strip=operator == "<<-", quoted=quoted)
            self.lexer.waiting.append(self._document)
        elif operator in {">", ">|"}:
            self._output = token.word
        self._advance()

    def _simple(self) -> Command:
        place = self.lexer.place(self.token.offset)
        assignments, words, redirected = list[Assignment](), list[Word](), False
        self._document = self._output = None
        while True:
            if self._skip_redirects():
                redirected = True
            elif self.token.word is not None:
                assignment = as_assignment(self.token.word) if not words else None
                if assignment is not None:
                    assignments.append(assignment)
                else:
                    words.append(self.token.word)
                self._advance()
            elif self.token.text == "(" and len(words) == 1 and not assignments and not redirected:
                self._expect("(")
                self._expect(")")
                kind, name, bodies = self._function(words[0].raw)
                self._skip_redirects()
                return Compound(kind, tuple(bodies), place.line, name)
            else:
                break
        if not (assignments or words or redirected):
            raise self._unexpected()
        document, output = self._document, self._output
        return Simple(tuple(assignments), tuple(words), place.line, place.column, document, output)
