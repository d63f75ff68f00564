# Stand-ins for images that a machine without a registry cannot pull: the same programs, from Debian's packages.
ARG BASE
FROM ${BASE} AS broker
RUN apt-get update && apt-get install -y --no-install-recommends mosquitto mosquitto-clients && rm -rf /var/lib/apt/lists/*

FROM ${BASE} AS prometheus
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["prometheus"]
