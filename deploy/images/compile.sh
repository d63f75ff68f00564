#!/bin/sh
# Compile the modules that are really imported, and the packages that the arguments name. The root is read-only later,
# and a start without bytecode is slow. Bytecode of all modules would double the size of Python in the image.
set -eu
HOME=/tmp /opt/protofleet/bin/python -c "$1"
shift
cd /opt/protofleet/lib/python3*/site-packages
for package in "$@"; do /opt/protofleet/bin/python -m compileall -q "$package"; done
