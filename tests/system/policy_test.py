# SPDX-License-Identifier: Apache-2.0
"""The restart policy and preemption, as a user meets them: real agents, signals and workers."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from harness import CTL, LIMIT, Job, lives, wait_until
from ports import free_port

# Trains from the last checkpoint on; what happens on the way is said by the words behind it.
TRAIN = """\
import os, pathlib, signal, sys, time
import elastrun
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
words = dict(word.split("=") for word in sys.argv[1:])
saved = pathlib.Path(words.get("file", "saved"))
first = int(saved.read_text()) + 1 if saved.exists() else 0
print(f"rank {RANK} attempt {ATTEMPT} from {first}", flush=True)

def save(step):
    time.sleep(float(words.get("save", 0)))
    if RANK == 0:
        saved.write_text(str(step))
    elastrun.checkpoint_done(step)

for step in range(first, int(words.get("steps", 20))):
    time.sleep(float(words.get("pace", 0.002)))
    if str(step) in words.get("bug", "").split(","):
        raise ValueError("the same each time")
    if str(step) == words.get("crash") and "BAD_NODE" in os.environ:
        os.abort()
    elastrun.step(step)
    if "outage" in words:
        import outages
        outages.outage(words["outage"])
    if "every" in words and step % int(words["every"]) == 0:
        save(step)
    if step == int(words.get("tell", -1)):
        print(f"rank {RANK} is at {step}", flush=True)
    if elastrun.should_save(step):
        print(f"rank {RANK} saves at {step}", flush=True)
        save(step)
        time.sleep(float(words.get("stay", 0)))
        break
"""
# At once and at a known step, in an outage: told by the error that comes, or by one of the script.
CONNECTS = """\
import socket, sys, elastrun
print("tries", flush=True)
elastrun.step(3)
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=60).close()
except OSError as error:
    if sys.argv[1] != "ValueError":
        raise
    problem = "no answer"
else:
    sys.exit()
raise ValueError(problem)
"""
# As the system raises them; those that need a cluster are made with its numbers and words.
OUTAGES = """\
import errno, os, socket, struct
def outage(name):
    if name == "dns":
        socket.create_connection(("no-such-host.invalid", 80))
    if name == "reset":
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        client.recv(1)
    if name == "timeout":
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname(), timeout=0.05).recv(1)
    if name == "eio":
        os.pread(os.open("/proc/self/mem", os.O_RDONLY), 1, 0)
    if name == "enospc":
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")
    if name == "estale":
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/nfs/shard")
    if name == "busy":
        import threading, urllib.request
        server = socket.create_server(("127.0.0.1", 0))
        def answer():
            peer, _ = server.accept()
            peer.recv(65536)
            peer.sendall(b"HTTP/1.0 503 Service Unavailable\\r\\n\\r\\n")
            peer.close()
        threading.Thread(target=answer, daemon=True).start()
        urllib.request.urlopen("http://127.0.0.1:%d/" % server.getsockname()[1])
    if name == "gloo":
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] "
                           "Connection closed by peer [127.0.0.1]:20485")
    if name == "made":
        try:
            outage("reset")
        except OSError as error:
            raise RuntimeError("cannot read the shard") from error
"""
FILES = {"train.py": TRAIN, "outages.py": OUTAGES}
LONG = ("pace=0.01", "steps=100000", "tell=3")


def run(*words: str, script: str = TRAIN, **more: object) -> Job:
    return Job("--worker-lib", "--report=report.json", *words, files=FILES | {"train.py": script},
               **more)


# Saves in a run of its own at step 2, if it is asked to save each second step.
AT_2 = TRAIN.replace("step % int(words[\"every\"]) == 0", "step == 2")


def pair(script: str, *words: str) -> Job:
    """Two workers that save at SIGTERM, and have told their fourth step."""
    job = run("--nproc-per-node=2", "--preempt-signals=SIGTERM", *words, script=script)
    job.wait_for("is at 3", 2)
    job.process.send_signal(signal.SIGTERM)
    return job


def piped(script: bytes, *words: str) -> Job:
    """Its script comes from a pipe."""
    reading, writing = os.pipe()
    os.write(writing, script)
    os.close(writing)
    job = Job(*words, stdin=reading)
    os.close(reading)
    return job


def ask(job: Job, *words: str) -> None:
    """By elastrunctl preempt, once the run is registered: a moment after its workers run."""
    def asked() -> bool:
        return subprocess.run([CTL, "preempt", *words], timeout=LIMIT, check=False,
                              env={**os.environ, "TMPDIR": str(job.temporary)}).returncode == 0
    wait_until(asked, "the run is registered")


class Policy(unittest.TestCase):
    def test_the_same_error_at_the_same_step_twice_ends_the_job_with_93(self) -> None:
        with run("--max-restarts=9", "--restart-policy=auto", "train.py", "bug=5").ended(93) as job:
            # The second may come within 5 s, too soon for a verdict: then there is a third.
            starts = len(job.lines("^rank 0 attempt"))
            self.assertIn(starts, (2, 3))
            self.assertIn("twice the same ValueError@train.py:", job.errors())
            self.assertIn("after step 4: restarting does not help", job.errors())
            report = job.report()
            self.assertEqual(report["exit_code"], 93)
            ledger = report["restart_ledger"]["ledger"]
            self.assertEqual([row["step"] for row in ledger], [4] * starts)
            self.assertGreaterEqual(ledger[0]["age"] - ledger[-1]["age"], 5)
            self.assertEqual(report["attempts"][0]["cause"]["class"], "error")

    def test_an_outage_of_a_few_seconds_is_survived_whatever_fails_in_it(self) -> None:
        # The port is taken, so that no other test gets it, and answers 4.5 s after the first try.
        for error in ("ConnectionRefusedError", "ValueError"):
            with self.subTest(error), socket.socket() as service:
                service.bind(("127.0.0.1", 0))
                script = CONNECTS.replace("PORT", str(service.getsockname()[1]))
                with run("--max-restarts=5", "--restart-policy=auto", "train.py", error,
                         script=script) as job:
                    job.wait_for("^tries")
                    time.sleep(4.5)  # the length of the outage is what is tested
                    service.listen()
                    self.assertEqual(job.end(), 0, job.errors())
                    self.assertGreaterEqual(len(job.lines("^tries")), 3)

    def test_what_something_outside_can_explain_spends_the_budget_and_is_no_verdict(self) -> None:
        for name in ("dns", "reset", "timeout", "eio", "estale", "enospc", "busy", "gloo", "made"):
            with self.subTest(name), run("--max-restarts=1", "--restart-policy=auto", "train.py",
                                         f"outage={name}").ended(1) as job:
                report = job.report()
                self.assertEqual([one["class"] for one in report["restart_ledger"]["ledger"]],
                                 ["external"] * 2, job.errors())
                self.assertIn("not restarted, by auto: 1 of 1 restarts spent", job.errors())

    def test_a_mistake_in_the_code_ends_the_job_at_its_second_start(self) -> None:
        for script, seen in (("import elastrun\nprint('runs')\nundefined_name\n", "NameError"),
                             ("print('runs', flush=True)\nimport no_such_module\n", "ModuleNot"),
                             ("def broken(:\n", "SyntaxError")):
            with self.subTest(seen), run("--max-restarts=9", "--restart-policy=auto", "train.py",
                                         script=script).ended(93) as job:
                ledger = job.report()["restart_ledger"]["ledger"]
                self.assertEqual([row["class"] for row in ledger], ["code", "code"])
                self.assertRegex(job.errors(), f"auto: twice the same {seen}.*: restarting does")

    def test_restarts_that_were_spent_in_a_moment_name_the_policy_that_waits(self) -> None:
        with run("--max-restarts=3", "train.py", "outage=reset").ended(1) as job:
            self.assertRegex(job.errors().rstrip().splitlines()[-1],
                             r"FAILED after .*ConnectionResetError: .*; 3 restarts within .*: "
                             "--restart-policy auto waits longer before each$")

    def test_the_restarts_that_are_left_are_those_that_the_policy_has(self) -> None:
        script = ("import os, sys, elastrun\na = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
                  "elastrun.step(10 * a + 1)\nelastrun.checkpoint_done(10 * a + 1)\n"
                  "sys.exit(20 + a if a < 4 else 0)\n")
        with run("--max-restarts=1", "--restart-policy=auto", "--metrics=prometheus:m.prom",
                 "--metrics-interval=0.1", "train.py", script=script).ended() as job:
            self.assertRegex(job.errors(), "succeeded after .*, 4 restarts, 1 of 1 left\n")
            report = job.report()
            self.assertEqual((report["restarts"], report["restarts_left"]), (4, 1))
            series = dict(line.rsplit(" ", 1) for line in
                          (job.folder / "m.prom").read_text().splitlines() if line[0] != "#")
            for name, least, most in (("elastrun_restarts_remaining", 0, 1),
                                      ("elastrun_run_flakiness_ratio", 0, 1),
                                      ("workers_default_remaining_restarts", 0, 1),
                                      ("workers_default_flakiness", 0, 100),
                                      ("workers_default_run_success_with_retries", 1, 1)):
                found = [float(value) for key, value in series.items() if key.startswith(name)]
                self.assertTrue(found, series)
                self.assertTrue(all(least <= one <= most for one in found), (name, found))

    def test_a_script_that_was_read_from_a_pipe_is_not_started_again_without_it(self) -> None:
        failing = b"print('runs', flush=True)\nraise ValueError('no')\n"
        for name in ("-", "/dev/stdin"):
            for policy in ("torchrun", "auto"):
                with self.subTest(name), piped(failing, "--max-restarts=3",
                                               f"--restart-policy={policy}", name).ended(1) as job:
                    self.assertEqual(len(job.lines("^runs")), 1)
                    self.assertRegex(job.errors(), f"not restarted, because the script {name} is "
                                     "(standard input|a pipe), which can be read only once; give ")
                    self.assertIn("ValueError: no", job.errors())

    def test_a_pipe_is_no_script_of_several_workers(self) -> None:
        for name, what in (("-", "standard input"), ("/dev/stdin", "a pipe")):
            with self.subTest(name), piped(b"print('runs', flush=True)\n", "--nproc-per-node=2",
                                           name).ended(2) as job:
                self.assertEqual(job.lines("^runs"), [])
                self.assertIn(f"the script {name} is {what}, which only one of the 2 workers",
                              job.errors())

    def test_new_checkpoints_give_the_restarts_back(self) -> None:
        # Three failures with one restart: each comes after a new checkpoint, the last does not.
        once = TRAIN.replace('raise ValueError("the same each time")',
                             'p = pathlib.Path(f"done{step}")\n'
                             '        if not p.exists(): p.touch(); raise ValueError(step)')
        with run("--max-restarts=1", "--restart-policy=auto", "train.py", "steps=14", "every=2",
                 "bug=3,7,11", script=once).ended() as job:
            self.assertEqual(len(job.lines("^rank 0 attempt")), 4)

    def test_rules_come_before_the_policy(self) -> None:
        for rule, code, starts in (("exception=ValueError:fail", 93, 1), ("exit=1:2", 1, 3),
                                   ("crash:fail", 1, 1)):
            with self.subTest(rule), run(f"--restart-rule={rule}", "train.py",
                                         "bug=0").ended(code) as job:
                self.assertEqual(len(job.lines("^rank 0 attempt")), starts)
                if code == 93 or starts > 1:
                    self.assertIn(f"--restart-rule {rule}", job.errors())

    def test_a_memory_that_is_no_regular_file_is_refused_at_once(self) -> None:
        with run("--restart-policy=auto", "--restart-memory=.", "train.py") as job:
            self.assertEqual(job.end(), 1, job.errors())
        with run("--restart-policy=auto", "--restart-memory=pipe", "train.py",
                 before=lambda: os.mkfifo("pipe")).ended(1) as job:
            self.assertIn("--restart-memory pipe: not a regular file", job.errors())

    def test_what_if_asks_another_policy_about_the_journal(self) -> None:
        with run("--max-restarts=3", "--log-dir=logs", "train.py", "bug=5") as job:
            self.assertEqual(job.end(), 1, job.errors())  # without a policy all are spent
            self.assertIsNone(job.report()["restart_ledger"])
            logs = str(next((job.folder / "logs").iterdir()))
            asked = subprocess.run([CTL, "goodput", "what-if", "--policy=auto", "--json", logs],
                                   text=True, capture_output=True, timeout=LIMIT)
            answer = json.loads(asked.stdout)
            # The second is too soon after the first for a verdict; before the third is a pause.
            self.assertEqual(len(answer["failures"]), 3, asked.stdout + asked.stderr)
            self.assertEqual(answer["failures"][1]["delay_s"], 5)
            self.assertTrue(answer["failures"][2]["hopeless"])
            self.assertEqual(answer["not_reached"], 1)
            asked = subprocess.run([CTL, "goodput", "what-if", "--policy=torchrun",
                                    "--restart-rule=exception=ValueError:fail", logs],
                                   text=True, capture_output=True, timeout=LIMIT)
            self.assertRegex(asked.stdout, r"(?m)^ .* m?s  restart +end, 93  rank 0 ")
            self.assertIn("the last by --restart-rule exception=ValueError:fail\n", asked.stdout)
            self.assertIn("with exit code 93: ", asked.stdout)

    def test_what_if_asks_each_start_by_itself_and_its_agents_once(self) -> None:
        def journal(run_id: str, begin: int, *events: tuple[str, dict]) -> None:
            lines = [("job.started", {"run_id": run_id, "max_restarts": 2}), *events]
            path = folder / f"{run_id}-{len(list(folder.iterdir()))}.jsonl"
            with path.open("w") as file:
                for number, (name, attributes) in enumerate(lines):
                    record = {"time": begin + number, "mono_ns": number * 10**9, "kind": "event",
                              "scope": "elastrun.agent", "name": name, "attributes": attributes}
                    print(json.dumps(record), file=file)

        def failure(name: str, **more: object) -> tuple[str, dict]:
            return name, {"cause": "rank 0 ended with exit code 1", "failure": True,
                          "class": "error", "exit_code": 1, "succeeded": False, "node": "n_1_0",
                          **more}

        def asked(*words: str) -> dict:
            done = subprocess.run([CTL, "goodput", "what-if", "--json", *words,
                                   *map(str, folder.iterdir())],
                                  text=True, capture_output=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        restart, end = failure("restart"), failure("job.ended")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            journal("one", 1000, restart, restart, end)
            journal("one", 1001, restart, end)  # another agent, which came later
            journal("two", 2000, restart, restart, end)
            self.assertIsNotNone(asked("--max-restarts=1")["ended_after_s"])
            self.assertEqual([row["start"] for row in asked("--max-restarts=9")["failures"]],
                             [1, 1, 1, 2, 2, 2])
            answer = asked("--policy=torchrun")  # the recorded one
            self.assertEqual((answer["not_reached"], answer["restarts_less"]), (0, 0))
            answer = asked("--restart-rule=error:fail")
            self.assertEqual((answer["not_reached"], answer["restarts_less"]), (4, 4))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            saved = "checkpoint", {"step": 20, "rank": 0}
            journal("one", 1000, failure("restart", step=12, checkpoint=10), saved,
                    failure("job.ended", step=24))
            answer = asked("--policy=auto", "--max-restarts=1")
            self.assertIsNone(answer["ended_after_s"], "a checkpoint refills the budget")

    def test_the_memory_knows_at_the_next_start_what_failed_at_the_last(self) -> None:
        auto, script = "--restart-policy=auto", ("train.py", "bug=5")
        with run("--max-restarts=9", auto, "--restart-memory=memory", *script).ended(93) as job:
            memory = job.folder / "memory"
            self.assertIn(len(json.loads(memory.read_text())["ledger"]), (2, 3))
            with run("--max-restarts=9", auto, f"--restart-memory={memory}", *script) as again:
                self.assertEqual(again.end(), 93, again.errors())
                self.assertEqual(len(again.lines("^rank 0 attempt")), 1)
            memory.write_text('{"ledger": 7')
            with run(auto, f"--restart-memory={memory}", *script) as other:
                self.assertEqual(other.end(), 1, other.errors())
                self.assertIn("not what elastrun writes", other.errors())

    def test_a_bad_node_gives_its_place_to_the_spare(self) -> None:
        common = ("--nnodes=1", "--max-restarts=5", "--restart-policy=auto", "--rdzv-id=bad",
                  "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
        with run(*common, "--local-addr=127.0.0.1", "--restart-memory=memory", "train.py",
                 "crash=3", env={"BAD_NODE": "1"}) as bad:
            bad.wait_for("^rank 0 attempt 0")
            with run(*common, "--local-addr=127.0.0.2", "train.py", "crash=3") as good:
                self.assertEqual(good.end(), 0, good.errors() + bad.errors())
                self.assertEqual(bad.end(), 0, bad.errors())
                self.assertEqual(len(good.lines("^rank 0 attempt")), 1)


class Preemption(unittest.TestCase):
    def check_saved(self, job: Job, why: str) -> None:
        self.assertEqual(job.end(), 75, job.errors())
        steps = job.lines(r"^rank \d saves at (\d+)")
        self.assertEqual(len(set(steps)), 1, job.output())
        preemption = job.report()["preemption"]
        self.assertEqual(preemption["saved_step"], int(steps[0]))
        self.assertEqual(preemption["lost_steps"], 0)
        self.assertIn(why, preemption["why"])
        self.assertIn(f"saved at step {steps[0]}", job.errors())
        self.assertIn("\nelastrun: preempted, not failed\n", job.errors())
        self.assertNotRegex(job.errors(), "(?i)why it failed|FAILED after")
        job.nothing_left()

    def test_a_signal_saves_all_ranks_at_one_step(self) -> None:
        """Also where the script gives no number, and goes by the step that it has told."""
        for number in ("step", ""):
            script = TRAIN.replace("should_save(step)", f"should_save({number})")
            with self.subTest(number), pair(script, "--preempt-ack=all", "--max-restarts=3",
                                            "train.py", *LONG) as job:
                self.check_saved(job, "SIGTERM")
                self.assertEqual(len(job.lines("saves at")), 2)
                self.assertEqual(job.report()["restarts"], 0)

    def test_steps_that_waited_to_be_read_do_not_seem_quick(self) -> None:
        # The agent stands still, as on a machine under load; then it hears several steps at once.
        step = "    elastrun.step(step)\n"
        writes = TRAIN.replace(step, step + "    saved.with_name('at').write_text(str(step))\n")
        with run("--preempt-signals=SIGTERM", "train.py", "pace=0.2", "steps=1000",
                 script=writes) as job:
            at = job.folder / "at"
            wait_until(lambda: at.exists() and int(at.read_text() or 0) >= 1, "the worker runs")
            agent = job.agent()
            os.kill(agent, signal.SIGSTOP)
            wait_until(lambda: int(at.read_text() or 0) >= 5, "the worker has gone on")
            job.process.send_signal(signal.SIGTERM)
            os.kill(agent, signal.SIGCONT)
            self.assertEqual(job.end(), 75, job.errors())
            self.assertRegex(job.errors(), r"preempted \(SIGTERM\): saved at step \d+ ")

    def test_elastrunctl_asks_and_the_save_of_rank_0_ends_the_wait(self) -> None:
        with run("--nproc-per-node=2", "--name=asked-to-save", "--preempt-signals=SIGTERM",
                 "train.py", *LONG, "stay=100") as job:
            job.wait_for("is at 3", 2)
            ask(job, "asked-to-save")
            self.check_saved(job, "elastrunctl")

    def test_elastrunctl_needs_no_option_of_the_job(self) -> None:
        with run("--name=plain", "train.py", "pace=1000") as job:
            job.wait_for("^rank 0")
            ask(job, "plain", "--deadline=0.3")
            self.assertEqual(job.end(), 75, job.errors())
            self.assertIn("elastrunctl preempt", job.report()["preemption"]["why"])

    def test_a_file_asks_and_a_checkpoint_that_was_due_anyway_is_not_waited_for(self) -> None:
        with run("--preempt-file=please", "train.py", *LONG, "every=1") as job:
            job.wait_for("is at 3")
            (job.folder / "please").touch()
            self.check_saved(job, "please")

    def test_a_file_that_is_old_asks_only_once_it_comes_again(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="preempt.")))
        file = folder / "please"
        file.mkdir()  # which unlink(2) does not remove
        with run(f"--preempt-file={file}", "train.py", *LONG) as job:
            job.wait_for("please is there and cannot be removed", path=job.err)
            job.wait_for("is at 3")
            (folder / "other").touch()
            time.sleep(0.3)
            self.assertNotIn("Preempted", job.errors())
            agent = job.agent()
            os.kill(agent, signal.SIGSTOP)  # it hears that the file went and came at once
            file.rmdir()
            file.touch()
            os.kill(agent, signal.SIGCONT)
            self.check_saved(job, "please")
            self.assertEqual(job.errors().count("Preempted ("), 1)

    def test_a_file_asks_in_a_folder_that_was_made_again(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="preempt."))) / "one"
        folder.mkdir()
        with run(f"--preempt-file={folder}/please", "train.py", *LONG) as job:
            job.wait_for("is at 3")
            folder.rmdir()
            folder.mkdir()  # at once, or too late for the job to look
            folder.rmdir()
            job.wait_for("is gone, and is looked for each second", path=job.err)
            folder.mkdir()
            (folder / "please").touch()
            self.check_saved(job, "please")

    def test_the_end_of_the_slurm_job_asks(self) -> None:
        end = str(int(time.time()) + 10)  # it begins to save in half of that
        # A shell, which runs long before that on any machine.
        script = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done"
        with run("--preempt-signals=SIGTERM", "--no-python", "sh", "-c", script,
                 env={"SLURM_JOB_END_TIME": end}).ended(75) as job:
            self.assertEqual(job.lines("^saved"), ["saved"])
            self.assertIn("Slurm", job.report()["preemption"]["why"])

    def check_unsaved(self, job: Job, failure: str, lost: str) -> None:
        self.assertEqual(job.end(), 75, job.errors())
        self.assertRegex(job.errors(), rf"\nelastrun: preempted \(SIGTERM\), but {failure} "
                                       rf"after [^\n]*, {lost}\n$")
        self.assertIn("\nelastrun: preempted, not saved\n", job.errors())
        self.assertNotIn("nothing is wrong", job.errors())
        preemption = job.report()["preemption"]
        self.assertRegex(preemption["failure"], f"^{failure}$")
        self.assertIsNone(preemption["saved"])
        self.assertIsNone(preemption["saved_step"])

    def test_a_save_that_finds_the_disk_full_is_told(self) -> None:
        full = "raise OSError(28, 'No space left on device')"
        failure = (r"rank 0 failed to save: it ended with exit code 1 "
                   r"\(OSError: \[Errno 28\] No space left on device\)")
        for before, lost in ((0, "no checkpoint of this run holds"),
                             (2, r"\d+ steps? lost since checkpoint 2")):
            script = AT_2.replace("    if RANK == 0:\n", "    if RANK == 0 and step > 2:\n"
                                  f"        {full}\n    if RANK == 0:\n")
            every = (f"every={before}",) if before else ()
            with self.subTest(before), pair(script, "train.py", *LONG, *every) as job:
                self.check_unsaved(job, failure, lost)

    def test_a_rank_that_is_killed_in_its_part_of_the_save_is_told(self) -> None:
        # With --preempt-ack=all, and where it has saved before.
        script = AT_2.replace("def save(step):\n", "def save(step):\n"
                              "    if RANK == 1 and step > 2:\n"
                              "        print('ends', os.getpid(), flush=True)\n"
                              "        os.kill(os.getpid(), signal.SIGKILL)\n"
                              "    while step > 2 and not os.path.exists('go'):\n"
                              "        time.sleep(0.001)\n")
        for options, every, lost in (
                (("--preempt-ack=all",), (), "no checkpoint of this run holds"),
                ((), ("every=2",), r"\d+ steps? lost since checkpoint 2")):
            with self.subTest(every), pair(script, *options, "train.py", *LONG, *every) as job:
                pid, = job.wait_for(r"^ends (\d+)")
                wait_until(lambda: not lives(int(pid)), "rank 1 has ended")
                (job.folder / "go").touch()
                self.check_unsaved(job, "rank 1 failed to save: it was killed by SIGKILL", lost)

    def test_what_a_rank_fails_to_save_after_rank_0_has_is_not_said_to_be_saved(self) -> None:
        done = "    elastrun.checkpoint_done(step)\n"
        script = AT_2.replace(done, "    while RANK == 1 and step > 2:\n"
                              "        if os.path.exists('told'):\n"
                              "            os.kill(os.getpid(), signal.SIGKILL)\n"
                              "        time.sleep(0.001)\n" + done +
                              "    if step > 2: open('told', 'w').close()\n")
        with pair(script, "train.py", *LONG, "every=2") as job:
            self.check_unsaved(job, "rank 1 failed to save: it was killed by SIGKILL",
                               r"\d+ steps? lost since checkpoint 2")

    def test_a_script_that_fails_to_save_at_sigterm_is_told(self) -> None:
        script = "import signal, time\n" \
                 "def save(*_): raise OSError(28, 'No space left on device')\n" \
                 "signal.signal(signal.SIGTERM, save)\nprint('runs', flush=True)\ntime.sleep(600)\n"
        with run("--preempt-signals=SIGTERM", "train.py", script=script) as job:
            job.wait_for("runs")
            os.kill(job.process.pid, signal.SIGTERM)
            self.check_unsaved(job, r"rank 0 failed to save: it ended with exit code 1 \(OSError: "
                                    r"\[Errno 28\] No space left on device\)",
                               "no checkpoint of this run holds")

    def test_a_worker_that_has_not_asked_yet_is_asked_at_its_first_step(self) -> None:
        start = "import elastrun, os, pathlib, sys, time\nprint('imported', flush=True)\n" \
                "while not os.path.exists('go'): time.sleep(0.001)\n"
        with run("--nproc-per-node=2", "--preempt-signals=SIGTERM", "--preempt-ack=all",
                 "train.py", script=start + TRAIN, env={"LOGLEVEL": "INFO"}) as job:
            job.wait_for("imported", 2)
            os.kill(job.process.pid, signal.SIGTERM)
            job.wait_for("The workers are to save now, which they ask for", path=job.err)
            job.tell("go").ended(75)
            self.assertEqual(job.lines(r"saves at (\d+)"), ["0", "0"])
            self.assertIn("elastrun: preempted (SIGTERM): saved at step 0 after", job.errors())

    def test_a_worker_that_does_not_ask_is_not_waited_for(self) -> None:
        script = "import elastrun, time\nfor step in range(100000):\n" \
                 "    time.sleep(0.01); elastrun.step(step)\n" \
                 "    if step == 3: print('runs', flush=True)\n"
        with run("--nproc-per-node=2", "--preempt-signals=SIGTERM", "--preempt-timeout=600",
                 "train.py", script=script) as job:
            job.wait_for("runs", 2)
            os.kill(job.process.pid, signal.SIGTERM)
            self.assertEqual(job.end(), 75, job.errors())

    def test_a_script_that_imports_and_handles_sigterm_is_asked_by_it_at_once(self) -> None:
        script = "import elastrun, signal, sys, time\n" \
                 "def save(*_): sys.exit(print('saves', flush=True))\n" \
                 "signal.signal(signal.SIGTERM, save)\n" \
                 "print('runs', flush=True)\ntime.sleep(600)\n"
        with run("--preempt-signals=SIGTERM", "--preempt-timeout=600", "train.py",
                 script=script) as job:
            job.wait_for("runs")
            os.kill(job.process.pid, signal.SIGTERM)
            self.assertEqual(job.end(), 75, job.errors())
            self.assertEqual(len(job.lines("saves")), 1)

    def test_a_script_that_only_handles_sigterm_is_asked_by_it(self) -> None:
        script = ("import signal, sys, time\n"
                  "signal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
                  "print('runs', flush=True)\n"
                  "while True: time.sleep(0.01)\n")
        with Job("--preempt-signals=SIGUSR1", "--nproc-per-node=2", script=script) as job:
            job.wait_for("^runs", 2)
            job.stopped(75, signal.SIGUSR1)
            self.assertEqual(len(job.lines("^saved")), 2)

    def test_a_job_that_does_not_save_ends_at_its_deadline(self) -> None:
        script = "import elastrun, time\nprint('runs', flush=True)\nelastrun.should_save(1)\n" \
                 "time.sleep(1000)\n"
        told = "elastrun.checkpoint_done(7)\n"
        for before, lost in (("", "no checkpoint of this run holds"),
                             ("elastrun.step(9)\n" + told, "2 steps lost since checkpoint 7")):
            with self.subTest(before), run(
                    "--preempt-signals=SIGTERM", "--preempt-timeout=0.5", "train.py",
                    script=script.replace("print", before + "print").replace(
                        "save(1)", "save(9)")) as job:
                job.wait_for("^runs")
                job.stopped(75)
                self.assertRegex(job.errors(), r"preempted \(SIGTERM\) without a checkpoint after "
                                               rf"[^\n]*, {lost}\n")
                self.assertIn("start the job again: the save was not finished in time",
                              job.errors())
                self.assertNotIn("nothing is wrong", job.errors())
                self.assertEqual(job.report()["preemption"]["failure"],
                                 "the save was not finished in time")

    def test_two_agents_save_at_one_step(self) -> None:
        common = ("--nnodes=2", "--preempt-signals=SIGTERM", "--rdzv-backend=c10d",
                  f"--rdzv-endpoint=127.0.0.1:{free_port()}", "train.py", *LONG)
        with run(*common) as one, run(*common) as other:
            one.wait_for("is at 3"), other.wait_for("is at 3")
            other.process.send_signal(signal.SIGTERM)
            self.assertEqual((one.end(), other.end()), (75, 75), one.errors() + other.errors())
            steps = one.lines(r"saves at (\d+)") + other.lines(r"saves at (\d+)")
            self.assertEqual(len(set(steps)), 1)

    def test_a_spare_that_is_taken_away_goes_alone(self) -> None:
        common = ("--nnodes=1", "--preempt-signals=SIGTERM", "--rdzv-backend=c10d",
                  f"--rdzv-endpoint=127.0.0.1:{free_port()}", "train.py", *LONG)
        with run(*common) as one:
            one.wait_for("is at 3")
            with run(*common, env={"LOGLEVEL": "INFO"}) as spare:
                spare.wait_for("is a spare", 1, spare.err)
                spare.stopped(75)
                self.assertIn("the job runs on", spare.errors())
            self.assertEqual(one.lines("saves at"), [])
            one.stopped(75)
            self.assertEqual(len(one.lines("saves at")), 1)
