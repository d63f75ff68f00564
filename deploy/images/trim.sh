#!/bin/sh
# Leave out what no program of ours uses: the tests inside packages, what they are compiled against, orthogonal
# regression, and the languages that rich could colour.
set -eu
cd /opt/protofleet/lib/python3*/site-packages
for package in scipy sklearn; do
    find "$package" -depth -type d -name tests -exec rm -rf {} +
    find "$package" -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.h' -o -name '*.c' \
        -o -name '*.cpp' -o -name '*.tp' \) -delete
done
rm -rf sklearn/datasets/images sklearn/datasets/descr scipy/odr scipy/datasets
find pygments/lexers -name '*.py' ! -name __init__.py ! -name _mapping.py ! -name python.py -delete
