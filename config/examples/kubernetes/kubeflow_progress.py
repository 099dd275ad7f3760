# SPDX-License-Identifier: Apache-2.0
"""Tells the controller of Kubeflow's Trainer how far training is (KEP-2779), by variables that it
sets if its feature gate TrainJobStatus is on. STEPS, of the whole training, may be left out:
    PET_METRICS="exec:python3 kubeflow_progress.py STEPS;window=0" """
import http.client, json, math, os, ssl, sys, threading, time, urllib.parse  # noqa: E401


class Progress:
    def __init__(self, steps=None):
        self.steps, self.values, self.told, self.from_zero = steps, {}, False, False
        self.first = self.last = self.begun = None  # (number, time): since the workers' last start

    def take(self, record):  # whether it says anything; steps come from the node of rank 0 alone
        kind, scope, name, value = map(record.get, ("kind", "scope", "name", "value"))
        more, number = record.get("attributes", {}), None
        if kind == "event" and scope == "elastrun.goodput" and not self.told:
            number = more.get("step_count")  # of a recorder or the hooks of --goodput auto
            if name == "step_start_time" and type(number) is int:  # the end of the one before
                self.begun, self.from_zero = number, self.from_zero or number == 0
                number -= 1
            elif name != "step_end_time":
                number = self.begun if name == "job_end_time" else None
        elif kind == "sample" and scope == "elastrun.worker":
            number, self.told = value if name == "step" else None, self.told or name == "step"
        elif kind == "sample" and type(value) in (int, float) and name and more.get("rank") == 0:
            name = name if scope == "worker" else f"{scope}/{name}"
            name = name.encode()[:64].decode(errors="ignore")  # the Trainer takes 256 of 64 bytes
            if name in self.values or len(self.values) < 255:
                self.values[name] = f"{value:.6g}"
            return name in self.values
        if type(number) is not int or number < 0:
            return False
        self.from_zero = self.from_zero or (number == 0 and name != "step_start_time")
        if not self.first or number < self.last[0]:  # the workers have started again
            self.first = number, record["mono_ns"]
        self.last = number, record["mono_ns"]
        return True

    def body(self, now):
        status, metrics = {}, [("step", str(self.last[0]))] if self.last else []
        if self.last and self.steps:
            done, ran = self.last[0] + self.from_zero, self.last[0] - self.first[0]
            status["progressPercentage"] = min(100, done * 100 // self.steps)
            left = (self.last[1] - self.first[1]) / max(ran, 1) / 1e9 * max(self.steps - done, 0)
            status |= {"estimatedRemainingSeconds": min(math.ceil(left), 2**31 - 1)} if ran else {}
        status["metrics"] = [{"name": name, "value": value}
                             for name, value in metrics + sorted(self.values.items())]
        status["lastUpdatedTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        return json.dumps({"trainerStatus": status})


def main(url, certificates, token, progress, said=False, pause=5):
    if not url.startswith("https://") or not token:  # a token is for one who shows a certificate
        sys.exit("KUBEFLOW_TRAINER_SERVER_URL (https:) or _TOKEN is not set: no TrainJobStatus?")
    new, url = threading.Event(), urllib.parse.urlsplit(url)
    context = ssl.create_default_context(cafile=certificates or None)
    reader = threading.Thread(target=lambda: any(
        progress.take(json.loads(line)) and new.set() for line in sys.stdin) or new.set())
    reader.start()
    while reader.is_alive() or new.is_set():
        new.wait()
        if not progress.last and not progress.values:  # another node has rank 0
            break
        new.clear()
        try:
            with open(token) as file:  # each time: the kubelet replaces it before it expires
                headers = {"Authorization": "Bearer " + file.read().strip()}
            to = http.client.HTTPSConnection(url.hostname, url.port, timeout=10, context=context)
            to.request("POST", url.path, progress.body(time.time()), headers)
            status = to.getresponse().status
            trouble = "" if status // 100 == 2 else f"{url.netloc} answers with status {status}"
        except (OSError, http.client.HTTPException) as error:
            trouble = str(error)
        said = said or (trouble != "" and not print("kubeflow:", trouble, file=sys.stderr))
        reader.join(pause := min(pause * 2, 60) if trouble else 5)  # or until the end


if __name__ == "__main__":
    main(*(os.environ.get(f"KUBEFLOW_TRAINER_SERVER_{name}", "")
           for name in ("URL", "CA_CERT", "TOKEN")), Progress(*map(int, sys.argv[1:])))
