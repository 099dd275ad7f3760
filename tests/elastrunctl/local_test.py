# SPDX-License-Identifier: Apache-2.0
"""local_test.py ELASTRUN ELASTRUNCTL: the jobs of this machine, found without an endpoint.

Every wait is for an answer, a line or an end, never for time.
"""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from programs import CTL, ELASTRUN, ENVIRONMENT, Programs

# Attempt 0 ends once the test says so; the next one stays until it is told to go.
WORKER = """
echo "attempt $TORCHELASTIC_RESTART_COUNT rank $RANK begins"
echo "rank $RANK complains" >&2
if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
  until [ -e {folder}/fail ]; do sleep 0.02; done
  [ $RANK = 1 ] && exit 7
fi
until [ -e {folder}/go ]; do sleep 0.02; done
printf "rank $RANK without an end"
"""


class Case(Programs):
    def setUp(self) -> None:
        super().setUp()
        (self.folder / "tmp").mkdir()
        self.registry = self.folder / "registry"
        self.environment = ENVIRONMENT | {"ELASTRUN_RUNTIME_DIR": str(self.registry),
                                          "TMPDIR": str(self.folder / "tmp")}
        (self.folder / "worker").write_text(WORKER.format(folder=self.folder))

    def job(self, *options: str) -> subprocess.Popen[str]:
        return self.start(ELASTRUN, "--nproc-per-node", "2", *options, "--no-python", "sh",
                          "worker")

    def named(self, name: str, *options: str) -> subprocess.Popen[str]:
        return self.job("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id",
                        name, *options)

    def runs(self, until: Callable[[list[dict]], bool]) -> list[dict]:
        """Asks until the answer is as wanted. CTest's limit ends a wait in vain."""
        while True:
            code, out, err = self.ctl("status", "--json")
            self.assertEqual((code, err), (0, ""))
            runs = json.loads(out)["runs"]
            if until(runs):
                return runs

    def running(self, count: int = 1) -> list[dict]:
        return self.runs(lambda runs: [r["phase"] for r in runs] == ["running"] * count)


class Status(Case):
    def test_a_job_of_one_node_is_shown_with_its_workers(self) -> None:
        job = self.job("--tee", "3", "--log-dir", "logs", "--max-restarts", "3")
        (run,) = self.running()
        self.assertEqual((run["attempt"], run["max_restarts"], run["entry_point"]), (0, 3, "sh"))
        self.assertEqual([w["rank"] for w in run["workers"]], [0, 1])
        for worker in run["workers"]:
            stat = Path(f"/proc/{worker['pid']}/stat").read_text()
            self.assertEqual(int(stat.rsplit(")", 1)[1].split()[1]), run["pid"])
            self.assertTrue((Path(worker["directory"]) / "stdout.log").exists())
        code, text, _ = self.ctl("status")
        self.assertEqual(code, 0)
        self.assertRegex(text, r'job "sh": running for .*, 0 of 3 restarts used, up')
        self.assertIn(f", agent {run['pid']}, run id {run['run_id']}\n", text)
        self.assertIn(f"log folder: {self.folder}/logs/{run['run_id']}_", text)
        self.assertRegex(text, rf"1 +1 +{run['workers'][1]['pid']} ")
        (self.folder / "fail").touch()
        (again,) = self.runs(lambda runs: runs[0]["attempt"] == 1 and runs[0]["phase"] == "running")
        self.assertNotEqual(again["workers"][0]["pid"], run["workers"][0]["pid"])
        (self.folder / "go").touch()
        self.assertEqual(job.wait(60), 0)
        self.assertEqual(list(self.registry.iterdir()), [])
        self.assertEqual(self.ctl("status")[:2],
                         (0, "no job of this user runs on this machine\n"))

    def test_several_jobs_have_a_line_each_and_are_told_apart_by_prefix(self) -> None:
        self.named("night-a")
        self.named("night-b")
        self.named("day")
        self.running(3)
        code, text, _ = self.ctl("status")
        self.assertEqual((code, len(text.splitlines())), (0, 4))
        self.assertRegex(text.splitlines()[0], "JOB +PHASE +RESTARTS +NODES +WORKERS +UP +AGENT")
        code, text, _ = self.ctl("status", "--rdzv-id", "da")
        self.assertEqual(code, 0)
        self.assertIn('job "day": running', text)
        self.assertIn("not to log files", text)
        for command in (("status", "--rdzv-id", "night"), ("status", "night"), ("logs", "night")):
            code, out, text = self.ctl(*command)
            self.assertEqual((code, out), (1, ""))
            self.assertRegex(text, r'"night" means several jobs, name one or its agent: '
                                   r'"night-a" \(agent \d+\), "night-b" \(agent \d+\)')
        code, _, text = self.ctl("status", "--rdzv-id", "week")
        self.assertEqual(code, 1)
        self.assertIn('no job "week" runs here; it may have ended\n  jobs here: "', text)
        for command in ("status", "stacks", "logs", "preempt"):
            code, _, text = self.ctl(command, "week")
            self.assertEqual(code, 1)
            self.assertIn('no job "week" runs here; it may have ended\n', text)
            self.assertLessEqual(max(map(len, text.splitlines())), 80, text)
        # One without a name, as launchers in Python may start, is not what no word means.
        path = next(path for path in self.registry.iterdir() if '"night-a"' in path.read_text())
        path.write_text(re.sub('("name": *)"night-a"', r'\1""', path.read_text()))
        for command in ("preempt", "stacks"):
            code, _, text = self.ctl(command)
            self.assertEqual(code, 1, text)
            self.assertIn('several jobs run here, name one or its agent: "" (agent ', text)

    def test_a_job_of_one_node_has_a_name_which_others_may_share(self) -> None:
        named = self.job("--name", "night", "--tee", "3", "--log-dir", "logs")
        for _ in range(2):
            self.job()
        agents = [run["pid"] for run in self.running(3) if run["name"] == "sh"]
        code, text, _ = self.ctl("status", "night")
        self.assertEqual(code, 0)
        self.assertRegex(text, r'job "night": running for .*\n  sh, agent \d+, run id \S{36}\n'
                               rf"  log folder: {self.folder}/logs/night_")
        while "rank 1 begins" not in self.ctl("logs", "--no-follow", "night", "1")[1]:
            pass
        self.assertEqual(self.ctl("stacks", "night")[0], 0)
        for command in ("status", "logs", "stacks"):
            code, out, text = self.ctl(command, "sh")
            self.assertEqual((code, out), (1, ""))
            self.assertRegex(text, r'"sh" means several .*: "sh" \(agent \d+\), "sh" \(agent')
        self.assertIn(f"sh, agent {agents[1]}, run", self.ctl("status", str(agents[1]))[1])
        self.assertIsNone(named.poll())

    def test_the_guardian_removes_the_entry_of_a_killed_agent(self) -> None:
        job = self.job()
        (run,) = self.running()
        os.kill(run["pid"], signal.SIGKILL)
        job.wait(60)
        self.assertEqual(list(self.registry.iterdir()), [])

    def test_an_entry_that_both_have_left_behind_is_recognised_and_removed(self) -> None:
        job = self.job()
        (run,) = self.running()
        os.kill(job.pid, signal.SIGSTOP)
        os.kill(run["pid"], signal.SIGKILL)
        os.kill(job.pid, signal.SIGKILL)
        job.wait(60)
        self.runs(lambda runs: not runs and not list(self.registry.iterdir()))

    def test_names_that_are_no_text_hide_no_job(self) -> None:
        self.named("night-\udcff")
        self.assertEqual(self.running()[0]["run_id"], "night-\ufffd")

    def test_a_registry_that_cannot_be_written_costs_the_job_a_line_if_it_is_named(self) -> None:
        words = (ELASTRUN, "--max-restarts=1", "--no-python", "sh", "-c",
                 "sleep 0.2; echo done; exit $((1 - TORCHELASTIC_RESTART_COUNT))")
        others = self.folder / "others"
        others.mkdir()
        others.chmod(0o755)
        for place, why in ((self.folder / "worker", r"is not a directory of this user's alone"),
                           (others, r"is not a directory of this user's alone \(mode 0700\)")):
            self.environment["ELASTRUN_RUNTIME_DIR"] = str(place)
            job = self.start(*words)
            out, err = job.communicate(timeout=60)
            self.assertEqual((job.returncode, out), (0, "done\ndone\n"))
            said = [line for line in err.splitlines() if "runs]" in line]
            self.assertEqual(len(said), 1, err)
            self.assertRegex(said[0], f"elastrunctl cannot find this run: .*{place.name}.*{why}")

    def test_a_login_session_s_directory_is_used(self) -> None:
        del self.environment["ELASTRUN_RUNTIME_DIR"]
        (self.folder / "session").mkdir(mode=0o700)
        self.environment["XDG_RUNTIME_DIR"] = str(self.folder / "session")
        self.named("in-session")
        self.runs(lambda runs: "in-session" in [run["run_id"] for run in runs])
        self.assertEqual(len(list((self.folder / "session" / "elastrun").iterdir())), 1)


class Logs(Case):
    def test_it_follows_over_a_restart_to_the_end(self) -> None:
        job = self.named("night", "-t", "3", "--max-restarts", "1")
        self.running()
        logs = self.start(CTL, "logs", "ni")
        lines = {logs.stdout.readline() for _ in range(4)}
        self.assertEqual(lines, {f"[{r}] attempt 0 rank {r} begins\n" for r in (0, 1)}
                         | {f"[{r}] rank {r} complains\n" for r in (0, 1)})
        (self.folder / "fail").touch()
        lines = {logs.stdout.readline() for _ in range(4)}
        self.assertIn("[1] attempt 1 rank 1 begins\n", lines)
        (self.folder / "go").touch()
        out, err = logs.communicate(timeout=60)
        self.assertEqual(sorted(out.splitlines()),
                         [f"[{r}] rank {r} without an end" for r in (0, 1)])
        self.assertEqual((logs.returncode, err), (0, "==> attempt_1 <==\n"))
        self.assertEqual(job.wait(60), 0)

    def test_one_rank_is_shown_as_it_is(self) -> None:
        self.named("night", "-r", "3")
        self.running()
        out = ""
        while "complains" not in out or "begins" not in out:
            code, out, err = self.ctl("logs", "--no-follow", "night", "1")
            self.assertEqual((code, err), (0, ""))
        self.assertEqual(sorted(out.splitlines()), ["attempt 0 rank 1 begins", "rank 1 complains"])

    def test_the_last_lines_only(self) -> None:
        self.start(ELASTRUN, "-r", "1", "--no-python", "sh", "-c",
                   f"seq 100000; echo end; until [ -e {self.folder}/go ]; do sleep 0.02; done")
        out = ""
        while not out.endswith("end\n"):
            out = self.ctl("logs", "--no-follow")[1]
        self.assertEqual(len(out.splitlines()), 100001)
        self.assertEqual(self.ctl("logs", "--no-follow", "-n", "2"), (0, "100000\nend\n", ""))
        self.assertEqual(self.ctl("logs", "--no-follow", "-n", "0"), (0, "", ""))
        self.assertEqual(len(self.ctl("logs", "--no-follow", "-n", "50000")[1].splitlines()), 50000)

    def test_no_line_is_lost_where_somebody_has_made_stdout_non_blocking(self) -> None:
        job = self.start(ELASTRUN, "-r", "1", "--no-python", "sh", "-c",
                         f"seq 100000; echo end; until [ -e {self.folder}/go ]; do sleep 0.02; "
                         "done")
        while not self.ctl("logs", "--no-follow", "-n", "1")[1].endswith("end\n"):
            self.assertIsNone(job.poll())
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with subprocess.Popen([CTL, "logs", "--no-follow"], stdout=writer, env=self.environment,
                              cwd=self.folder) as logs, open(reader, encoding="ascii") as lines:
            os.close(writer)
            self.assertEqual(sum(1 for _ in lines), 100001)
        self.assertEqual(logs.returncode, 0)

    def test_what_is_wrong_is_said(self) -> None:
        code, out, text = self.ctl("logs")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("no job of this user runs", text)
        self.named("night")
        self.running()
        code, out, text = self.ctl("logs")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("keeps no log files", text)
        self.assertIn("--tee 3", text)
        self.named("day", "-r", "3")
        self.running(2)
        code, out, text = self.ctl("logs")
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(text, r'name one or its agent: "day" \(.*"night" \(')
        code, out, text = self.ctl("logs", "day", "2")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("no rank 2 on this machine; ranks here: 0, 1", text)
        for words in (("day", "x"), ("day", "-1"), ("-n", "x")):
            self.assertEqual(self.ctl("logs", *words)[0], 2, words)


class DeadRuns(Case):
    """Runs of which agent and guardian were killed together: their entries, and what they left."""

    def left(self) -> subprocess.Popen[bytes]:
        """A process in the session of a worker that has ended, and the entry of its run."""
        helper = ("import os, sys\n"
                  "os.setsid()\n"
                  "start = open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19]\n"
                  "if os.fork():\n"
                  "    os._exit(0)\n"
                  "os.setpgid(0, 0)\n"
                  "print(os.getsid(0), start, os.getpid(), flush=True)\n"
                  "sys.stdin.read()\n")
        child = subprocess.Popen([sys.executable, "-c", helper], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE,
                                 env=self.environment | {"ELASTRUN_AGENT_ID": "node_of_the_dead"})
        self.addCleanup(lambda: (child.stdin.close(), child.stdout.read(), child.stdout.close()))
        leader, start, self.pid = map(int, child.stdout.readline().split())
        child.wait(60)
        self.register(leader, start)
        return child

    def register(self, worker: int, start: int) -> None:
        """The entry of a run whose agent has gone, with that worker."""
        gone = subprocess.Popen(["true"])
        gone.wait(60)
        self.registry.mkdir(mode=0o700, exist_ok=True)
        entry = {"format": 1, "run_id": "night", "name": "night", "pid": gone.pid,
                 "start_time": start,
                 "agent_id": "node_of_the_dead",
                 "pid_namespace": os.stat("/proc/self/ns/pid").st_ino,
                 "workers": [{"rank": 0, "local_rank": 0, "pid": worker, "start_time": start}]}
        (self.registry / "dead.json").write_text(json.dumps(entry))

    def test_status_names_what_is_left_and_clean_kills_it(self) -> None:
        child = self.left()
        code, out, err = self.ctl("status")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, rf'job "night": agent and guardian were killed, and these live on: '
                              rf"{self.pid} \(.*python")
        self.assertIn("elastrunctl clean kills them", out)
        code, out, err = self.ctl("clean")
        self.assertEqual((code, err), (0, ""))
        self.assertIn(f'job "night": killed {self.pid} (', out)
        self.assertEqual(child.stdout.read(), b"")  # its end: nobody holds it any more
        self.assertEqual(self.ctl("clean"), (0, "", ""))
        self.assertEqual(self.ctl("status")[1], "no job of this user runs on this machine\n")

    def test_the_next_start_kills_it_and_says_so(self) -> None:
        child = self.left()
        job = self.start(ELASTRUN, "--no-python", "true")
        self.assertEqual(job.wait(60), 0)
        self.assertEqual(child.stdout.read(), b"")
        self.assertIn(f'killed what the job "night" had left, of which agent and guardian were '
                      f"killed: {self.pid} (", job.stderr.read())
        self.assertEqual(list(self.registry.glob("*.json")), [])

    def test_who_types_in_a_shell_that_is_left_is_not_killed(self) -> None:
        script = (f"read start; '{CTL}' clean && '{ELASTRUN}' --no-python true && echo survived")
        shell = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, start_new_session=True, text=True,
                                 env=self.environment | {"ELASTRUN_AGENT_ID": "node_of_the_dead"})
        stat = Path(f"/proc/{shell.pid}/stat").read_text().rsplit(")", 1)[1].split()
        self.register(shell.pid, int(stat[19]))
        out, _ = shell.communicate("\n", 60)
        self.assertEqual(out, "survived\n")
        self.assertEqual([path.name for path in self.registry.glob("*.json")], ["dead.json"])
        self.assertEqual(self.ctl("clean"), (0, "", ""))
        self.assertEqual(list(self.registry.glob("*.json")), [])

    def test_a_run_tells_what_is_needed_for_that(self) -> None:
        self.job()
        [run] = self.running()
        environment = Path(f"/proc/{run['workers'][0]['pid']}/environ").read_bytes().split(b"\0")
        self.assertIn(f"ELASTRUN_AGENT_ID={run['agent_id']}".encode(), environment)
        for worker in run["workers"]:
            stat = Path(f"/proc/{worker['pid']}/stat").read_text().rsplit(")", 1)[1].split()
            self.assertEqual(worker["start_time"], int(stat[19]))
        (self.folder / "fail").touch()
