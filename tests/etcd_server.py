# SPDX-License-Identifier: BSD-2-Clause
"""Runs one etcd on this machine's loopback, with or without TLS, for tests of the client."""

import datetime
import ipaddress
import os
import shutil
import socket
import subprocess
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.lab.conftest import wait_until

MISSING = None if shutil.which("etcd") and shutil.which("etcdctl") else "etcd is not installed: make set-up"


def free_port() -> int:
    """Returns a TCP port that nothing uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Server:
    """One etcd. With `tls` it takes only clients with a certificate of the same authority."""

    def __init__(self, directory: Path, *, tls: bool = False) -> None:
        self.directory, self.tls = directory, tls
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{free_port()}"
        self.ca, self.cert, self.key = (directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
        if tls:
            make_certificates(directory)
        self.user: str | None = None  # NAME:PASSWORD of etcdctl
        self._peer = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        argv = [
            *("etcd", "--data-dir", str(self.directory / "data"), "--logger", "zap", "--log-outputs", "stderr"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer),
            *("--initial-cluster", f"default={self._peer}"),
        ]
        if self.tls:
            argv += ["--cert-file", str(self.cert), "--key-file", str(self.key), "--client-cert-auth"]
            argv += ["--trusted-ca-file", str(self.ca)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        wait_until("etcd answers", lambda: self._ctl("endpoint", "health").returncode == 0, 20, 0.05)

    def stop(self) -> None:
        """Ends it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ctl(self, *words: str) -> str:
        """Returns the output of etcdctl."""
        done = self._ctl(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _ctl(self, *words: str) -> "subprocess.CompletedProcess[str]":
        argv = ["etcdctl", "--endpoints", self.url, *words]
        if self.tls:
            argv[1:1] = ["--cacert", str(self.ca), "--cert", str(self.cert), "--key", str(self.key)]
        if self.user:
            argv[1:1] = ["--user", self.user]
        env = os.environ | {"ETCDCTL_API": "3"}
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, env=env)


def make_certificates(directory: Path) -> None:
    """Writes ca.pem, and cert.pem with key.pem for 127.0.0.1, which a server and a client may use."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {directory.name}")])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(public)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    authority = x509.BasicConstraints(ca=True, path_length=None)
    (directory / "ca.pem").write_bytes(signed(issuer, ca_key.public_key(), authority))
    (directory / "cert.pem").write_bytes(signed(x509.Name([]), key.public_key(), both, names))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "key.pem").write_bytes(key.private_bytes(*pem))
