# make build   bin/nvfs-csi, one static binary, and bin/nvfs, the same without CSI
# make demo    one volume from CreateVolume to DeleteVolume, shown step by step
# make test    everything that is tested, set-up included (root; at most 15 minutes)
# make e2e     only the tests on real mounts
# make e2e-qemu        real namespaces in QEMU guests (root; about 6 minutes)
# make e2e-qemu-smoke  one guest, one devdax namespace
# make e2e-cluster  a Kubernetes cluster of two nodes, and the tests in it; e2e-smoke: a few minutes of it
# make cluster-up   such a cluster to work with; cluster-shell, cluster-down
# make conformance  the external storage suite of Kubernetes in such a cluster
# make chart   what is made from the chart: deploy/, its README, golden files
# make lint    gofmt, go vet, staticcheck
# make crash   two million crash images (about 20 minutes); crash-selftest: planted mistakes
# make chaos   1,000 kills and 20 upgrades under applications (about 20 minutes)
# make bench   flush modes and filesystems side by side (idle machine; about 15 minutes);
#              JSON and a page with plots in bench/; BENCH_FLAGS=--quick for two minutes
# make scale   the controller in a simulated cluster of 5,000 nodes and 200,000 volumes (4 minutes)
# make soak    stress and endurance on real mounts, long (hours; PostgreSQL as well)

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

export CGO_ENABLED ?= 0
# For programs and tests alike, so that nothing is compiled twice.
export GOFLAGS := -trimpath $(GOFLAGS)

VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
BIN         := bin/nvfs-csi
TOOLS       := bin/nvfs
# Where make bench leaves its results, and what it is run with besides.
BENCH_DIR   ?= bench
BENCH_FLAGS ?=
GO_BUILD    := go build -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"

# Where several goroutines meet.
RACE_PKGS   := ./pkg/deviceplugin ./pkg/driver/... ./pkg/mountd/... ./pkg/nvfs/fusefs/... ./pkg/pmem/ndctl/...
# Of engine and checker only the tests that start some: all would take long.
RACE_ENGINE := Concurrent|UnderLoad|Abort|Worker|Threads|Cancelled
# Where the tests run that need no mount of their own making.
UNIT_PKGS := $$(go list ./... | grep -v -e /test/e2e -e /test/chaos)

.PHONY: all build setup demo test unit race e2e chaos chaos-short arm64 e2e-qemu e2e-qemu-smoke lint bench crash crash-selftest docs clean

all: build

build:
	$(GO_BUILD) -o $(BIN) ./cmd/nvfs-csi
	$(GO_BUILD) -tags nvfstools -o $(TOOLS) ./cmd/nvfs-csi

setup:
	@test/setup.sh

demo: build
	@test/setup.sh fio mkfs.ext4 mount diff
	@$(BIN) demo

test: setup build lint unit race arm64 e2e chaos-short

unit:
	go test $(UNIT_PKGS)

# The tests start and end many processes; each of them would wait for a second.
race: export GORACE = atexit_sleep_ms=10
race: export CGO_ENABLED = 1
race:
	go test -race -short $(RACE_PKGS)
	go test -race -short -run '$(RACE_ENGINE)' ./pkg/nvfs ./pkg/nvfs/fsck

e2e: setup build
	NVFS_CSI=$(CURDIR)/$(BIN) go test -timeout 20m ./test/e2e/...

# Guests need QEMU and some tools of the host; all else comes from packages
# that are downloaded once, to ~/.cache/nvfs-csi/qemu.
QEMU_TOOLS := qemu-system-x86_64 mke2fs depmod modprobe xz gcc make

e2e-qemu:
	@test/setup.sh $(QEMU_TOOLS)
	go test -tags qemu -count=1 -timeout 40m -parallel 2 -skip '^TestSmoke$$' -v ./test/e2e/qemu

e2e-qemu-smoke:
	@test/setup.sh $(QEMU_TOOLS)
	go test -tags qemu -count=1 -timeout 8m -v -run '^TestSmoke$$' ./test/e2e/qemu

arm64: setup
	test/arm64.sh

lint:
	@unformatted=$$(gofmt -l cmd pkg test); if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted" >&2; exit 1; fi
	go vet ./...
	go vet -tags soak ./test/e2e
	go vet -tags qemu ./test/e2e/qemu/...
	go vet -tags scale ./pkg/controller
	go run $(STATICCHECK) ./...
	go run $(STATICCHECK) -tags qemu ./test/e2e/qemu/...

bench: build
	@test/setup.sh fio mkfs.ext4 mkfs.ext2 mkfs.xfs mkfs.btrfs mount
	mkdir -p $(BENCH_DIR)
	$(BIN) bench flush --json $(BENCH_DIR)/flush.json
	$(BIN) bench fs --json $(BENCH_DIR)/fs.json --html $(BENCH_DIR)/fs.html $(BENCH_FLAGS)

# The processes behind mounted volumes are killed and replaced while
# applications use the volumes.
chaos: setup build
	@test/setup.sh postgres
	NVFS_CSI=$(CURDIR)/$(BIN) NVFS_CHAOS_DATABASE=1 NVFS_CHAOS_KILLS=1000 NVFS_CHAOS_UPGRADES=20 NVFS_CHAOS_URING_KILLS=1000 go test -timeout 90m -v ./test/chaos

chaos-short: setup build
	NVFS_CSI=$(CURDIR)/$(BIN) go test -timeout 5m -v ./test/chaos

# Every crash image of the long plan (about 20 minutes on two CPUs that have
# nothing else to do), and proof that the crash test catches mistakes planted
# behind a build tag. A run that checks less than a million images fails.
crash:
	NVFS_CRASH_LONG=1 go test -count=1 -timeout 90m -v ./pkg/nvfs/crashtest

crash-selftest:
	go test -tags nvfsbug -run TestPlantedMistakes -v ./pkg/nvfs/crashtest

# The stress tests of e2e in their long form, and what only a long run shows.
# One of them: make soak SOAK=TestSoakCreateUnlink NVFS_SOAK_PAIRS=10000000
SOAK ?= Soak|Stress|FioVerify
.PHONY: soak
soak: setup build
	@test/setup.sh postgres
	NVFS_CSI=$(CURDIR)/$(BIN) NVFS_E2E_FIO_SECONDS=60 go test -tags soak -timeout 12h -v -run '$(SOAK)' ./test/e2e

# Memory and requests of the controller where the API server and the drivers are
# simulated; fails when either grows.
.PHONY: scale
scale:
	go test -tags scale -count=1 -timeout 20m -v -run 'TestScale$$' ./pkg/controller

# Rewrites the parts of docs/ that are generated from the code.
docs: build
	go test ./test/docs -update

clean:
	rm -rf bin

include test/e2e/cluster/cluster.mk
