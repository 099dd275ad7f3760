# SPDX-License-Identifier: Apache-2.0
"""Jobs that meet through a real etcd with TLS, a login, several endpoints, three members:
etcd_test.py ELASTRUN STUB_WORKER"""
from __future__ import annotations

import base64
import shutil
import subprocess
import unittest

from agents import EtcdServer
from harness import wait_until
from jobs_test import SAY, Elected
from ports import free_port

LOGIN = ",user=job,password=sesame"


@unittest.skipUnless(shutil.which("etcd"), "no etcd in PATH (Debian: etcd-server)")
class Etcd(Elected):
    conf = "last_call_timeout=1,lease_ttl=4"

    def setUp(self) -> None:
        super().setUp()
        self.servers: list[EtcdServer] = []
        self.addCleanup(self.stop)

    def stop(self) -> None:
        for server in self.servers:
            server.end()

    def start(self, *options: str, **more: str) -> EtcdServer:
        self.servers.append(EtcdServer(self.folder, *options, **more))
        return self.servers[-1]

    def meet_at(self, *endpoints: str) -> None:
        self.where = ["--rdzv-backend=etcd", f"--rdzv-endpoint={','.join(endpoints)}"]

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
        self.meet_at(f"127.0.0.1:{free_port()}", self.start().endpoint)
        self.two_meet()

    def test_nobody_at_any_endpoint(self) -> None:
        self.meet_at(*(f"127.0.0.1:{free_port()}" for _ in range(2)))
        self.is_refused("127.0.0.1:.*refused.*127.0.0.1:.*refused")

    def test_a_leader_that_dies_takes_no_word_of_who_saves_along(self) -> None:
        self.meet_at(self.start().endpoint)
        self.leave_the_successor()

    def test_three_members_lose_their_leader(self) -> None:
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
        cluster = ",".join(f"m{i}={peer}" for i, peer in enumerate(peers))
        members = [self.start(name=f"m{i}", cluster=cluster, peer=peer)
                   for i, peer in enumerate(peers)]
        wait_until(lambda: all(one.answers() for one in members), "all members answer")
        self.meet_at(*(one.endpoint for one in members))

        def lose_the_leader() -> None:
            for member in members:
                head = member.ask("/v3/maintenance/status")
                if head["header"]["member_id"] == head["leader"]:
                    return member.end()
            self.fail("nobody leads")

        self.restart_after(lose_the_leader)


class Guarded(Etcd):
    """An etcd that wants a login."""

    def guard(self, *options: str) -> None:
        self.server = self.start(*options)
        self.where, ask = self.server.where, self.server.ask
        wait_until(self.server.answers, "etcd answers")
        ask("/v3/auth/user/add", name="root", password="of the root")
        ask("/v3/auth/role/add", name="root")
        ask("/v3/auth/user/grant", user="root", role="root")
        ask("/v3/auth/user/add", name="job", password="sesame")
        ask("/v3/auth/role/add", name="jobs")
        key = base64.b64encode(b"/elastrun/").decode()
        after = base64.b64encode(b"/elastrun0").decode()
        ask("/v3/auth/role/grant", name="jobs",
            perm={"permType": "READWRITE", "key": key, "range_end": after})
        ask("/v3/auth/user/grant", user="job", role="jobs")
        ask("/v3/auth/enable")


class Logins(Guarded):
    def setUp(self) -> None:
        super().setUp()
        self.guard()

    def test_a_token_that_a_restart_has_lost(self) -> None:
        self.conf += LOGIN

        def restart() -> None:
            self.server.end()
            self.server.begin()

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
            root = self.server.ask("/v3/auth/authenticate", name="root", password="of the root")
            self.server.ask("/v3/auth/user/add", root["token"], name="another", password="x")

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
                                f"{self.folder}/server.key", *more, scheme="https").endpoint)

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
