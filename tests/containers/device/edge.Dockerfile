# A small image that does what ours does: our wheel, and everything else from the board's vendor, who is mounted.
ARG BASE
FROM $BASE
COPY *.whl /wheels/
RUN python3 -m pip install -q --no-deps --no-index --break-system-packages /wheels/*.whl \
    && python3 -c 'import site; open(site.getsitepackages()[0] + "/vendor.pth", "w").write("/opt/vendor\n")'
