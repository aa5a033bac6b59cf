package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

// request is a line of the audit log.
type request struct {
	Verb      string
	User      struct{ Username string }
	UserAgent string
	ObjectRef struct{ APIGroup, Resource, Subresource string }
	Reason    map[string]string `json:"annotations"`
}

// right is one verb on one resource for one account.
type right struct{ account, group, resource, verb string }

// rightsOf returns what the roles of the driver grant.
func (k *kube) rightsOf() map[right]bool {
	k.Helper()
	granted := map[right]bool{}
	for _, account := range []string{"node", "controller"} {
		var cluster rbacv1.ClusterRole
		var namespaced rbacv1.Role
		k.get(&cluster, "clusterrole", "nvfs-csi-"+account)
		k.get(&namespaced, "-n", localcluster.Namespace, "role", "nvfs-csi-"+account)
		for _, rule := range append(cluster.Rules, namespaced.Rules...) {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						granted[right{account, group, resource, verb}] = false
					}
				}
			}
		}
	}
	return granted
}

// unusedRights are granted although the tests need not use them, and why.
var unusedRights = map[right]string{
	{"controller", "", "persistentvolumeclaims", "get"}:       "the webhook, of what its caches do not have yet",
	{"controller", "", "persistentvolumes", "get"}:            "the webhook, of what its caches do not have yet",
	{"controller", "storage.k8s.io", "storageclasses", "get"}: "the webhook, of what its caches do not have yet",
	{"controller", "", "persistentvolumeclaims", "patch"}:     "a claim whose node has gone before it made the volume",
}

// TestRightsSuffice runs after all others: by then no right was missed, and each
// one was used. A list is what a client falls back to where the API server cannot
// stream one, so it goes with the right to watch.
func TestRightsSuffice(t *testing.T) {
	if os.Getenv("NVFS_E2E_ALL_RAN") == "" {
		t.Skip("looks at what the other tests have left in the audit log: make e2e-cluster")
	}
	k := &kube{T: t, ctx: t.Context(), namespace: "default"}
	granted := k.rightsOf()
	log, err := os.Open(cluster.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	denied := map[right]string{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if strings.HasPrefix(r.UserAgent, "kubectl/") { // a test that tries what must not be
			continue
		}
		resource := r.ObjectRef.Resource
		if r.ObjectRef.Subresource != "" {
			resource += "/" + r.ObjectRef.Subresource
		}
		account := strings.TrimPrefix(r.User.Username, "system:serviceaccount:"+localcluster.Namespace+":nvfs-csi-")
		asked := right{account, r.ObjectRef.APIGroup, resource, r.Verb}
		if r.Reason["authorization.k8s.io/decision"] == "forbid" {
			denied[asked] = r.UserAgent
			continue
		}
		if _, known := granted[asked]; known {
			granted[asked] = true
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for r, used := range granted {
		if !used && unusedRights[r] == "" && !(r.verb == "list" && granted[right{r.account, r.group, r.resource, "watch"}]) {
			t.Errorf("the %s account may %s %s %s, and has not: take the right away, or say in unusedRights what it is for", r.account, r.verb, r.group, r.resource)
		}
	}
	for r, agent := range denied {
		t.Errorf("the %s account was refused to %s %s %s, which %s has asked for", r.account, r.verb, r.group, r.resource, agent)
	}
}
