"""A certificate authority of our own, for servers on this machine and their clients."""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = x509.SubjectAlternativeName(
    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
)


class Authority:
    """Issues certificates; its own is in the file `ca.pem` of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tests")
        certificate = self._signed(self._name, self._key, x509.BasicConstraints(True, None))
        self.certificate = folder / "ca.pem"
        self.certificate.write_bytes(certificate)

    def issue(self, name: str) -> tuple[Path, Path]:
        """Files with a certificate for this machine and with its key, in PKCS#8."""
        key = ec.generate_private_key(ec.SECP256R1())
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(self._signed(_name(name), key, HERE))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> bytes:
        now = datetime.now(timezone.utc)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        )
        signed = built.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
