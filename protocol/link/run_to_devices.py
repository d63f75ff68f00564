"""Send the messages of one run to devices, and count the bytes of each device."""

from __future__ import annotations

from collections.abc import Callable

from protofleet.protocol.link.meter import DOWN
from protofleet.protocol.link.run_part import RunPart
from protofleet.protocol.link.to_devices import LinkToDevices
from protofleet.protocol.transport.base import packet_bytes
from protofleet.protocol.wire.messages import Message


class RunToDevices(RunPart):
    """The part of a run that sends messages to devices, through the link that all runs of a coordinator share."""

    party: LinkToDevices

    def __init__(self, party: LinkToDevices, run: str) -> None:
        super().__init__(party, DOWN, run)
        # Called with the topic and the size of each packet before it is sent, and of each received packet that the
        # device of the topic has sent. Rejected frames, duplicates and MQTT wills are left out, because another
        # party may have sent them. None if nothing needs these sizes.
        self.on_packet: Callable[[str, int], None] | None = None

    def understands(self, device: str, form: str) -> bool:
        return self.party.understands(device, form)

    def send(self, device: str, message: Message) -> None:
        """Send a message to a device, unless the enrolment of the device has ended.

        The key is looked up only once, because the enrolment may end between two look-ups.
        """
        with self.party.error_scope(device):
            if (known := self.party.keyring.get(device)) is not None:
                self.publish(self.party.topics.down(device), message, device, receive=known.receive)

    def send_as(self, run: str, device: str, message: Message) -> None:
        """Send a message in the name of another run, which is not open."""
        own, self.run = self.run, run
        try:
            self.send(device, message)
        finally:
            self.run = own

    def report_packet(self, topic: str, frame: bytes) -> None:
        if self.on_packet is not None:
            self.on_packet(topic, packet_bytes(topic, len(frame)))

    def receiver_on(self, topic: str) -> str:
        return self.party.device_of_topic(topic)

    def sender_on(self, topic: str) -> str:
        device = self.party.device_of_topic(topic)
        # Without a verified frame, any party may have chosen this name.
        return device if self.party.has_heard(device) else ""

    def _publish_frame(
        self, topic: str, frame: bytes, tensors: dict[str, int], fresh: bool, retain: bool = False, qos: int = 1
    ) -> None:  # fmt: skip
        self.report_packet(topic, frame)
        super()._publish_frame(topic, frame, tensors, fresh, retain, qos)
