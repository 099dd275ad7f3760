# SPDX-License-Identifier: Apache-2.0
"""What the documents of this project show for typing and copying, as a reader sees it: pages are
read as mandoc renders them, not in their source."""
from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

PROGRAMS = ("elastrun", "elastrunctl")


def names_program(line: str) -> bool:
    """Whether one of the words is a program of ours, with or without its folder."""
    return any(word.rstrip(")").rsplit("/", 1)[-1] in PROGRAMS for word in line.split())


def joined(text: str) -> list[str]:
    """One string for each command: a backslash at the end of a line goes on with the next."""
    return re.sub(r" *\\\n\s*", " ", text).split("\n")


def without_prompt(line: str) -> str:
    return re.sub(r"^\w*\$ ", "", line.strip())


class Rendered(HTMLParser):
    """The displays of a page, and what its running text shows in the font of a terminal."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.displays: list[str] = []
        self.inline: list[str] = []
        self._kinds: list[str] = []  # of the tags that are open
        self._text: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words = (dict(attrs).get("class") or "").split()
        kind = "display" if tag == "div" and "Bd" in words else ""
        if tag == "pre" or tag == "code" and "Li" in words:
            kind = tag
        if tag in ("div", "pre", "code"):  # paragraphs do not always end where they should
            self._kinds.append(kind)
            self._text[kind] = "" if kind else self._text.get(kind, "")

    def handle_data(self, data: str) -> None:
        for kind in set(self._kinds):
            self._text[kind] += data

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("div", "pre", "code"):
            return
        kind = self._kinds.pop()
        inside = "display" in self._kinds
        if kind == "pre":
            self.displays.append(self._text["pre"])
        elif kind == "code" and "pre" not in self._kinds:
            line = re.sub(r"\s+", " ", self._text["code"])
            (self.displays if inside else self.inline).append(line)


def mandoc(page: Path, form: str, *options: str) -> str:
    return subprocess.run(["mandoc", "-T", form, *options, page], check=True, capture_output=True,
                          text=True).stdout


@cache
def rendered(page: Path) -> Rendered:
    return Rendered(mandoc(page, "html", "-O", "fragment"))


def lines_on_a_terminal(page: Path, columns: int) -> set[str]:
    text = re.sub(".\b", "", mandoc(page, "utf8", "-O", f"width={columns}"))
    return {line.strip() for line in text.splitlines()}


def commands_of_display(display: str) -> Iterator[str]:
    """Those after a prompt, or all, if the first line is one."""
    lines = [line for line in joined(display) if line.strip()]
    with_prompts = any(re.match(r"\w*\$ ", line) for line in lines)
    first = re.sub(r"^(\s*[A-Z_]+=\S* )*", "", lines[0])
    all_of_them = not with_prompts and re.match(r"(\S*/)?(elastrun(ctl)?|srun|pip|cmake|cpack|ln) ",
                                                first)
    for line in lines:
        if all_of_them or re.match(r"\w*\$ ", line):
            yield without_prompt(line)


def of_manual(page: Path) -> Iterator[str]:
    """Displays, and commands quoted in running text."""
    for display in rendered(page).displays:
        yield from commands_of_display(display)
    for line in rendered(page).inline:
        if names_program(line) and " " in line and "elastrun:" not in line:
            yield line


def of_markdown(page: Path) -> Iterator[str]:
    """Indented lines outside of fences, which show output, without comments of the shell; and
    commands quoted in running text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    shown = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    for line in joined(shown):
        if command := re.sub(r"(^|\s+)#.*", "", line).strip():
            yield command
    for line in re.findall(r"`([^`]+)`", re.sub(r"^    .*$", "", text, flags=re.M)):
        line = " ".join(line.split())
        if names_program(line) and " " in line:
            yield line


def of_unit(page: Path) -> Iterator[str]:
    """What systemd starts, and what the comments tell an administrator to type."""
    for line in re.sub(r" *\\\n#\s*", " ", page.read_text()).splitlines():
        if match := re.match(r"Exec\w+=[-@:+!]*(.*)", line):
            yield match[1]
        elif re.match(r"#  +\S", line) and names_program(line):
            yield line[1:].strip()


def of_help(text: str) -> Iterator[str]:
    """Examples; the lines of usage are forms, not commands."""
    for line in joined(text):
        line = without_prompt(line)
        if line.split(" ")[0] in PROGRAMS and not re.search(r"[\[\]]", line):
            yield line


def pages_of(source: Path) -> list[Path]:
    return sorted(source.glob("man/*.[1-9]"))


def markdown_of(source: Path) -> list[Path]:
    return [source / "README.md", *sorted(source.glob("config/**/*.md"))]


def all_commands(source: Path, helps: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Where, and what."""
    readers = [(of_manual, pages_of(source)),
               (of_unit, sorted(source.glob("config/**/*.service"))),
               (of_markdown, markdown_of(source))]
    for read, files in readers:
        for file in files:
            for command in read(file):
                yield str(file.relative_to(source)), command
    for name, text in helps.items():
        for command in of_help(text):
            yield name, re.sub(r"\s{2,}#? ?.*$", "", command)


def all_toml(source: Path) -> Iterator[tuple[str, str]]:
    """Each piece of a job file that a document shows."""
    for page in pages_of(source):
        for display in rendered(page).displays:
            if re.match(r"\[\[?[\w.]+\]\]?$", display.lstrip("\n").split("\n")[0]):
                yield str(page.relative_to(source)), display
        for piece in rendered(page).inline:
            if re.match(r"\w+ = ", piece):
                yield str(page.relative_to(source)), piece
    for page in markdown_of(source):
        for block in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.M | re.S):
            yield str(page.relative_to(source)), block
