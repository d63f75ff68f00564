#!/bin/sh
# Bytecode of what is really imported, and of the packages named after it: the root is read-only later, and a start
# without bytecode is slow. All of it would double the Python in the image.
set -eu
HOME=/tmp /opt/protofleet/bin/python -c "$1"
shift
cd /opt/protofleet/lib/python3*/site-packages
for package in "$@"; do /opt/protofleet/bin/python -m compileall -q "$package"; done
