#!/bin/sh
# Install Mosquitto with the system's package manager, or print in one line how to install it.
set -u
say() { echo "the tests need Mosquitto 2: $1" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi; }
if command -v apt-get >/dev/null; then
    { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends mosquitto; } >/dev/null 2>&1 || say "sudo apt-get install mosquitto"
elif command -v brew >/dev/null; then
    brew install mosquitto >/dev/null || say "brew install mosquitto"
elif command -v dnf >/dev/null; then
    as_root dnf install -y -q mosquitto >/dev/null || say "sudo dnf install mosquitto"
else
    say "see mosquitto.org/download"
fi
