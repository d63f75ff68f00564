# The same machine with the host's own Mosquitto, and a folder where a Prometheus of it looks for targets.
ARG BASE
FROM $BASE
RUN apt-get update && apt-get install -y --no-install-recommends mosquitto && rm -rf /var/lib/apt/lists/* \
    && mkdir /etc/prometheus
