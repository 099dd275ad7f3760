# SPDX-License-Identifier: Apache-2.0
"""What is remembered of checkpoints and their steps, without torch."""
from __future__ import annotations

import gzip
import os
import random
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from agent_end import folder_for

from elastrun.checkpoint_steps import CheckpointSteps  # noqa: E402

CONTENT = random.Random(1).randbytes(200_000)


class Remembered(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(folder_for(self))
        self.file = self.folder / "a.pt"
        self.steps = CheckpointSteps(f"{self.folder}/attempt_0/0")

    def test_processes_that_are_killed_leave_one_unfinished_list(self) -> None:
        for process in (1, 2):
            with mock.patch("os.getpid", return_value=process), \
                    mock.patch("os.replace", side_effect=KeyboardInterrupt), \
                    self.assertRaises(KeyboardInterrupt):
                self.steps._write("1:2", 3)
        self.assertEqual(len(list(self.folder.iterdir())), 1)


class Marked(Remembered):
    """By the attribute alone: no list was read."""

    def setUp(self) -> None:
        super().setUp()
        try:
            os.setxattr(self.folder, "user.elastrun.test", b"1")
        except OSError:
            self.skipTest("the file system of temporary files keeps no attributes")

    def save(self, file: Any) -> None:
        """As torch.save does with a file that is open."""
        file.write(CONTENT)
        file.flush()
        self.steps.saved(file, 7)

    def test_a_file_that_grows_after_it_was_saved(self) -> None:
        for opened in (open, gzip.open):
            with self.subTest(opened.__module__):
                with opened(self.file, "wb") as file:  # type: ignore[operator]
                    self.save(file)
                    file.write(b"and more")
                self.assertEqual(self.steps.step_of(self.file), 7)
                with opened(self.file, "rb") as file:  # type: ignore[operator]
                    self.assertEqual(self.steps.step_of(file), 7)
                    self.assertEqual(file.read(), CONTENT + b"and more")
                self.file.unlink()

    def test_what_is_written_over_it_is_another_file(self) -> None:
        other = bytearray(CONTENT)
        other[-1000] ^= 1
        for content in (bytes(other), CONTENT[:-1], b"", CONTENT[1:] + b"x"):
            with self.file.open("wb") as file:
                self.save(file)
            self.assertEqual(self.steps.step_of(self.file), 7)
            self.file.write_bytes(content)
            self.assertIsNone(self.steps.step_of(self.file))

    def test_a_file_of_another_job_tells_nothing(self) -> None:
        with mock.patch.dict(os.environ, TORCHELASTIC_RUN_ID="base"), self.file.open("wb") as file:
            self.save(file)
        for job, step in (("tuned", None), ("base", 7), ("base 7", None)):
            with mock.patch.dict(os.environ, TORCHELASTIC_RUN_ID=job):
                self.assertEqual(self.steps.step_of(self.file), step, job)

    def test_one_of_which_nothing_is_written_yet_has_no_mark_of_another(self) -> None:
        self.file.write_bytes(CONTENT)
        self.steps.saved(self.file, 3)
        with self.file.open("r+b", buffering=1000) as file:
            file.truncate()
            self.steps.saved(file, 4)
        self.assertNotIn("user.elastrun.step", os.listxattr(self.file))


if __name__ == "__main__":
    unittest.main()
