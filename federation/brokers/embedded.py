"""Run the broker of the extra `broker` (the package iotcore) in a separate process.

python -m protofleet.federation.brokers.embedded CONFIG.toml
"""

from __future__ import annotations

import logging
import sys

from iotcore import IotCoreBroker


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The broker logs every packet as an error. These messages would fill the log and take most of the broker's time.
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)
    logging.getLogger("tracing").setLevel(logging.CRITICAL)
    broker = IotCoreBroker(config_path=sys.argv[1])
    broker.check_ports()
    broker.run_forever()


if __name__ == "__main__":
    main()
