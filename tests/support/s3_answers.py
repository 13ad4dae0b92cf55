"""What S3 answers, as bytes: heads, errors, pages of a listing, multipart uploads."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

PAGE_KEYS = 1000  # S3's own; a client may ask for fewer
SMALLEST_PART_BYTES = 5 * 2**20  # of all parts but the last (S3 multipart limits)


def head(status: int, size: int, span: str | None = None) -> bytes:
    """Status line and headers of an answer of `size` bytes; `span` is its Content-Range."""
    extra = f"Content-Range: {span}\r\n" if span else ""
    return (
        f'HTTP/1.1 {status} -\r\nContent-Length: {size}\r\nETag: "0"\r\n'
        f"Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n{extra}\r\n"
    ).encode()


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>by schedule</Message></Error>".encode()


def page(sizes: Mapping[str, int], query: Mapping[str, str]) -> bytes:
    """One page of ListObjectsV2 over keys and their sizes; the token is the last name of the page before."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token", query.get("start-after", ""))
    names = {_listed_as(key, prefix, delimiter) for key in sizes if key.startswith(prefix)}
    left = sorted(name for name in names if name > after)
    shown = left[: min(PAGE_KEYS, int(query.get("max-keys", PAGE_KEYS)))]
    rows = "".join(
        f"<Contents><Key>{escape(name)}</Key><Size>{sizes[name]}</Size><ETag>0</ETag>"
        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        if name in sizes
        else f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        for name in shown
    )
    more = len(left) > len(shown)
    token = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
    ).encode()


def _listed_as(key: str, prefix: str, delimiter: str) -> str:
    """The key, or the folder that stands for it in a listing of one level."""
    if not delimiter or delimiter not in key[len(prefix) :]:
        return key
    return key[: key.index(delimiter, len(prefix)) + 1]


def upload_begun(number: str) -> bytes:
    name = "InitiateMultipartUploadResult"
    return f"<{name}><UploadId>{number}</UploadId></{name}>".encode()


def upload_completed(key: str) -> bytes:
    return (
        f"<CompleteMultipartUploadResult><Key>{escape(key)}</Key><ETag>0</ETag>"
        "</CompleteMultipartUploadResult>"
    ).encode()


def uploads(unfinished: Mapping[str, str]) -> bytes:
    """ListMultipartUploads of upload ids and their keys."""
    rows = "".join(
        f"<Upload><Key>{escape(key)}</Key><UploadId>{number}</UploadId></Upload>"
        for number, key in unfinished.items()
    )
    return f"<ListMultipartUploadsResult>{rows}</ListMultipartUploadsResult>".encode()


def wrong_parts(named: Sequence[int], parts: Mapping[int, bytes | bytearray]) -> str | None:
    """Why S3 refuses to complete an upload of these parts, or None."""
    if not named or any(number not in parts for number in named):
        return "InvalidPart"
    if list(named) != sorted(set(named)):
        return "InvalidPartOrder"
    if any(len(parts[number]) < SMALLEST_PART_BYTES for number in named[:-1]):
        return "EntityTooSmall"
    return None
