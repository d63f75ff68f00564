# Stand-ins for images that a machine without a registry cannot pull: the same programs, from Debian's packages.
ARG BASE
FROM ${BASE} AS broker
RUN apt-get update && apt-get install -y --no-install-recommends mosquitto mosquitto-clients && rm -rf /var/lib/apt/lists/*

# On Debian 13: the RabbitMQ of Debian 12 speaks no MQTT 5. Its scripts, not Debian's, which want its own user.
FROM ${BASE} AS rabbitmq
RUN apt-get update && apt-get install -y --no-install-recommends rabbitmq-server && rm -rf /var/lib/apt/lists/*
ENV PATH=/usr/lib/rabbitmq/bin:$PATH

FROM ${BASE} AS prometheus
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["prometheus"]
