# SPDX-License-Identifier: Apache-2.0
"""The commands of this project that its documents show, as a reader would copy them."""
from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("elastrun", "elastrunctl")


def names_program(line: str) -> bool:
    """Whether one of the words is a program of ours, with or without its folder."""
    return any(word.rsplit("/", 1)[-1] in PROGRAMS for word in line.split())


def joined(lines: list[str]) -> list[str]:
    """One string for each command: a backslash at the end of a line goes on with the next."""
    return re.sub(r" *\\\n\s*", " ", "\n".join(lines)).split("\n")


def without_prompt(line: str) -> str:
    return re.sub(r"^\w*\$ ", "", line.strip())


def of_markdown(text: str) -> Iterator[str]:
    """Indented lines outside of fences, which show output; without comments of the shell."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for line in joined([line[4:] for line in text.splitlines() if line.startswith("    ")]):
        command = re.sub(r"(^|\s+)#.*", "", line).strip()
        if command:
            yield command


def of_manual(text: str) -> Iterator[str]:
    """Lines of .Dl, prompts in literal blocks, and quoted commands in running text."""
    text = text.replace(r"\e", "\\").replace(r"\-", "-").replace(r"\(dq", '"').replace(r"\&", "")
    for block in re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed", text, re.M | re.S):
        for line in joined(block.splitlines()):
            if re.match(r"\w*\$ ", line):
                yield without_prompt(line)
    for line in re.findall(r"^\.Dl (.*)", text, re.M):
        yield line.strip()
    for line in re.findall(r"^\.[QL]l (.*)", text, re.M):
        line = re.sub(r" [:;,.]$", "", line.strip())
        if names_program(line) and " " in line and "elastrun:" not in line:
            yield line


def of_unit(text: str) -> Iterator[str]:
    """What systemd starts, and what the comments tell an administrator to type."""
    for line in re.sub(r" *\\\n#\s*", " ", text).splitlines():
        if match := re.match(r"Exec\w+=[-@:+!]*(.*)", line):
            yield match[1]
        elif re.match(r"#  +\S", line) and names_program(line):
            yield line[1:].strip()


def of_help(text: str) -> Iterator[str]:
    """Examples; the lines of usage are forms, not commands."""
    for line in text.splitlines():
        line = without_prompt(line)
        if line.split(" ")[0] in PROGRAMS and not re.search(r"[\[\]]", line):
            yield line


def all_commands(source: Path, helps: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Where, and what."""
    readers = [(of_manual, sorted(source.glob("man/*.[1-9]"))),
               (of_unit, sorted(source.glob("config/**/*.service"))),
               (of_markdown, [source / "README.md", *sorted(source.glob("config/**/*.md"))])]
    for read, files in readers:
        for file in files:
            for command in read(file.read_text()):
                yield str(file.relative_to(source)), command
    for name, text in helps.items():
        for command in of_help(text):
            yield name, command
