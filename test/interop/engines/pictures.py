"""Pictures for engines: files made here, which differ by size and seed."""

import base64
import struct
import zlib

# Small, wide, high, tiny ones, and sizes that are no multiples of anything.
SIZES = [(112, 84), (280, 140), (1, 1), (30, 500), (333, 277), (700, 45)]


def png(width, height, seed):
    """A picture of eight bits in three colours."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = lambda y: b"\0" + bytes((seed * 37 + x * 3 + y * 5 + c * 11) & 255 for x in range(width) for c in range(3))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(row(y) for y in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def data_uri(width, height, seed):
    return "data:image/png;base64," + base64.b64encode(png(width, height, seed)).decode()
