#!/bin/sh
# Compile the modules that the code in the first argument imports, and the packages that the other arguments name. Python
# cannot write bytecode later, because the file system of a container is read-only, and a start without bytecode is slow.
# Bytecode of all modules would double the size of Python in the image.
set -eu
HOME=/tmp /opt/protofleet/bin/python -c "$1"
shift
cd /opt/protofleet/lib/python3*/site-packages
for package in "$@"; do /opt/protofleet/bin/python -m compileall -q "$package"; done
