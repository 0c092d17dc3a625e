"""Downloads of files that a peer refers to by URL."""

from __future__ import annotations

from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from molecule_hermes import __version__
from molecule_hermes.errors import BridgeError
from molecule_hermes.net.addresses import NotPublicError, PublicOnly

__all__ = ["Download", "DownloadError", "OversizeError", "fetch"]

_MAX_HOPS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {
    "Accept": "*/*",
    # The limit counts the bytes that arrive.
    "Accept-Encoding": "identity",
    "User-Agent": f"molecule-hermes/{__version__}",
}


class DownloadError(BridgeError):
    """The file could not be downloaded. The message is meant for the peer."""


class OversizeError(DownloadError):
    """The file exceeds the limit."""


@dataclass(frozen=True, slots=True)
class Download:
    name: str
    """The last segment of the URL's path; may be empty."""
    media_type: str
    data: bytes = field(repr=False)


async def fetch(url: str, addresses: PublicOnly, limit: int) -> Download:
    """Downloads a file of at most `limit` bytes. The caller bounds the time."""
    try:
        async with aiohttp.ClientSession(
            connector=addresses.connector(),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30),
            trust_env=False,
        ) as session:
            return await _follow(session, addresses, url, limit)
    except NotPublicError as error:
        raise DownloadError(str(error)) from error
    except TimeoutError as error:
        raise DownloadError("its server did not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise DownloadError("its server cannot be reached") from error


async def _follow(
    session: aiohttp.ClientSession, addresses: PublicOnly, url: str | URL, limit: int
) -> Download:
    """Checks each redirect as if the peer had sent it."""
    for _ in range(_MAX_HOPS + 1):
        checked = addresses.parse(url)
        async with session.get(checked, allow_redirects=False) as response:
            if response.status == 200:
                return Download(checked.name, response.content_type, await _body(response, limit))
            location = response.headers.get("Location", "")
            if response.status not in _REDIRECTS or not location:
                raise DownloadError(f"its server answered with status {response.status}")
            url = _joined(checked, location)
    raise DownloadError(f"it is redirected more than {_MAX_HOPS} times")


def _joined(base: URL, location: str) -> URL:
    try:
        return base.join(URL(location))
    except ValueError as error:
        raise DownloadError("it is redirected to an invalid URL") from error


async def _body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    if (response.content_length or 0) > limit:
        raise OversizeError
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > limit:
            raise OversizeError
    return bytes(body)
