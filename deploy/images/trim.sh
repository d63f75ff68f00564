#!/bin/sh
# Remove files that our programs never load: the tests and C sources inside packages, unused parts of SciPy and
# scikit-learn, and rich's syntax colours for other languages than Python. The parts of SciPy and scikit-learn for FINCH,
# t-SNE and MATLAB files stay.
set -eu
cd /opt/protofleet/lib/python3*/site-packages
for package in scipy sklearn; do
    find "$package" -depth -type d -name tests -exec rm -rf {} +
    find "$package" -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.h' -o -name '*.c' \
        -o -name '*.cpp' -o -name '*.tp' \) -delete
done
rm -rf sklearn/datasets/images sklearn/datasets/descr joblib/test scipy/odr scipy/datasets scipy/cluster scipy/signal \
    scipy/io/_fast_matrix_market/_fmm_core.*.so scipy/stats/_sobol_direction_numbers.npz
for package in cluster ensemble gaussian_process mixture neural_network semi_supervised; do
    rm -rf "sklearn/$package"
done
find pygments/lexers -name '*.py' ! -name __init__.py ! -name _mapping.py ! -name python.py -delete
