// Package policy evaluates the admission policies of the chart: what the account
// of a node may and may not change.
package policy

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"go.yaml.in/yaml/v3"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/chart"
)

const chartDir = "../../../../charts/nvfs-csi"

// policy is a ValidatingAdmissionPolicy as far as its expressions go.
type policy struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		FailurePolicy   string                        `yaml:"failurePolicy"`
		MatchConditions []struct{ Expression string } `yaml:"matchConditions"`
		Variables       []struct{ Name, Expression string }
		Validations     []struct{ Expression, MessageExpression string }
		// The bindings.
		PolicyName        string   `yaml:"policyName"`
		ValidationActions []string `yaml:"validationActions"`
	}
}

func policies(t *testing.T) map[string]policy {
	t.Helper()
	documents, err := chart.Render(chartDir, chart.Options{})
	if err != nil {
		t.Fatal(err)
	}
	found, denying := map[string]policy{}, map[string]bool{}
	for _, document := range documents {
		var p policy
		if !strings.Contains(document, "kind: ValidatingAdmissionPolicy") {
			continue
		}
		if err := yaml.Unmarshal([]byte(document), &p); err != nil {
			t.Fatal(err)
		}
		if p.Kind == "ValidatingAdmissionPolicyBinding" {
			denying[p.Spec.PolicyName] = len(p.Spec.ValidationActions) == 1 && p.Spec.ValidationActions[0] == "Deny"
			continue
		}
		found[p.Metadata.Name] = p
	}
	for name, p := range found {
		if p.Spec.FailurePolicy != "Fail" || !denying[name] {
			t.Errorf("policy %s: failurePolicy %q, denies %v", name, p.Spec.FailurePolicy, denying[name])
		}
	}
	return found
}

// request is an admission request.
type request struct {
	user, node, operation string
	object, oldObject     map[string]any
}

func nodeRequest(node, operation string, object, oldObject map[string]any) request {
	return request{"system:serviceaccount:nvfs-csi:nvfs-csi-node", node, operation, object, oldObject}
}

// allows evaluates a policy as the API server does: an expression that fails is
// a denial.
func (p policy) allows(t *testing.T, r request) bool {
	t.Helper()
	// The options of the API server's environment that concern these
	// expressions.
	env, err := cel.NewEnv(cel.OptionalTypes(), cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true),
		cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType),
		cel.Variable("request", cel.MapType(cel.StringType, cel.DynType)), cel.Variable("variables", cel.MapType(cel.StringType, cel.DynType)))
	if err != nil {
		t.Fatal(err)
	}
	extra := map[string]any{}
	if r.node != "" {
		extra["authentication.kubernetes.io/node-name"] = []string{r.node}
	}
	variables := map[string]any{}
	input := map[string]any{"object": r.object, "oldObject": r.oldObject, "variables": variables,
		"request": map[string]any{"operation": r.operation, "userInfo": map[string]any{"username": r.user, "extra": extra}}}
	evaluate := func(expression string) (any, error) {
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := program.Eval(input)
		if err != nil {
			return nil, err
		}
		return value.Value(), nil
	}
	for _, c := range p.Spec.MatchConditions {
		if matches, err := evaluate(c.Expression); err == nil && matches == false {
			return true // the policy does not concern the request
		}
	}
	for _, v := range p.Spec.Variables {
		value, err := evaluate(v.Expression)
		if err != nil {
			return false
		}
		variables[v.Name] = value
	}
	for _, v := range p.Spec.Validations {
		if ok, err := evaluate(v.Expression); err != nil || ok != true {
			return false
		}
	}
	return true
}

// volume is a PersistentVolume of a driver on nodes.
func volume(driver string, nodes ...any) map[string]any {
	return map[string]any{"spec": map[string]any{
		"csi": map[string]any{"driver": driver},
		"nodeAffinity": map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{
			map[string]any{"matchExpressions": []any{map[string]any{"key": "topology.csi.nvfs.dev/node", "operator": "In", "values": nodes}}}}}}}}
}

// withoutAffinity is a volume that any node could use.
func withoutAffinity() map[string]any {
	return map[string]any{"spec": map[string]any{"csi": map[string]any{"driver": "csi.nvfs.dev"}}}
}

// twoTerms is a volume that names this node in one term and any in another.
func twoTerms() map[string]any {
	v := volume("csi.nvfs.dev", "n1")
	required := v["spec"].(map[string]any)["nodeAffinity"].(map[string]any)["required"].(map[string]any)
	required["nodeSelectorTerms"] = append(required["nodeSelectorTerms"].([]any), map[string]any{"matchFields": []any{}})
	return v
}

func claim(selected string) map[string]any {
	metadata := map[string]any{"name": "data"}
	if selected != "" {
		metadata["annotations"] = map[string]any{"volume.kubernetes.io/selected-node": selected}
	}
	return map[string]any{"metadata": metadata}
}

func capacity(node string) map[string]any {
	return map[string]any{"nodeTopology": map[string]any{"matchLabels": map[string]any{"topology.csi.nvfs.dev/node": node}}}
}

func TestPolicies(t *testing.T) {
	const ours, others = "csi.nvfs.dev", "example.com/other"
	all := policies(t)
	if len(all) != 4 {
		t.Fatalf("there are %d policies", len(all))
	}
	for name, c := range map[string]struct {
		policy  string
		request request
		want    bool
	}{
		"create an own volume":                    {"volumes", nodeRequest("n1", "CREATE", volume(ours, "n1"), nil), true},
		"create one for another node":             {"volumes", nodeRequest("n1", "CREATE", volume(ours, "n2"), nil), false},
		"create one for two nodes":                {"volumes", nodeRequest("n1", "CREATE", volume(ours, "n1", "n2"), nil), false},
		"create one without affinity":             {"volumes", nodeRequest("n1", "CREATE", withoutAffinity(), nil), false},
		"create one with a second term":           {"volumes", nodeRequest("n1", "CREATE", twoTerms(), nil), false},
		"create one of another driver":            {"volumes", nodeRequest("n1", "CREATE", volume(others, "n1"), nil), false},
		"create a hostPath volume":                {"volumes", nodeRequest("n1", "CREATE", map[string]any{"spec": map[string]any{"hostPath": map[string]any{"path": "/"}}}, nil), false},
		"delete an own volume":                    {"volumes", nodeRequest("n1", "DELETE", nil, volume(ours, "n1")), true},
		"delete a foreign node's volume":          {"volumes", nodeRequest("n1", "DELETE", nil, volume(ours, "n2")), false},
		"delete another driver's volume":          {"volumes", nodeRequest("n1", "DELETE", nil, volume(others, "n1")), false},
		"change an own volume":                    {"volumes", nodeRequest("n1", "UPDATE", volume(ours, "n1"), volume(ours, "n1")), true},
		"give a volume to another node":           {"volumes", nodeRequest("n1", "UPDATE", volume(ours, "n2"), volume(ours, "n1")), false},
		"take a volume of another node":           {"volumes", nodeRequest("n1", "UPDATE", volume(ours, "n1"), volume(ours, "n2")), false},
		"a token that names no node":              {"volumes", nodeRequest("", "DELETE", nil, volume(ours, "n1")), false},
		"anybody else":                            {"volumes", request{"system:admin", "", "DELETE", nil, volume(others, "n2")}, true},
		"give an own claim back":                  {"claims", nodeRequest("n1", "UPDATE", claim(""), claim("n1")), true},
		"change a claim of another node":          {"claims", nodeRequest("n1", "UPDATE", claim("n1"), claim("n2")), false},
		"change a claim that is on no node":       {"claims", nodeRequest("n1", "UPDATE", claim("n1"), claim("")), false},
		"publish own capacity":                    {"capacities", nodeRequest("n1", "CREATE", capacity("n1"), nil), true},
		"publish capacity of another node":        {"capacities", nodeRequest("n1", "CREATE", capacity("n2"), nil), false},
		"delete capacity of another node":         {"capacities", nodeRequest("n1", "DELETE", nil, capacity("n2")), false},
		"take over capacity of another node":      {"capacities", nodeRequest("n1", "UPDATE", capacity("n1"), capacity("n2")), false},
		"publish capacity of every node (no key)": {"capacities", nodeRequest("n1", "CREATE", map[string]any{"nodeTopology": map[string]any{}}, nil), false},
	} {
		p, ok := all["nvfs-csi-node-"+c.policy]
		if !ok {
			t.Fatalf("there is no policy for %s", c.policy)
		}
		if got := p.allows(t, c.request); got != c.want {
			t.Errorf("%s: allowed %v, want %v", name, got, c.want)
		}
	}
}

// aNode is a Node with a taint, or not, and with annotations.
func aNode(taint string, annotations ...string) map[string]any {
	metadata := map[string]any{"name": "n1", "labels": map[string]any{"a": "b"}}
	if len(annotations) > 0 {
		all := map[string]any{}
		for i := 0; i < len(annotations); i += 2 {
			all[annotations[i]] = annotations[i+1]
		}
		metadata["annotations"] = all
	}
	spec := map[string]any{}
	if taint != "" {
		spec["taints"] = []any{map[string]any{"key": taint}}
	}
	return map[string]any{"metadata": metadata, "spec": spec}
}

// TestControllerChangesOneAnnotationOfNodes: the right to patch nodes would
// otherwise be that to taint them.
func TestControllerChangesOneAnnotationOfNodes(t *testing.T) {
	const memory = "csi.nvfs.dev/persistent-memory"
	p, ok := policies(t)["nvfs-csi-controller-nodes"]
	if !ok {
		t.Fatal("there is no policy for nodes")
	}
	labelled := aNode("")
	labelled["metadata"].(map[string]any)["labels"] = map[string]any{"a": "c"}
	unlabelled := aNode("")
	delete(unlabelled["metadata"].(map[string]any), "labels")
	for name, c := range map[string]struct {
		now, before map[string]any
		want        bool
	}{
		"the first annotation":          {aNode("", memory, "x"), aNode(""), true},
		"another value":                 {aNode("", memory, "x", "o", "1"), aNode("", memory, "y", "o", "1"), true},
		"take it away":                  {aNode("", "o", "1"), aNode("", memory, "y", "o", "1"), true},
		"nothing":                       {aNode(""), aNode(""), true},
		"another annotation":            {aNode("", "o", "2"), aNode("", "o", "1"), false},
		"a new annotation":              {aNode("", "o", ""), aNode(""), false},
		"take another annotation away":  {aNode("", memory, "x"), aNode("", memory, "x", "o", "1"), false},
		"a taint":                       {aNode("t", memory, "x"), aNode("", memory, "x"), false},
		"a label":                       {labelled, aNode(""), false},
		"take all labels away":          {unlabelled, aNode(""), false},
		"another taint than there was":  {aNode("u"), aNode("t"), false},
		"a tainted node is not harmed":  {aNode("t", memory, "x"), aNode("t"), true},
		"take the only annotation away": {aNode(""), aNode("", memory, "x"), true},
	} {
		r := request{"system:serviceaccount:nvfs-csi:nvfs-csi-controller", "", "UPDATE", c.now, c.before}
		if got := p.allows(t, r); got != c.want {
			t.Errorf("%s: allowed %v, want %v", name, got, c.want)
		}
	}
	if other := (request{"system:admin", "", "UPDATE", aNode("t"), aNode("")}); !p.allows(t, other) {
		t.Error("others may not change nodes any more")
	}
}
