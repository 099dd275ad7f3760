# SPDX-License-Identifier: Apache-2.0
"""elastrun.should_save: what a worker hears of the order in its page, and what it writes."""
from __future__ import annotations

import os
import signal
import struct
import subprocess
import unittest
from unittest import mock

from agent_end import SharedPage

from elastrun import page  # noqa: E402

STEP, LOOKED, SAVE_AT, IMPORTED = 4, 12, 13, 14  # words of elastrun-protocol(7)


class ShouldSave(unittest.TestCase):
    def setUp(self) -> None:
        self.shared = SharedPage()
        self.addCleanup(self.shared.close)
        page._page, page._saves_by = page._open(self.shared.path), None
        self.addCleanup(page._forget)

    def order(self, word: int) -> None:
        os.pwrite(self.shared.descriptor, struct.pack("=q", word), 8 * SAVE_AT)

    def test_without_an_order_it_is_false_and_tells_the_agent_that_it_looks(self) -> None:
        self.assertEqual(self.shared.words(LOOKED), (0,))
        self.assertFalse(page.should_save(7))
        step, looked = self.shared.words(STEP, LOOKED)
        self.assertEqual(step, 7)
        self.assertGreater(looked, 0)

    def test_it_is_true_from_the_step_of_the_order_on(self) -> None:
        self.order(12 + 2)
        self.assertEqual([page.should_save(step) for step in (10, 11, 12, 13)],
                         [False, False, True, True])
        self.assertTrue(page.should_save())

    def test_without_a_number_it_goes_by_the_last_step_told(self) -> None:
        self.order(12 + 2)
        self.assertTrue(page.should_save())
        own = page.page()
        assert own is not None
        heard = []
        for step in (10, 11, 12):
            own.step(step)
            heard.append(page.should_save())
        self.assertEqual(heard, [False, False, True])

    def test_an_order_without_a_step_is_for_now(self) -> None:
        self.order(1)
        self.assertTrue(page.should_save(0))

    def test_without_a_page_it_is_false(self) -> None:
        page._forget()
        self.assertFalse(page.should_save(1))

    def test_what_is_no_step_is_none_and_does_not_raise(self) -> None:
        for odd in (float("nan"), float("inf"), "x", [], 10**400):
            self.assertFalse(page.should_save(odd))
        self.order(12 + 2)
        self.assertTrue(page.should_save(float("nan")))

    def test_the_import_names_its_process_and_writes_into_nothing_but_a_page(self) -> None:
        other = os.memfd_create("other")
        self.addCleanup(os.close, other)
        self.addCleanup(page._begin)
        with mock.patch.dict(os.environ, ELASTRUN_PAGE=f"/proc/self/fd/{other}"):
            page._begin()
        self.assertEqual(os.fstat(other).st_size, 0)
        with mock.patch.dict(os.environ, ELASTRUN_PAGE=self.shared.path):
            page._begin()
        self.assertEqual(self.shared.words(IMPORTED), (os.getpid(),))

    def test_the_page_of_a_process_that_has_ended_is_taken_over(self) -> None:
        self.assertEqual(self.shared.owner(), os.getpid())
        gone = subprocess.Popen(["true"])
        gone.wait()
        for owner, is_free in ((1, False), (gone.pid, True), (os.getpid(), True)):
            os.pwrite(self.shared.descriptor, struct.pack("=I", owner), 16)
            self.assertEqual(page._open(self.shared.path) is not None, is_free, owner)
        self.assertEqual(self.shared.owner(), os.getpid())

    def test_a_signal_that_announces_the_end_is_ignored_unless_it_is_handled(self) -> None:
        numbers = (signal.SIGUSR1, signal.SIGUSR2)
        before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
        self.addCleanup(lambda: [signal.signal(*one) for one in zip(numbers, before)])
        handler = signal.default_int_handler
        signal.signal(signal.SIGUSR2, handler)
        page._ignore("SIGUSR1,SIGUSR2,SIGKILL,SIGNONE")
        self.assertEqual([signal.getsignal(number) for number in numbers],
                         [signal.SIG_IGN, handler])

    def test_a_forked_child_does_not_hear_it(self) -> None:
        # A DataLoader's worker is no trainer.
        self.order(1)
        self.assertTrue(page.should_save(1))
        child = os.fork()
        if child == 0:
            os._exit(3 if page.should_save(1) else 0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


if __name__ == "__main__":
    unittest.main()
