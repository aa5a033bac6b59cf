package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

// waitTime bounds each wait for something that the cluster does by itself. The
// kubelet repeats a mount that came too early after 15 seconds, and the machine
// may be loaded.
const waitTime = 3 * time.Minute

// pollInterval is the pause between two looks at something that becomes true by
// itself.
const pollInterval = 500 * time.Millisecond

var cluster *localcluster.Cluster

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == localcluster.NodeInit { // a test has started a node
		fmt.Fprintln(os.Stderr, localcluster.RunNodeInit(os.Args[2]))
		os.Exit(1)
	}
	if err := connect(); err != nil {
		fmt.Fprintf(os.Stderr, "no cluster to test: %v\nstart one with \"make cluster-up\", or run \"make e2e-cluster\"\n", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := awaitNothingLeft(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func connect() error {
	bin, err := localcluster.Binaries("..")
	if err != nil {
		return err
	}
	dir := os.Getenv("NVFS_E2E_DIR")
	if dir == "" {
		dir = localcluster.DefaultDir
	}
	cluster = localcluster.New(dir, bin)
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	return cluster.AwaitNodes(ctx)
}

// kube runs kubectl in the namespace of one test.
type kube struct {
	*testing.T
	ctx       context.Context
	namespace string
	shared    bool // other tests run at the same time
}

// newTest makes a namespace for the test. When the test ends, the namespace is
// deleted, and nothing of its volumes may be left on any node.
func newTest(t *testing.T) *kube {
	t.Helper()
	return startTest(t, false)
}

// newParallelTest is newTest for a test that neither disturbs others nor minds
// them. It runs when the tests that need the cluster for themselves have ended;
// what all of them have left is looked for at the end.
func newParallelTest(t *testing.T) *kube {
	t.Helper()
	t.Parallel()
	return startTest(t, true)
}

func startTest(t *testing.T, shared bool) *kube {
	t.Helper()
	// Cleanups use it as well, when that of the test has ended.
	k := &kube{T: t, ctx: context.WithoutCancel(t.Context()), shared: shared,
		namespace: "test-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))}
	k.must("create", "namespace", k.namespace)
	t.Cleanup(func() {
		if t.Failed() {
			k.describe()
		}
		k.must("delete", "namespace", k.namespace, "--timeout=180s")
		k.checkNothingIsLeft()
	})
	return k
}

func (k *kube) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(k.ctx, waitTime+time.Minute)
	defer cancel()
	return cluster.Kubectl(ctx, "", args...)
}

func (k *kube) must(args ...string) string {
	k.Helper()
	out, err := k.try(args...)
	if err != nil {
		k.Fatal(err)
	}
	return out
}

// apply applies a manifest in the test's namespace.
func (k *kube) apply(manifest string) {
	k.Helper()
	if _, err := cluster.Kubectl(k.ctx, manifest, "-n", k.namespace, "apply", "-f", "-"); err != nil {
		k.Fatalf("%v\n%s", err, manifest)
	}
}

// get reads an object into v.
func (k *kube) get(v any, args ...string) {
	k.Helper()
	out := k.must(append([]string{"-n", k.namespace, "get", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		k.Fatal(err)
	}
}

// eventually waits until done returns "", which else says what is missing.
func (k *kube) eventually(what string, done func() string) {
	k.Helper()
	missing := ""
	for deadline := time.Now().Add(waitTime); time.Now().Before(deadline); time.Sleep(pollInterval) {
		if missing = done(); missing == "" {
			return
		}
	}
	k.Fatalf("%s: %s", what, missing)
}

// describe logs what explains a failure.
func (k *kube) describe() {
	for _, args := range [][]string{
		{"-n", k.namespace, "describe", "pods,pvc"},
		{"-n", localcluster.Namespace, "get", "pods", "-o", "wide"},
		{"get", "csistoragecapacities,pv", "-A"},
		{"-n", localcluster.Namespace, "logs", "-l", "app.kubernetes.io/component=node", "-c", "driver", "--tail=40", "--prefix"},
		{"-n", localcluster.Namespace, "logs", "-l", "app.kubernetes.io/component=mountd", "--tail=20", "--prefix"},
	} {
		out, err := k.try(args...)
		k.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
