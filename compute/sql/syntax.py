"""From text to a syntax tree, with limits checked before anything recursive sees the text.

`scan` is a flat tokenizer by PostgreSQL's lexical rules: it never recurses, so it can bound the
nesting and find where one statement ends. Utility statements (SET, BEGIN, COPY, ...) are parsed
from its tokens by hand in `utility`; everything with expressions goes to sqlglot.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final, NamedTuple

import sqlglot
from sqlglot import errors as sqlglot_errors
from sqlglot import exp

from compute.sql.dialect import DIALECT
from compute.sql.mistakes import SyntaxMistake
from polarless.errors import CallerMistake

# It warns of each statement that it does not understand, with its text. We tell the client.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)

# Literal text may be long (a multi-row INSERT); what is left without its literals may not.
STATEMENT_CHARS_MAX: Final = 16 * 1024 * 1024
SHAPE_CHARS_MAX: Final = 1024 * 1024
# A syntax tree costs some 10 microseconds a token, and nothing else runs meanwhile.
TOKENS_MAX: Final = 50_000
NESTING_MAX: Final = 100
IDENTIFIER_BYTES_MAX: Final = 63

WORD: Final = "word"
QUOTED: Final = "quoted"
STRING: Final = "string"
NUMBER: Final = "number"
PARAM: Final = "param"
OP: Final = "op"

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+|--[^\r\n]*)
    |(?P<comment>/\*)
    |(?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<string>'[^']*(?:''[^']*)*')
    |(?P<quoted>"[^"]*(?:""[^"]*)*")
    |(?P<param>\$\d+)
    |(?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][\w]*)?\$)
    |(?P<op>::|<=|>=|<>|!=|\|\||:=|=>|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ESCAPE_STRING = re.compile(r"'[^'\\]*(?:(?:''|\\.)[^'\\]*)*'", re.DOTALL)


class Token(NamedTuple):
    """``text`` as written, except that ``value`` of a word is folded to small letters."""

    kind: str
    value: str
    start: int
    end: int


def check_length(text: str) -> None:
    """Raises 54000."""
    if len(text) > STATEMENT_CHARS_MAX:
        raise CallerMistake(
            f"statement of {len(text)} characters exceeds the limit of {STATEMENT_CHARS_MAX}",
            sqlstate="54000",
            hint="Send parameters instead of literals, or load with COPY.",
        )


def scan(text: str) -> list[Token]:
    """All tokens of ``text``. Raises 42601 for what never ends, 54000 and 54001 beyond limits."""
    check_length(text)
    tokens: list[Token] = []
    position, size = 0, len(text)
    match_token = _TOKEN.match
    while position < size:
        found = match_token(text, position)
        assert found is not None
        kind = found.lastgroup
        end = found.end()
        if kind == "word":
            word = found.group().lower()
            if text[end : end + 1] == "'" and word in ("e", "b", "x", "n"):
                if word == "e":
                    end = _escape_string_end(text, end)
                    tokens.append(Token(STRING, text[position:end], position, end))
                    position = end
                    continue
                raise SyntaxMistake(
                    f"strings that begin with {word}' are not supported", position=position + 1
                )
            tokens.append(Token(WORD, word, position, end))
        elif kind == "comment":
            end = _comment_end(text, position)
        elif kind == "dollar":
            closing = text.find(found.group(), end)
            if closing < 0:
                raise SyntaxMistake("unterminated dollar-quoted string", position=position + 1)
            end = closing + len(found.group())
            tokens.append(Token(STRING, text[position:end], position, end))
        elif kind != "space":
            if kind == "op" and found.group() in "'\"":
                what = "string" if found.group() == "'" else "identifier"
                raise SyntaxMistake(
                    f'unterminated quoted {what} at or near "{text[position : position + 40]}"',
                    position=position + 1,
                )
            assert kind is not None
            tokens.append(Token(kind, found.group(), position, end))
        position = end
        if len(tokens) > TOKENS_MAX:
            raise CallerMistake(
                f"statement of more than {TOKENS_MAX} words and signs is too complex",
                sqlstate="54000",
                hint="Use one INSERT with plain VALUES rows, parameters, or COPY.",
            )
    _check_nesting(tokens)
    return tokens


def _escape_string_end(text: str, quote: int) -> int:
    found = _ESCAPE_STRING.match(text, quote)
    if found is None:
        raise SyntaxMistake("unterminated quoted string", position=quote)
    return found.end()


def _comment_end(text: str, start: int) -> int:
    depth, position = 0, start
    while True:
        found = _COMMENT_EDGE.search(text, position)
        if found is None:
            raise SyntaxMistake("unterminated /* comment", position=start + 1)
        depth += 1 if found.group() == "/*" else -1
        position = found.end()
        if depth == 0:
            return position


# What may stand behind CREATE, ALTER and DROP, built here or not.
_OBJECTS: Final = frozenset(
    """access aggregate cast collation constraint conversion database default domain event extension
    foreign function global group index language large local materialized operator or owned policy
    procedure procedural publication recursive role routine rule schema sequence server statistics
    subscription system table tablespace temp temporary text transform trigger trusted type unique
    unlogged user view""".split()  # noqa: SIM905
)
_AFTER_COMMA: Final = frozenset({",", ")", "from", "where", "group", "order", "having", "limit"})
_AFTER_AS: Final = frozenset({",", ")", "from", "where"})


def check_tokens(text: str, tokens: list[Token]) -> None:
    """Mistakes that sqlglot reads over. Raises 42601."""
    first = tokens[0].value if tokens[0].kind == WORD else ""
    second = tokens[1] if len(tokens) > 1 else None
    if first in ("create", "alter", "drop") and (
        second is None or second.kind != WORD or second.value not in _OBJECTS
    ):
        raise _near_or_end(text, second)
    expected = {"insert": "into", "delete": "from"}.get(first)
    if expected is not None and (second is None or second.value != expected):
        raise _near_or_end(text, second)
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.kind == NUMBER:
            if (
                following is not None
                and following.start == token.end
                and following.kind in (WORD, NUMBER, PARAM)
            ):
                raise SyntaxMistake(
                    "trailing junk after numeric literal at or near "
                    f'"{text[token.start : following.end]}"',
                    position=token.start + 1,
                )
        elif token.value == ",":
            before = tokens[index - 1].value if index else "("
            if following is None or (following.kind != QUOTED and following.value in _AFTER_COMMA):
                raise _near_or_end(text, following)
            if before == "(" or (before == "select" and first in ("select", "with", "insert")):
                raise near(token)
        elif token.kind == WORD and token.value == "as":
            if following is None or (following.kind != QUOTED and following.value in _AFTER_AS):
                raise _near_or_end(text, following)
        elif token.kind == WORD and token.value == "in" and following is not None:
            after = tokens[index + 2] if index + 2 < len(tokens) else None
            if following.value == "(" and after is not None and after.value == ")":
                raise near(after)


def _near_or_end(text: str, token: Token | None) -> SyntaxMistake:
    if token is not None:
        return near(token)
    return SyntaxMistake("syntax error at end of input", position=len(text) + 1)


_PREFIXES: Final = frozenset({"not", "-", "+", "~", "@"})


def _check_nesting(tokens: list[Token]) -> None:
    """Bound everything that a parser would recurse for, without recursing."""
    depth = prefixes = 0
    for token in tokens:
        value = token.value
        if token.kind in (OP, WORD):
            if value in ("(", "[", "case"):
                depth += 1
            elif value in (")", "]", "end"):
                depth = max(depth - 1, 0)
            prefixes = prefixes + 1 if value in _PREFIXES else 0
        else:
            prefixes = 0
        if depth > NESTING_MAX or prefixes > NESTING_MAX:
            raise CallerMistake(
                f"statement is nested deeper than {NESTING_MAX} levels",
                sqlstate="54001",
                hint="Simplify the expression, or use a list: a IN (...) instead of a = ... OR ...",
            )


def split(text: str, tokens: list[Token]) -> list[tuple[str, list[Token]]]:
    """The statements of ``text`` with their tokens; empty ones are left out."""
    result: list[tuple[str, list[Token]]] = []
    begin = 0
    for index, token in enumerate(tokens):
        if token.kind == OP and token.value == ";":
            if index > begin:
                result.append((text, tokens[begin:index]))
            begin = index + 1
    if begin < len(tokens):
        result.append((text, tokens[begin:]))
    return result


# ----------------------------------------------------------------------------------------- sqlglot


def parse(text: str) -> Any:
    """One statement's sqlglot tree. Raises 42601 with a position, 54000, 54001."""
    if len(text) > SHAPE_CHARS_MAX:
        raise CallerMistake(
            f"statement of {len(text)} characters is too complex, the limit is {SHAPE_CHARS_MAX}",
            sqlstate="54000",
            hint="Use one INSERT with plain VALUES rows, parameters, or COPY.",
        )
    try:
        trees = sqlglot.parse(text, dialect=DIALECT)
    except sqlglot_errors.ParseError as error:
        raise _syntax_error(text, error) from None
    except sqlglot_errors.SqlglotError as error:
        raise SyntaxMistake(f"syntax error: {str(error).splitlines()[0][:200]}") from None
    except RecursionError:
        raise too_deep() from None
    if len(trees) != 1 or trees[0] is None:
        raise SyntaxMistake("syntax error: expected exactly one statement")
    return trees[0]


def too_deep() -> CallerMistake:
    """Something recursed too deep in spite of the check beforehand."""
    return CallerMistake(
        "statement is too deeply nested", sqlstate="54001", hint="Simplify the expression."
    )


def _syntax_error(text: str, error: Any) -> SyntaxMistake:
    """sqlglot knows line and column of the end of the token that it stumbled over."""
    if not error.errors:
        return SyntaxMistake(f"syntax error: {str(error).splitlines()[0][:200]}")
    first = error.errors[0]
    word = first.get("highlight") or ""
    line, column = first.get("line") or 1, first.get("col") or 1
    lines = text.split("\n")
    before = sum(len(part) + 1 for part in lines[: line - 1])
    position = max(before + column - len(word), 0)
    at_end = not text[position + len(word) :].strip(" ;\n\t")
    if at_end and word != "=" and "missing" in str(first.get("description", "")).lower():
        word = ""
    if not word or position >= len(text):
        return SyntaxMistake("syntax error at end of input", position=len(text) + 1)
    return SyntaxMistake(f'syntax error at or near "{word}"', position=position + 1)


def identifier(node: Any) -> str:
    """A name, folded unless it is quoted, cut at 63 bytes as PostgreSQL does."""
    if isinstance(node, str):
        return cut_identifier(node.lower())
    if not isinstance(node, exp.Identifier):
        node = getattr(node, "this", node)
        if not isinstance(node, exp.Identifier):
            raise SyntaxMistake(f"syntax error: expected a name, found {node}")
    name = str(node.this)
    if not node.args.get("quoted"):
        name = name.lower()
    elif not name:
        raise SyntaxMistake("zero-length delimited identifier")
    return cut_identifier(name)


def cut_identifier(name: str) -> str:
    """At most 63 bytes of UTF-8."""
    raw = name.encode()
    if len(raw) <= IDENTIFIER_BYTES_MAX:
        return name
    return raw[:IDENTIFIER_BYTES_MAX].decode(errors="ignore")


def token_name(token: Token) -> str:
    """The name that a token stands for."""
    if token.kind == QUOTED:
        return cut_identifier(token.value[1:-1].replace('""', '"'))
    if token.kind == WORD:
        return cut_identifier(token.value)
    raise near(token)


_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def string_value(token: Token) -> str:
    """What a string token stands for."""
    text = token.value
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    if text[0] == "$":
        tag = text.index("$", 1) + 1
        return text[tag:-tag]
    return unescape(text[2:-1])


def unescape(body: str) -> str:
    """The value of an E'...' string's inside."""

    def replace(found: re.Match[str]) -> str:
        code = found.group()
        if code == "''":
            return "'"
        if code[1] in "xuU" and len(code) > 2:
            digits = code[2:]
            return chr(int(digits, 16))
        if code[1] in "01234567":
            return chr(int(code[1:], 8) & 0xFF)
        return _ESCAPES.get(code[1], code[1])

    return re.sub(
        r"''|\\(?:x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{1,3}|.)",
        replace,
        body,
        flags=re.DOTALL,
    )


def near(token: Token) -> SyntaxMistake:
    """A syntax error at a token."""
    return SyntaxMistake(f'syntax error at or near "{token.value}"', position=token.start + 1)
