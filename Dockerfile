# The image of the driver, of mountd and of the controller.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
RUN make build

FROM debian:bookworm-slim
# mount and umount for bind mounts; ndctl for namespaces; mkfs for the
# filesystems of the kernel.
RUN apt-get update \
    && apt-get install -y --no-install-recommends mount ndctl daxctl e2fsprogs xfsprogs \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/bin/nvfs-csi /usr/bin/nvfs-csi
COPY --from=build /src/bin/nvfs /usr/bin/nvfs
ENTRYPOINT ["/usr/bin/nvfs-csi"]
