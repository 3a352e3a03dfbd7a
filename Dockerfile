# syntax=docker/dockerfile:1
# check=error=true
# One target per role; each has just the pinned packages of its own lock:
#   docker build --target controller-aws     -t confidential-csi-controller-aws .
#   docker build --target controller-azure   -t confidential-csi-controller-azure .
#   docker build --target controller-libvirt -t confidential-csi-controller-libvirt .
#   docker build --target controller         -t confidential-csi-controller .
#   docker build --target node               -t confidential-csi-node .
# Pin the base: --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:...
# With the base pinned, the same sources make the same files, whenever and wherever (docs/install.md#images).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# Pinned build tools, and an environment without pip that each role's stage fills.
FROM ${PYTHON_IMAGE} AS tools
WORKDIR /src
COPY locks/ locks/
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /build && /build/bin/pip install --require-hashes -r locks/build.txt
RUN python -m venv --without-pip /opt/confidential-csi

# The build generates the protobuf code from proto/.
FROM tools AS wheel
ARG SOURCE_DATE_EPOCH=0
COPY . .
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist .

# Bytecode without the time of its source, and never checked: the image does not change.
FROM tools AS build-driver
RUN --mount=type=cache,target=/root/.cache/pip \
    /build/bin/pip --python /opt/confidential-csi install --no-compile --require-hashes -r locks/driver.txt
COPY --from=wheel /dist /dist
RUN /build/bin/pip --python /opt/confidential-csi install --no-compile --no-deps --no-index /dist/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/confidential-csi

FROM tools AS build-aws
RUN --mount=type=cache,target=/root/.cache/pip \
    /build/bin/pip --python /opt/confidential-csi install --no-compile --require-hashes -r locks/aws.txt
COPY --from=wheel /dist /dist
RUN /build/bin/pip --python /opt/confidential-csi install --no-compile --no-deps --no-index /dist/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/confidential-csi

FROM tools AS build-azure
RUN --mount=type=cache,target=/root/.cache/pip \
    /build/bin/pip --python /opt/confidential-csi install --no-compile --require-hashes -r locks/azure.txt
COPY --from=wheel /dist /dist
RUN /build/bin/pip --python /opt/confidential-csi install --no-compile --no-deps --no-index /dist/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/confidential-csi

# libvirt-python comes as source: it is compiled here, with the pinned build tools, and without debug information, which
# would hold the name of a temporary directory.
FROM tools AS build-libvirt
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libvirt-dev pkg-config
RUN --mount=type=cache,target=/root/.cache/pip \
    CFLAGS=-g0 /build/bin/pip wheel --no-build-isolation --require-hashes --wheel-dir /wheels -r locks/libvirt.txt \
 && /build/bin/pip --python /opt/confidential-csi install --no-compile --no-deps --no-index /wheels/*.whl
COPY --from=wheel /dist /dist
RUN /build/bin/pip --python /opt/confidential-csi install --no-compile --no-deps --no-index /dist/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/confidential-csi

# ssh wants its user to have a name. (useradd would note the day.)
FROM ${PYTHON_IMAGE} AS role
RUN echo "confidential-csi:x:65532:" >>/etc/group \
 && echo "confidential-csi:x:65532:65532::/nonexistent:/usr/sbin/nologin" >>/etc/passwd
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
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/cache/ldconfig/aux-cache
COPY --from=build-libvirt /opt/confidential-csi /opt/confidential-csi
USER 65532:65532
ENTRYPOINT ["confidential-csi", "controller"]

# Root, because Kata's direct-volume directory belongs to root.
FROM role AS node
COPY --from=build-driver /opt/confidential-csi /opt/confidential-csi
USER 0:0
ENTRYPOINT ["confidential-csi", "node"]
