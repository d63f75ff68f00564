# The same board with a container engine of its own. Where the tests run there may be no bridges to be made.
ARG BASE
FROM $BASE
RUN apt-get update && apt-get install -y --no-install-recommends docker.io && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /etc/docker && echo '{"bridge": "none", "iptables": false, "ip6tables": false}' >/etc/docker/daemon.json
