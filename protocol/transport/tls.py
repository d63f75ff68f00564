"""Make a TLS context for the broker from PEM files, and explain TLS errors with advice."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from protofleet.protocol.security.keyfiles import too_open
from protofleet.protocol.user_error import UserError

# Seconds to wait for the broker's first bytes after the handshake. If a broker sends no session tickets, each
# connect takes this much longer.
VERDICT_SECONDS: Final = 0.5
MISMATCH: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

# OpenSSL's name of an error -> advice. Either the broker has sent an alert, or OpenSSL itself has found the error.
_ALERTS: Final[Mapping[str, str]] = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client certificate; set tls.cert and tls.key",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refused the handshake; it may want a client certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3; enable TLS 1.3, older versions are not accepted",
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port; leave out tls, or correct the port",
}
# Alert of a broker about our own certificate -> advice. {ours} is replaced with the name of the certificate.
_VERDICTS: Final[Mapping[str, str]] = {
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know who signed {ours}; enrol with its CA",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "{ours} has expired, or a clock is wrong; renew it",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "{ours} has been revoked; enrol again",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept {ours}",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "{ours} is not made for clients; is it the certificate of a broker?",
}
_BROKERS: Final[Mapping[int, str]] = {
    9: "its certificate is not yet valid by this machine's clock ({clock}); set the clock",
    10: "its certificate has expired by this machine's clock ({clock}); renew the certificate, or set the clock",
}


class BrokerError(UserError, RuntimeError):
    """The error for a broker that cannot be used; the message says why, and gives advice."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of TLS: the CA that is trusted, and our own certificate and key."""

    ca: str
    """Path of the certificate of the CA that is trusted."""
    cert: str | None = None
    """Path of this party's own certificate; if it is left out, the party shows no certificate."""
    key: str | None = None
    """Path of the private key of `cert`."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls.cert and tls.key belong together, but only one is set")

    def named(self) -> list[tuple[str, str]]:
        return [(n, p) for n, p in (("ca", self.ca), ("cert", self.cert), ("key", self.key)) if p is not None]


class TlsFromFiles(ssl.SSLContext):
    """A TLS context that reads its files again at each connection, so that a renewal needs no restart."""

    files: TlsFiles

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return tls_context(self.files).wrap_socket(*arguments, **options)


def rereading_context(files: TlsFiles) -> TlsFromFiles:
    """Return a context that reads the files again at each connection.

    Raise BrokerError at once if the files cannot be used now.
    """
    tls_context(files)
    context = TlsFromFiles(ssl.PROTOCOL_TLS_CLIENT)
    context.files = files
    return context


def problem_of(files: TlsFiles | None) -> str:
    """Return why the files cannot be used now, or why our certificate is not valid now; "" if all is well."""
    if files is None:
        return ""
    try:
        tls_context(files)
    except (BrokerError, OSError) as error:
        return str(error)
    return _our_certificate(files)[1]


def tls_context(named: TlsFiles) -> ssl.SSLContext:
    files = _of_one_set(named)
    for (name, path), (_, shown) in zip(files.named(), named.named(), strict=True):
        _check_readable(name, path, shown)
    if files.key is not None and (problem := too_open(Path(files.key))):
        raise BrokerError(problem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(files.ca)
    except (ssl.SSLError, OSError):
        raise BrokerError(
            f"the file {named.ca} in tls.ca does not contain a certificate in PEM form"
        ) from None
    if files.cert is not None:
        _load_pair(context, files, named)
    return context


def _load_pair(context: ssl.SSLContext, files: TlsFiles, named: TlsFiles) -> None:
    assert files.cert is not None
    try:
        # Without this argument OpenSSL would ask for a password on the terminal, and wait for ever.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"the key {named.key} does not belong to the certificate {named.cert}"
            raise BrokerError(f"{message}; install both files from the same approval") from None
        message = f"{named.cert} and {named.key} cannot be used as a certificate and its private key"
        raise BrokerError(
            f"{message} ({error.reason or error}); both files must be in PEM form, without a password"
        ) from None


def _of_one_set(files: TlsFiles) -> TlsFiles:
    """Return the paths with all links resolved, so that all files belong to the same set.

    A renewal changes one link from the old set of files to the new set. So all links are resolved twice. If
    the two results differ, both steps are repeated.
    """
    for _ in range(10):
        before, after = _followed(files), _followed(files)
        if before == after:
            break
    return before


def _followed(files: TlsFiles) -> TlsFiles:
    return replace(files, **{name: os.path.realpath(path) for name, path in files.named()})


def _check_readable(name: str, path: str, shown: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except (FileNotFoundError, IsADirectoryError):
        raise BrokerError(f"the file {shown} in tls.{name} does not exist") from None
    except OSError as error:
        message = f"the file {shown} in tls.{name} cannot be read ({error.strerror})"
        raise BrokerError(f"{message}; let this user read it") from None


def finish_handshake(sock: object) -> None:
    """Prepare a new connection: send packets without delay, and wait until both sides agree on TLS.

    In TLS 1.3 our handshake ends before the broker has checked our certificate. The first bytes that the
    broker sends show the result: session tickets or an alert. If we sent our own bytes first, the alert could
    be lost with the connection.
    """
    if not isinstance(sock, socket.socket):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not isinstance(sock, ssl.SSLSocket) or sock.version() != "TLSv1.3":
        return
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        selector.select(VERDICT_SECONDS)
    patience = sock.gettimeout()
    sock.setblocking(False)
    with contextlib.suppress(ssl.SSLWantReadError):
        if not sock.recv(1):
            raise ConnectionResetError
    sock.settimeout(patience)


def certificate_end(sock: object) -> float | None:
    """Return the Unix time when the other end's certificate expires, or None if this time is not known."""
    shown = sock.getpeercert() if isinstance(sock, ssl.SSLSocket) else None
    until = shown.get("notAfter") if shown else None
    return float(ssl.cert_time_to_seconds(until)) if isinstance(until, str) else None


def common_name(path: str) -> str:
    """Return the common name in a certificate, by which a broker knows the certificate's owner."""
    try:
        subject = x509.load_pem_x509_certificate(Path(path).read_bytes()).subject
        return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    except (OSError, ValueError, IndexError):
        raise BrokerError(f"the file {path} in tls.cert has no certificate with a common name") from None


def explain_tls(files: TlsFiles, host: str, error: ssl.SSLError) -> str:
    """Return a TLS error in plain words, with advice for the person who chose the files."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _their_certificate(files, host, error)
    reason = error.reason or str(error)
    if message := _VERDICTS.get(reason):
        name, dates = _our_certificate(files)
        return f"{dates or message.format(ours=name)} ({reason})"
    return f"{_ALERTS.get(reason, 'TLS failed; see the log of the broker')} ({reason})"


def _their_certificate(files: TlsFiles, host: str, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in MISMATCH:
        return f"its certificate is not made out to {host}; use a name in the certificate"
    if message := _BROKERS.get(error.verify_code):
        return message.format(clock=_time(time.time()))
    message = f"its certificate is not trusted ({error.verify_message}); is it another federation's broker?"
    return f"{message} compare tls.ca, {files.ca}"


def _our_certificate(files: TlsFiles) -> tuple[str, str]:
    """Return the name of our certificate, and a message if the certificate is not valid now.

    The dates are checked here because a broker sends the same alert for several faults.
    """
    try:
        cert = x509.load_pem_x509_certificate(Path(files.cert or "").read_bytes())
        name = f"our certificate ({cert.subject.rfc4514_string()}, {files.cert})"
    except (OSError, ValueError, IndexError):
        return "our certificate", ""
    since, until = (at.timestamp() for at in (cert.not_valid_before_utc, cert.not_valid_after_utc))
    now = time.time()
    if now < since:
        return (
            name,
            f"{name} is valid only from {_time(since)}, but this clock says {_time(now)}; set the clock",
        )
    if now > until:
        return name, f"{name} has expired on {_time(until)}; renew it"
    return name, ""


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
