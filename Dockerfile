# syntax=docker/dockerfile:1
# One target per role; each has just the pinned packages of its own lock:
#   docker build --target controller-aws     -t confidential-csi-controller-aws .
#   docker build --target controller-azure   -t confidential-csi-controller-azure .
#   docker build --target controller-libvirt -t confidential-csi-controller-libvirt .
#   docker build --target controller         -t confidential-csi-controller .
#   docker build --target node               -t confidential-csi-node .
# Pin the base: --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY locks/ locks/
RUN python -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r locks/build.txt
RUN python -m venv /opt/confidential-csi
COPY . .
# The build generates the protobuf code from proto/.
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist .

FROM build AS build-driver
RUN /opt/confidential-csi/bin/pip install --no-cache-dir --require-hashes -r locks/driver.txt \
 && /opt/confidential-csi/bin/pip install --no-cache-dir --no-deps /dist/*.whl

FROM build AS build-aws
RUN /opt/confidential-csi/bin/pip install --no-cache-dir --require-hashes -r locks/aws.txt \
 && /opt/confidential-csi/bin/pip install --no-cache-dir --no-deps /dist/*.whl

FROM build AS build-azure
RUN /opt/confidential-csi/bin/pip install --no-cache-dir --require-hashes -r locks/azure.txt \
 && /opt/confidential-csi/bin/pip install --no-cache-dir --no-deps /dist/*.whl

# libvirt-python comes as source: it is compiled here, with the pinned build tools.
FROM build AS build-libvirt
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libvirt-dev pkg-config
RUN /build/bin/pip wheel --no-cache-dir --no-build-isolation --require-hashes --wheel-dir /wheels -r locks/libvirt.txt \
 && /opt/confidential-csi/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl /dist/*.whl

FROM ${PYTHON_IMAGE} AS role
# ssh wants its user to have a name.
RUN useradd --uid 65532 --user-group --no-create-home --shell /usr/sbin/nologin confidential-csi
ENV PATH=/opt/confidential-csi/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

FROM role AS controller
COPY --from=build-driver /opt/confidential-csi /opt/confidential-csi
USER 65532:65532
ENTRYPOINT ["confidential-csi", "controller"]

FROM role AS controller-aws
COPY --from=build-aws /opt/confidential-csi /opt/confidential-csi
USER 65532:65532
ENTRYPOINT ["confidential-csi", "controller"]

FROM role AS controller-azure
COPY --from=build-azure /opt/confidential-csi /opt/confidential-csi
USER 65532:65532
ENTRYPOINT ["confidential-csi", "controller"]

FROM role AS controller-libvirt
RUN apt-get update && apt-get install -y --no-install-recommends libvirt0 openssh-client \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build-libvirt /opt/confidential-csi /opt/confidential-csi
USER 65532:65532
ENTRYPOINT ["confidential-csi", "controller"]

# Root, because Kata's direct-volume directory belongs to root.
FROM role AS node
COPY --from=build-driver /opt/confidential-csi /opt/confidential-csi
USER 0:0
ENTRYPOINT ["confidential-csi", "node"]
