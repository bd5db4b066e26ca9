"""Reads rows of tables: CSV with a header line and any usual delimiter, or one JSON object per line."""

import csv
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

DELIMITERS = (",", ";", "\t", "|")


def columns(wanted: Mapping[str, Sequence[str]], header: Sequence[str]) -> dict[str, str]:
    """Finds the wanted columns, {kind: accepted names}, in a header: {kind: header column}. Ignores case."""
    found = {}
    for kind, valid in wanted.items():
        spellings = [*((name, name) for name in header), *((name.strip().lower(), name) for name in header)]
        matches = [name for word in valid for spelling, name in spellings if spelling == word]
        found |= {kind: matches[0]} if matches else {}
    return found


def first_names(kind: str, text: str) -> set[str]:
    """The names of columns, in lower case, in a table's first line, however it is delimited; none if malformed.

    Args:
        kind: "csv" or "jsonl".
        text: contents of the table.
    """
    try:
        if kind == "csv":
            readers = [csv.reader(io.StringIO(text, newline=""), delimiter=d) for d in DELIMITERS]
            names = [name for reader in readers for name in next(reader, [])]
        else:
            names = list(json.loads(next((line for line in io.StringIO(text) if line.strip()), "{}")))
    except (csv.Error, json.JSONDecodeError, TypeError):  # reading the rows reports the error
        return set()
    return {str(name).strip().lower() for name in names}


def _open_quote(lines, delimiter):
    """Whether the lines of a row end inside of quotes."""
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        return "unexpected end of data" in str(error)
    return False


def csv_rows(path: str, text: str, wanted: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line number, {column: text}) of each row.

    Args:
        path: str. Path in messages.
        text: str. Contents of the table.
        wanted: dict. Accepted names of each kind of column, which determine the delimiter; "split" is optional.

    Raises:
        ValueError: for malformed rows, with the line.
    """

    lines = list(io.StringIO(text, newline=""))

    def split(delimiter):
        return csv.reader(lines, delimiter=delimiter)

    usual = "\t" if path.lower().endswith(".tsv") else ","
    fits = [d for d in (usual, *DELIMITERS) if wanted.keys() - {"split"} <= columns(wanted, next(split(d), [])).keys()]
    delimiter = fits[0] if fits else usual
    reader = split(delimiter)
    try:
        header = next(reader, [])
        twice = next((name for name in columns(wanted, header).values() if header.count(name) > 1), None)
        if twice:
            raise ValueError(f'"{path}" has more than one column "{twice}".')
        start = reader.line_num
        for cells in reader:
            if reader.line_num == len(lines) > start + 1 and _open_quote(lines[start:], delimiter):
                raise ValueError(
                    f'"{path}", line {start + 1}: a quote is opened and not closed, so the row has all further lines.'
                )
            start = reader.line_num
            if len(cells) > len(header) and any(cells[len(header) :]):
                raise ValueError(
                    f'"{path}", line {reader.line_num}: expected {len(header)} cells, as in the header, got'
                    f" {len(cells)}. Quote text that contains the delimiter."
                )
            if any(cells):
                yield reader.line_num, dict(itertools.zip_longest(header, cells[: len(header)]))
    except csv.Error as error:
        raise ValueError(f'"{path}", line {reader.line_num}: {error}.') from None


def jsonl_rows(path: str, text: str, wanted: Any = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, {column: value}) of each non-empty line.

    Raises:
        ValueError: for a line that is not a JSON object, with its number.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f'"{path}", line {number}: not JSON: {error}.') from None
        if not isinstance(row, dict):
            expected = '{"image": "a.jpg", "label": "cat"}'
            raise ValueError(f'"{path}", line {number}: expected an object such as {expected}, got {row!r}.')
        yield number, row
