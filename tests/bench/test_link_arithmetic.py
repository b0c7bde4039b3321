"""What the emulated link computes: packets, handshakes, and what it refuses; no link is needed."""

import struct
import time
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photodup.bench.link import emulate, packets
from photodup.bench.link.emulate import Link, LinkError, LinkSpec, measure_round_trip


def handshake(*seconds):
    """Take as long as it is told, the last one for ever; `n` counts."""
    left = chain(seconds, repeat(seconds[-1]))

    def shake():
        shake.n += 1
        time.sleep(next(left))

    shake.n = 0
    return shake


def test_the_floor_is_the_shortest_of_at_least_ten(figure, monkeypatch):
    monkeypatch.setattr(emulate, "PAUSE_S", 0)
    shake = handshake(*[0.02] * 9, 0.005, 0.02)
    found = measure_round_trip(shake, 15)
    assert shake.n == 10
    assert 5 <= found.floor_ms <= found.median_ms and found.median_ms >= 20
    figure(found.floor_ms < 20, found)


def test_a_busy_machine_is_asked_again_until_the_floor_shows(figure, monkeypatch):
    monkeypatch.setattr(emulate, "PAUSE_S", 0)
    monkeypatch.setattr(emulate, "RETRY_S", 60)
    shake = handshake(*[0.03] * 25, 0.005)
    found = measure_round_trip(shake, 15)
    assert shake.n >= 26 and found.floor_ms <= found.median_ms and found.median_ms >= 30
    figure(found.floor_ms < 30, found)


def test_a_slower_link_is_that_slower_link_when_the_time_is_over(monkeypatch):
    monkeypatch.setattr(emulate, "PAUSE_S", 0)
    monkeypatch.setattr(emulate, "RETRY_S", 0.5)
    shake = handshake(0.02)
    assert measure_round_trip(shake, 5).floor_ms >= 20 and shake.n >= 10


def test_a_round_trip_that_is_too_short_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(emulate, "PAUSE_S", 0)
    monkeypatch.setattr(emulate, "RETRY_S", 60)
    shake = handshake(0)
    measure_round_trip(shake, 50)
    assert shake.n == 10


def ones_sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def pseudo(packet: bytes) -> bytes:
    return packet[12:20] + struct.pack("!BBH", 0, 6, len(packet) - 20)


def tcp_packet(payload: bytes, source: bytes, target: bytes, *, partial: bool, options: bytes = b"") -> bytes:
    tcp_length = 20 + len(options)
    ip = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + tcp_length + len(payload), 7, 0x4000, 64, 6, 0))
    ip += source + target
    ip[10:12] = (0xFFFF - ones_sum(bytes(ip))).to_bytes(2, "big")
    segment = bytearray(struct.pack("!HHIIBBHHH", 1, 2, 4294967000, 5, tcp_length << 2, 0x19, 9, 0, 0))
    segment += options + payload
    packet = bytes(ip) + bytes(segment)
    check = ones_sum(pseudo(packet)) if partial else 0xFFFF - ones_sum(pseudo(packet) + bytes(segment))
    segment[16:18] = check.to_bytes(2, "big")
    return bytes(ip) + bytes(segment)


@given(st.binary(max_size=3000), st.binary(min_size=4, max_size=4), st.booleans(), st.booleans())
def test_translation_keeps_both_checksums_right(payload, address, to_source, partial):
    before = tcp_packet(payload, b"\xc6\x12\0\x02", b"\xc6\x12\0\x01", partial=partial)
    flags = packets.NEEDS_CSUM if partial else 0
    frame = packets.VNET.pack(flags, 0, 0, 0, 20, 16) + before
    head = bytearray(frame[: packets.HEAD])
    packets.rewrite_address(head, 12 if to_source else 16, address)
    after = (bytes(head) + frame[packets.HEAD :])[packets.VNET.size :]
    assert after[12 if to_source else 16 :][:4] == address
    assert ones_sum(after[:20]) == 0xFFFF
    if partial:
        assert int.from_bytes(after[36:38], "big") % 0xFFFF == ones_sum(pseudo(after)) % 0xFFFF
    else:
        assert ones_sum(pseudo(after) + after[20:]) == 0xFFFF


@given(st.binary(min_size=1, max_size=9000), st.sampled_from([536, 1448]), st.sampled_from([b"", b"\1" * 12]))
def test_a_superpacket_splits_into_the_segments_of_the_wire(payload, size, options):
    packet = tcp_packet(payload, b"\x7f\0\0\1", b"\xc6\x12\0\x02", partial=True, options=options)
    header = 40 + len(options)
    frame = packets.VNET.pack(packets.NEEDS_CSUM, 1, header, size, 20, 16) + packet
    parts = packets.split(frame)
    count, wire, _ = packets.segments_of(frame)
    assert len(parts) == count == -(-len(payload) // size)
    assert sum(len(part) - packets.VNET.size for part in parts) == wire
    if count == 1:
        return
    bare = [part[packets.VNET.size :] for part in parts]
    assert b"".join(part[header:] for part in bare) == payload
    for index, part in enumerate(bare):
        assert ones_sum(part[:20]) == 0xFFFF
        assert int.from_bytes(part[2:4], "big") == len(part) <= header + size
        assert int.from_bytes(part[24:28], "big") == (4294967000 + index * size) % 2**32
        assert int.from_bytes(part[36:38], "big") == ones_sum(pseudo(part))
        assert bool(part[33] & 0x09) == (index == count - 1)  # FIN and PSH on the last one only


def test_refusals_name_the_remedy():
    with pytest.raises(LinkError, match=r"up to 1000 Mbit/s, not 10000"), Link("datacentre"):
        pass
    with pytest.raises(LinkError, match="No link preset 'moon': choose from datacentre"):
        Link("moon")
    for wrong in ({"rtt_ms": -1}, {"rate_mbit_s": 0}, {"loss": 1.0}, {"initcwnd": 0}):
        with pytest.raises(LinkError, match="is no link"):
            LinkSpec(**wrong)
