"""Edit packets of the emulated link: translate an address, count and cut TCP super-packets.

A frame is what a TUN device with `IFF_VNET_HDR` delivers: the 10-byte virtio header, then an IPv4 packet.
"""

import math
import socket
import struct

VNET = struct.Struct("=BBHHHH")  # flags, gso type, header length, segment size, checksum start and offset
NEEDS_CSUM, GSO_NONE = 1, 0
MTU = 1500
HEAD = VNET.size + 20 + 20  # what translation may touch: virtio header, IPv4 and TCP without options


def fold(total: int) -> int:
    """Fold a sum of 16-bit words to ones' complement 16 bits (RFC 1071)."""
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def sum_words(data: bytes) -> int:
    return sum(struct.unpack(f"!{len(data) // 2}H", data))


def rewrite_address(head: bytearray, at: int, address: bytes) -> None:
    """Replace the IPv4 address at byte `at` of the IP header, and fix both checksums (RFC 1624)."""
    at += VNET.size
    change = fold((0xFFFF - fold(sum_words(bytes(head[at : at + 4])))) + sum_words(address))
    head[at : at + 4] = address
    ip_sum = VNET.size + 10
    old = int.from_bytes(head[ip_sum : ip_sum + 2], "big")
    head[ip_sum : ip_sum + 2] = (0xFFFF - fold((0xFFFF - old) + change)).to_bytes(2, "big")
    flags, _, _, _, start, offset = VNET.unpack_from(head)
    if flags & NEEDS_CSUM:  # the field holds the plain sum of the pseudo-header: the kernel completes it
        at = VNET.size + start + offset
        if at + 2 <= len(head):
            old = int.from_bytes(head[at : at + 2], "big")
            head[at : at + 2] = fold(old + change).to_bytes(2, "big")
    elif head[VNET.size + 9] == socket.IPPROTO_TCP:
        at = VNET.size + 20 + 16
        old = int.from_bytes(head[at : at + 2], "big")
        head[at : at + 2] = (0xFFFF - fold((0xFFFF - old) + change)).to_bytes(2, "big")


def segments_of(frame: bytes) -> tuple[int, int, int]:
    """Return (segments, IP bytes on the wire, header bytes per segment) of a frame."""
    _, gso, header, size, _, _ = VNET.unpack_from(frame)
    length = len(frame) - VNET.size
    if gso == GSO_NONE or not size:
        return 1, length, 0
    count = math.ceil((length - header) / size)
    return count, length + (count - 1) * header, header


def split(frame: bytes) -> list[bytes]:
    """Cut a TCP super-packet into the segments of a real wire; the kernel completes their checksums."""
    flags, _gso, header, size, start, offset = VNET.unpack_from(frame)
    count, _, _ = segments_of(frame)
    if count == 1:
        return [frame]
    packet = frame[VNET.size :]
    payload, out = packet[header:], []
    sequence = int.from_bytes(packet[start + 4 : start + 8], "big")
    for index in range(count):
        part = payload[index * size : (index + 1) * size]
        head = bytearray(packet[:header])
        head[2:4] = (header + len(part)).to_bytes(2, "big")
        head[4:6] = ((int.from_bytes(packet[4:6], "big") + index) & 0xFFFF).to_bytes(2, "big")
        head[10:12] = b"\0\0"
        head[10:12] = (0xFFFF - fold(sum_words(bytes(head[:20])))).to_bytes(2, "big")
        head[start + 4 : start + 8] = ((sequence + index * size) & 0xFFFFFFFF).to_bytes(4, "big")
        if index < count - 1:
            head[start + 13] &= ~0x09  # FIN and PSH belong to the last segment
        pseudo = sum_words(bytes(head[12:20])) + socket.IPPROTO_TCP + header - start + len(part)
        head[start + offset : start + offset + 2] = fold(pseudo).to_bytes(2, "big")
        out.append(VNET.pack(flags, GSO_NONE, header, 0, start, offset) + bytes(head) + part)
    return out
