#!/bin/sh
# Print one line and end with exit code 1 if there is no container engine, before anything is installed or built.
without='`make demo` runs the same federation without containers'
command -v docker >/dev/null || {
    echo "there is no docker on this machine: install Docker with its compose and buildx plugins; $without" >&2
    exit 1
}
limit=$(command -v timeout) && limit="$limit 30"
$limit docker version >/dev/null 2>&1 || {
    echo "the Docker engine does not answer: start it (systemctl start docker), or set DOCKER_HOST to its address; $without" >&2
    exit 1
}
