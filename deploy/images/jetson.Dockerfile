# A device on a Jetson, with NVIDIA's own torch from the base image. Our packages are added without their dependencies.
#
# BASE    JetPack 6 (L4T 36, Python 3.10):  dustynv/l4t-pytorch:r36.4.0, or any image with a torch for CUDA 12
#         JetPack 7 (L4T 38, Python 3.12):  nvcr.io/nvidia/pytorch:25.09-py3, or any image with a torch for CUDA 13
#         Pin it by digest. torch is never fetched from an index, so no other torch can replace it.
ARG BASE
FROM ${BASE} AS wheel
COPY source /source
RUN --mount=type=bind,source=locks/build.txt,target=/locks/build.txt --mount=type=bind,source=wheels,target=/wheels \
    --mount=type=bind,source=locks/index.sh,target=/locks/index.sh --mount=type=cache,target=/root/.cache/pip \
    if [ ! -f /source/pyproject.toml ]; then mkdir /wheel && cp /source/*.whl /wheel; else \
    . /locks/index.sh && python3 -m pip install -q --require-hashes --only-binary=:all: --no-deps --find-links /wheels --target /tools \
       -r /locks/build.txt \
    && PYTHONPATH=/tools python3 -m pip wheel -q --no-deps --no-build-isolation --no-index -w /wheel /source; fi

FROM ${BASE} AS edge-jetson
RUN --mount=type=bind,source=wheels,target=/wheels --mount=type=bind,source=locks,target=/locks \
    --mount=type=bind,from=wheel,source=/wheel,target=/wheel --mount=type=cache,target=/root/.cache/pip \
    . /locks/index.sh && python3 -m venv --without-pip --system-site-packages /opt/protofleet \
    && /opt/protofleet/bin/python /locks/install_on_vendor_torch.py /locks /wheels /wheel \
    && install -d -o 10001 -g 10001 /protofleet /protofleet/state
ENV PATH=/opt/protofleet/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /protofleet
VOLUME /protofleet/state
EXPOSE 9100
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=180s --retries=3 \
    CMD ["protofleet", "health", "/protofleet/settings.toml"]
ENTRYPOINT ["protofleet"]
CMD ["device", "/protofleet/settings.toml"]
