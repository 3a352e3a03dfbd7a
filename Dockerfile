# syntax=docker/dockerfile:1
# One target per role:
#   docker build --target controller -t confidential-csi-controller .
#   docker build --target node       -t confidential-csi-node .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY locks/ locks/
RUN python -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r locks/build.txt
RUN python -m venv /opt/confidential-csi \
 && /opt/confidential-csi/bin/pip install --no-cache-dir --require-hashes -r locks/driver.txt
COPY . .
# The build generates the protobuf code from proto/.
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
 && /opt/confidential-csi/bin/pip install --no-cache-dir --no-deps /dist/*.whl

FROM ${PYTHON_IMAGE} AS role
COPY --from=build /opt/confidential-csi /opt/confidential-csi
ENV PATH=/opt/confidential-csi/bin:$PATH PYTHONUNBUFFERED=1

FROM role AS controller
USER 65532:65532
ENTRYPOINT ["confidential-csi", "controller"]

# Root, because Kata's direct-volume directory belongs to root.
FROM role AS node
USER 0:0
ENTRYPOINT ["confidential-csi", "node"]
