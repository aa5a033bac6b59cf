# Included by the Makefile: the chart, and the test cluster of two nodes on this
# machine. Kubernetes is built once (about 15 minutes of CPU time) and kept below
# ~/.cache/nvfs-csi.

CLUSTER_GO    := go -C test/e2e/cluster
# As for the binaries of Kubernetes, so that packages are compiled once.
CLUSTER_FLAGS := -trimpath -gcflags=all=-dwarf=false
LOCALCLUSTER  := bin/localcluster

.PHONY: chart chart-test cluster-setup localcluster cluster-build cluster-up cluster-down cluster-shell e2e-cluster e2e-smoke e2e-fio cluster-numbers conformance

# Rewrites what is made from the chart: golden files, deploy/, its README.
chart:
	$(CLUSTER_GO) test $(CLUSTER_FLAGS) ./chart -update

chart-test:
	$(CLUSTER_GO) test $(CLUSTER_FLAGS) ./chart ./policy ./localcluster

cluster-setup:
	@test/e2e/cluster/setup.sh

localcluster:
	$(CLUSTER_GO) build $(CLUSTER_FLAGS) -buildvcs=false -o $(CURDIR)/$(LOCALCLUSTER) ./cmd/localcluster

cluster-build: localcluster
	$(LOCALCLUSTER) build

cluster-up: cluster-setup build cluster-build
	$(LOCALCLUSTER) up

cluster-down: localcluster
	$(LOCALCLUSTER) down

cluster-shell: localcluster
	$(LOCALCLUSTER) shell

# All tests in a cluster of their own, which is taken down whatever they say.
e2e-cluster: cluster-up
	status=0; $(CLUSTER_GO) test $(CLUSTER_FLAGS) -count=1 -timeout 60m -parallel 4 -v ./e2e && \
	NVFS_E2E_ALL_RAN=1 $(CLUSTER_GO) test $(CLUSTER_FLAGS) -count=1 -v -run "TestRightsSuffice$$" ./e2e || status=$$?; \
	$(LOCALCLUSTER) down || status=$$?; exit $$status

# A claim, fio, and a driver that is restarted meanwhile.
e2e-smoke: cluster-up
	status=0; $(CLUSTER_GO) test $(CLUSTER_FLAGS) -count=1 -timeout 10m -v -run 'TestSmoke$$' ./e2e || status=$$?; \
	$(LOCALCLUSTER) down || status=$$?; exit $$status

# Figures: claim to running pod, 200 volumes at concurrency 20, what the driver
# takes when idle (about 10 minutes).
cluster-numbers: cluster-up
	status=0; NVFS_E2E_NUMBERS=1 $(CLUSTER_GO) test $(CLUSTER_FLAGS) -count=1 -timeout 40m -v -run 'TestTimeToRunning$$|TestManyVolumes$$|TestIdleResources$$' ./e2e || status=$$?; \
	$(LOCALCLUSTER) down || status=$$?; exit $$status

# The fio Jobs of deploy/examples against each StorageClass: a table, JSON and a
# page in bench/ (about 6 minutes; RUNTIME is that of each job of fio).
RUNTIME ?= 5s
e2e-fio: cluster-up
	mkdir -p $(BENCH_DIR)
	status=0; $(LOCALCLUSTER) run kubectl apply -f deploy/storageclass/nvfs-clwb.yaml -f deploy/storageclass/nvfs-numa0.yaml && \
	$(LOCALCLUSTER) run $(BIN) bench cluster --image localhost/tools:e2e --pull-policy Never --runtime $(RUNTIME) \
		--json $(BENCH_DIR)/cluster.json --html $(BENCH_DIR)/cluster.html || status=$$?; \
	$(LOCALCLUSTER) down || status=$$?; exit $$status

# The external storage suite of Kubernetes (docs/conformance.md). Building it takes
# about 9 minutes once, running it about 20. FOCUS is a regular expression.
FOCUS ?=
conformance: cluster-setup build cluster-build
	$(LOCALCLUSTER) conformance --build
	$(LOCALCLUSTER) --set emulated.regions[0].size=6Gi --set emulated.regions[1].size=6Gi up
	status=0; $(LOCALCLUSTER) conformance --focus '$(FOCUS)' --report-dir $(BENCH_DIR)/conformance || status=$$?; \
	$(LOCALCLUSTER) down || status=$$?; exit $$status
