#!/bin/sh
# What the container tests need: an engine, its compose and buildx plugins, debootstrap for base images that cannot be
# pulled, Prometheus for its rules, ssh and rsync for deployments. Debian and Ubuntu; elsewhere one line says what to
# install.
set -u
say() { echo "the container tests need $1" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi; }
install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1; }
PATH="$PATH:/usr/sbin:/usr/local/sbin"
done_with_it() { # what there is, and how it is reached
    reached="an engine answers docker info"
    docker info >/dev/null 2>&1 || reached="no engine runs now: make test-containers starts its own engine as root, which can be reached until its tests end\
 with DOCKER_HOST=unix://${PROTOFLEET_ENGINE:-$HOME/.cache/protofleet/engine}/docker.sock; dockerd & starts an engine\
 for make up"
    echo "there are docker with compose and buildx, debootstrap, prometheus, promtool, ssh and rsync; $reached"
    exit 0
}

missing=""
command -v dockerd >/dev/null || docker version >/dev/null 2>&1 || missing="$missing docker.io iptables"
command -v debootstrap >/dev/null || missing="$missing debootstrap"
command -v prometheus >/dev/null || missing="$missing prometheus"
command -v rsync >/dev/null || missing="$missing rsync"
command -v ssh-keygen >/dev/null || missing="$missing openssh-client"
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || say "Docker with compose and buildx, debootstrap, prometheus and promtool, ssh and rsync"
    as_root apt-get update -qq >/dev/null 2>&1
    # shellcheck disable=SC2086
    install $missing || say "apt-get install$missing"
fi
docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 && done_with_it
install docker-compose-v2 docker-buildx && docker compose version >/dev/null 2>&1 && done_with_it

# Debian 12 has no second compose: the plugins of Debian 13 are single programs and run there too. apt fetches and checks
# them with lists of its own; the system's sources stay as they are.
plugins="${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins"
work=$(mktemp -d) && mkdir -p "$plugins" "$work/lists/partial" "$work/cache/archives/partial" && cd "$work" || exit 1
trap 'rm -rf "$work"' EXIT
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" >sources.list
own() { apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "$@"; }
{ own update && own download docker-compose docker-buildx; } >/dev/null 2>&1 || say "docker's compose and buildx plugins"
for package in ./*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -xO --wildcards './usr/libexec/docker/cli-plugins/*' \
        >"$plugins/$(basename "$package" | cut -d_ -f1)" || exit 1
done
chmod 755 "$plugins"/docker-*
done_with_it
