"""The protobuf wire format, as much of it as writing a graph needs.

kiln's wheel depends on nothing but torch, so the client writes `kiln.v1` messages itself. Only writing is
here; the C++ side parses the bytes with protobuf and puts them into normal form before anything is hashed.
"""
import struct
from collections.abc import Collection

_DOUBLE = struct.Struct("<d")
_SMALL = [bytes([value]) for value in range(128)]


def varint(value: int) -> bytes:
    """An unsigned integer below 2**64."""
    if value < 128:
        return _SMALL[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """A signed 64-bit integer as sint64 stores it."""
    return varint(((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF)


def _tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def uint(field: int, value: int) -> bytes:
    """uint32, uint64, bool or enum; a zero is left out, as proto3 does."""
    return _tag(field, 0) + varint(value) if value else b""


def uint_in_oneof(field: int, value: int) -> bytes:
    """The same in a oneof, where a zero must be written."""
    return _tag(field, 0) + varint(value)


def sint(field: int, value: int) -> bytes:
    return _tag(field, 0) + zigzag(value) if value else b""


def sint_in_oneof(field: int, value: int) -> bytes:
    return _tag(field, 0) + zigzag(value)


def double_bits_in_oneof(field: int, value: float) -> bytes:
    """A float as the fixed64 of its bit pattern."""
    return _tag(field, 1) + _DOUBLE.pack(value)


def data(field: int, value: str | bytes) -> bytes:
    """A string, bytes or an encoded message; always written."""
    if isinstance(value, str):
        value = value.encode()
    return _tag(field, 2) + varint(len(value)) + value


def packed_uints(field: int, values: Collection[int]) -> bytes:
    return data(field, b"".join(map(varint, values))) if values else b""


def packed_sints(field: int, values: Collection[int]) -> bytes:
    return data(field, b"".join(map(zigzag, values))) if values else b""


def packed_doubles(field: int, values: Collection[float]) -> bytes:
    return data(field, b"".join(map(_DOUBLE.pack, values))) if values else b""
