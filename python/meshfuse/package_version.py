# SPDX-License-Identifier: BSD-3-Clause
"""The version of this package, as a string that compares as a version."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version as PackagingVersion

from . import _C


class Version(str):
    """A version that is a ``str`` and compares as a version; the part after ``+`` is ignored.

    Example:
        >>> Version("0.10.0") > "0.9"
        True
        >>> Version("1.0+git123") == "1.0"
        True
    """

    __slots__ = ()

    def _parsed(self) -> PackagingVersion:
        return _parse(self)

    def __eq__(self, other: object) -> bool:
        """Compare as versions."""
        return isinstance(other, _comparable()) and self._parsed() == _parse(other)

    def __ne__(self, other: object) -> bool:
        """Compare as versions."""
        return not self == other

    def __lt__(self, other: str | PackagingVersion) -> bool:
        """Compare as versions."""
        return self._parsed() < _parse(other)

    def __le__(self, other: str | PackagingVersion) -> bool:
        """Compare as versions."""
        return self._parsed() <= _parse(other)

    def __gt__(self, other: str | PackagingVersion) -> bool:
        """Compare as versions."""
        return self._parsed() > _parse(other)

    def __ge__(self, other: str | PackagingVersion) -> bool:
        """Compare as versions."""
        return self._parsed() >= _parse(other)

    def __hash__(self) -> int:
        """Return the same for equal versions."""
        return hash(self._parsed())


def _comparable() -> tuple[type, ...]:
    from packaging.version import Version as PackagingVersion

    return (str, PackagingVersion)


def _parse(version: object) -> PackagingVersion:
    # Imported here: importing meshfuse must stay cheap.
    from packaging.version import Version as PackagingVersion

    return PackagingVersion(f"{version!s}".partition("+")[0])


__version__ = Version(_C.__version__)


def version() -> Version:
    """Return the version of meshfuse, for example ``0.1.0``."""
    return __version__
