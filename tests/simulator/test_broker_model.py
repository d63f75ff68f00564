"""The model of the broker loses the messages that Mosquitto lost in measurements.

docs/simulator.md has the figures.
"""

import random

import pytest

from protofleet.protocol.transport.base import Arrived, Connected, Disconnected, Will
from tests.simulator.broker import Broker, Manners
from tests.simulator.clock import Clock
from tests.simulator.line import Line
from tests.simulator.pipe import Weather

UP = "protofleet/1/sky/up/d0"


class Place:
    """A broker, and clients that keep all messages they get."""

    def __init__(self, **manners):
        self.clock, self.dice = Clock(), random.Random(1)
        self.broker = Broker(self.clock, self.dice, Manners(**manners))
        self.heard = {}

    def client(self, name, topics=(), expires=0.0, clean=True, client_id=None, will=None):
        heard = self.heard[name] = []
        line = Line(
            self.clock, self.broker, self.dice, name, client_id or name, heard.append, Weather(), topics,
            expires, clean,
        )  # fmt: skip
        line.will = will
        line.start()
        self.wait(1.0)
        return line

    def wait(self, seconds):
        until = self.clock.now + seconds
        self.clock.run(lambda: False, until)
        self.clock.now = until

    def frames(self, name):
        return [int(item.frame) for item in self.heard[name] if isinstance(item, Arrived)]


def publish(line, numbers):
    for number in numbers:
        line.publish(UP, str(number).encode())


def test_all_messages_arrive_in_order_without_faults():
    place = Place()
    place.client("reader", (UP,))
    publish(place.client("writer"), range(100))
    place.wait(5.0)
    assert place.frames("reader") == list(range(100)) and not place.broker.dropped


def test_a_slow_subscriber_gets_1020_of_3000_messages_and_the_sender_gets_no_error():
    place = Place()
    reader = place.client("reader", (UP,))
    writer = place.client("writer")
    reader.block({"down"})
    publish(writer, range(3000))
    place.wait(10.0)
    reader.heal()
    place.wait(10.0)
    assert len(place.frames("reader")) == 1020 and place.broker.dropped == 1980
    assert not [item for item in place.heard["writer"] if not isinstance(item, Connected)]


def test_the_first_1000_of_3000_messages_are_kept_for_a_durable_offline_subscriber():
    place = Place()
    place.client("reader", (UP,), expires=600.0, clean=False).kill(power=False)
    publish(place.client("writer"), range(3000))
    place.wait(10.0)
    place.client("reader", (UP,), expires=600.0, clean=False)
    place.wait(10.0)
    assert place.frames("reader") == list(range(1000))


@pytest.mark.parametrize(("autosave", "left"), [(0.0, 0), (1.0, 10)])
def test_only_messages_that_an_autosave_wrote_survive_a_kill_of_the_broker(autosave, left):
    place = Place(autosave_seconds=autosave)
    place.client("reader", (UP,), expires=600.0, clean=False).kill(power=False)
    writer = place.client("writer")
    publish(writer, range(10))
    place.wait(5.0)
    place.broker.die("saved")
    place.broker.start()
    place.client("reader", (UP,), expires=600.0, clean=False)
    place.wait(10.0)
    assert place.frames("reader") == list(range(left))


def test_messages_without_an_acknowledgement_arrive_again_after_a_reset():
    place = Place()
    reader = place.client("reader", (UP,), expires=600.0, clean=False)
    writer = place.client("writer")
    reader.block({"up"})  # It receives, and its acknowledgements are lost.
    publish(writer, range(5))
    place.wait(3.0)
    reader.reset()
    reader.heal()
    place.wait(10.0)
    assert place.frames("reader") == [*range(5), *range(5)]


@pytest.mark.parametrize("says", [True, False])
def test_the_older_of_two_clients_with_the_same_client_id_is_disconnected(says):
    place = Place(says_taken_over=says)
    place.client("older", client_id="one")
    place.client("newer", client_id="one")
    place.wait(0.3)
    gone = [item for item in place.heard["older"] if isinstance(item, Disconnected)]
    assert gone[0].final is says, "Mosquitto 2.0 sends no reason, and the older client reconnects"


def test_the_will_of_a_client_without_power_is_published_after_its_keepalive():
    place = Place()
    place.client("reader", (UP,))
    place.client("board", will=Will(UP, b"7")).kill(power=True)
    place.wait(40.0)
    assert place.frames("reader") == []
    place.wait(10.0)
    assert place.frames("reader") == [7]


def test_messages_that_wait_to_be_sent_are_lost_with_the_connection():
    place = Place()
    place.client("reader", (UP,))
    writer = place.client("writer")
    writer.block({"up", "down"})
    publish(writer, range(5))
    place.wait(0.1)
    writer.reset()
    writer.heal()
    place.wait(60.0)
    assert place.frames("reader") == []
    publish(writer, [9])
    place.wait(5.0)
    assert place.frames("reader") == [9]
