# SPDX-License-Identifier: Apache-2.0
"""Jobs that meet through a real etcd with TLS, a login, several endpoints, three members:
etcd_test.py ELASTRUN STUB_WORKER"""
from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import unittest
import urllib.request

from harness import wait_until
from jobs_test import SAY, Elected
from ports import free_port

LOGIN = ",user=job,password=sesame"


def ask(url: str, path: str, **body: object) -> dict[str, object]:
    """One request to etcd's JSON gateway."""
    request = urllib.request.Request(url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.loads(answer.read())


def answers(url: str) -> bool:
    try:
        ask(url, "/v3/maintenance/status")
    except OSError:
        return False
    return True


@unittest.skipUnless(shutil.which("etcd"), "no etcd in PATH (Debian: etcd-server)")
class Etcd(Elected):
    conf = "last_call_timeout=1,lease_ttl=4"

    def setUp(self) -> None:
        super().setUp()
        self.servers: list[subprocess.Popen[bytes]] = []
        self.addCleanup(self.stop)

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()

    def start(self, *options: str, tls: bool = False, name: str = "one", cluster: str = "",
              peer: str = "") -> str:
        """A member; its URL."""
        url = f"{'https' if tls else 'http'}://127.0.0.1:{free_port()}"
        peer = peer or f"http://127.0.0.1:{free_port()}"
        with (self.folder / f"{name}.log").open("wb") as log:
            self.servers.append(subprocess.Popen(
                ["etcd", "--name", name, "--data-dir", str(self.folder / name),
                 "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", cluster or f"{name}={peer}", "--log-level", "error",
                 *options], stdout=log, stderr=log))
        return url

    def meet_at(self, *urls: str) -> None:
        ends = ",".join(re.sub("^https?://", "", url) for url in urls)
        self.where = ["--rdzv-backend=etcd", f"--rdzv-endpoint={ends}"]

    def two_meet(self, conf: str = "") -> None:
        jobs = [self.waits("2", conf=self.conf + conf) for _ in range(2)]
        self.world(*jobs, size=2)
        self.go_on(*jobs)

    def is_refused(self, why: str, conf: str = "") -> None:
        job = self.agent("2", *SAY, conf=f"{self.conf},join_timeout=10{conf}").ended(1)
        self.assertRegex(job.errors(), why)
        self.assertEqual(job.output(), "")


class Places(Etcd):
    def test_an_endpoint_that_is_dead_is_passed_over(self) -> None:
        self.meet_at(f"http://127.0.0.1:{free_port()}", self.start())
        self.two_meet()

    def test_nobody_at_any_endpoint(self) -> None:
        self.meet_at(*(f"http://127.0.0.1:{free_port()}" for _ in range(2)))
        self.is_refused("127.0.0.1:.*refused.*127.0.0.1:.*refused")

    def test_a_leader_that_dies_takes_no_word_of_who_saves_along(self) -> None:
        self.meet_at(self.start())
        self.leave_the_successor()

    def test_three_members_lose_their_leader(self) -> None:
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
        cluster = ",".join(f"m{i}={peer}" for i, peer in enumerate(peers))
        urls = [self.start(name=f"m{i}", cluster=cluster, peer=peer)
                for i, peer in enumerate(peers)]
        wait_until(lambda: all(answers(url) for url in urls), "all members answer")
        self.meet_at(*urls)

        def lose_the_leader() -> None:
            heads = [ask(url, "/v3/maintenance/status") for url in urls]
            leader = next(i for i, head in enumerate(heads)
                          if head["header"]["member_id"] == head["leader"])  # type: ignore[index]
            self.servers[leader].kill()
            self.servers[leader].wait()

        self.restart_after(lose_the_leader)


class Guarded(Etcd):
    """An etcd that wants a login."""

    def guard(self, *options: str) -> None:
        self.url = self.start(*options)
        self.meet_at(self.url)
        wait_until(lambda: answers(self.url), "etcd answers")
        ask(self.url, "/v3/auth/user/add", name="root", password="of the root")
        ask(self.url, "/v3/auth/role/add", name="root")
        ask(self.url, "/v3/auth/user/grant", user="root", role="root")
        ask(self.url, "/v3/auth/user/add", name="job", password="sesame")
        ask(self.url, "/v3/auth/role/add", name="jobs")
        key = base64.b64encode(b"/elastrun/").decode()
        after = base64.b64encode(b"/elastrun0").decode()
        ask(self.url, "/v3/auth/role/grant", name="jobs",
            perm={"permType": "READWRITE", "key": key, "range_end": after})
        ask(self.url, "/v3/auth/user/grant", user="job", role="jobs")
        ask(self.url, "/v3/auth/enable")


class Logins(Guarded):
    def setUp(self) -> None:
        super().setUp()
        self.guard()

    def test_a_token_that_a_restart_has_lost(self) -> None:
        self.conf += LOGIN

        def restart() -> None:
            server = self.servers.pop()
            server.kill()
            server.wait()
            self.servers.append(subprocess.Popen(server.args, stdout=subprocess.DEVNULL,
                                                 stderr=subprocess.DEVNULL))

        self.restart_after(restart)

    def test_with_the_password(self) -> None:
        self.two_meet(LOGIN)

    def test_with_the_password_in_a_file(self) -> None:
        file = self.folder / "password"
        file.write_text("sesame\n")
        file.chmod(0o600)
        self.two_meet(f",user=job,password_file={file}")

    def test_a_wrong_password_is_named(self) -> None:
        self.is_refused("cannot log in to etcd.*(?i:password|authentication)",
                        ",user=job,password=wrong")

    def test_no_login_is_named(self) -> None:
        self.is_refused("(?i)etcd.*(user name|permission|token)")

    def test_a_place_that_is_not_allowed_is_named(self) -> None:
        self.is_refused("(?i)permission denied", LOGIN + ",etcd_prefix=/other")


@unittest.skipUnless(shutil.which("openssl"), "no openssl in PATH to make keys with")
class SignedTokens(Guarded):
    """Tokens that say of which revision of the users they are (JWT)."""

    def setUp(self) -> None:
        super().setUp()
        private, public = self.folder / "key.pem", self.folder / "public.pem"
        for words in (["genrsa", "-out", private, "2048"],
                      ["rsa", "-in", private, "-pubout", "-out", public]):
            subprocess.run(["openssl", *words], check=True, capture_output=True)
        self.guard("--auth-token",
                   f"jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m")

    def test_users_that_change_end_no_job(self) -> None:
        self.conf += LOGIN

        def change() -> None:
            """Tokens of before are refused: the revision of the auth store is old."""
            root = ask(self.url, "/v3/auth/authenticate", name="root", password="of the root")
            body = json.dumps({"name": "another", "password": "x"}).encode()
            request = urllib.request.Request(self.url + "/v3/auth/user/add", body,
                                             {"Authorization": str(root["token"])})
            urllib.request.urlopen(request, timeout=5).close()

        self.restart_after(change)


@unittest.skipUnless(shutil.which("openssl"), "no openssl in PATH to make certificates with")
class Certificates(Etcd):
    def setUp(self) -> None:
        super().setUp()
        self.make_authority("ca")
        # The gateway is a client of its own server, so the certificate is for both.
        self.make("server", "ca")

    def openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def make_authority(self, name: str) -> None:
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                     "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                     "-out", f"{name}.pem")

    def make(self, name: str, authority: str) -> None:
        (self.folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n"
                                         "extendedKeyUsage=serverAuth,clientAuth\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey",
                     f"{authority}.key", "-CAcreateserial", "-days", "2", "-extfile", "ext",
                     "-out", f"{name}.pem")

    def serve(self, *more: str) -> None:
        self.meet_at(self.start("--cert-file", f"{self.folder}/server.pem", "--key-file",
                                f"{self.folder}/server.key", *more, tls=True))

    def tls(self, **names: str) -> str:
        return ",protocol=https" + "".join(f",{key}={self.folder}/{name}"
                                           for key, name in names.items())

    def test_https(self) -> None:
        self.serve()
        self.two_meet(self.tls(cacert="ca.pem"))

    def test_an_authority_that_is_not_ours_is_named(self) -> None:
        self.make_authority("other")
        self.serve()
        self.is_refused("(?i)certificate verify failed|self.signed", self.tls(cacert="other.pem"))

    def test_a_client_certificate(self) -> None:
        self.make("client", "ca")
        self.serve("--client-cert-auth", "--trusted-ca-file", f"{self.folder}/ca.pem")
        self.two_meet(self.tls(cacert="ca.pem", ssl_cert="client.pem", ssl_cert_key="client.key"))

    def test_without_the_client_certificate(self) -> None:
        self.serve("--client-cert-auth", "--trusted-ca-file", f"{self.folder}/ca.pem")
        self.is_refused("(?i)certificate", self.tls(cacert="ca.pem"))

    def test_half_of_a_client_certificate(self) -> None:
        self.serve()
        self.is_refused("needs both ssl_cert and ssl_cert_key",
                        self.tls(cacert="ca.pem", ssl_cert="server.pem"))
