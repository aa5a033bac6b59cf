package pmem

import "testing"

func TestModelIn(t *testing.T) {
	const info = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\n" +
		"model name\t: Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz\nstepping\t: 6\n\n" +
		"processor\t: 1\ncpu family\t: 7\nmodel\t\t: 1\nmodel name\t: another\nstepping\t: 2\n"
	const want = "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz (family 6 model 106 stepping 6)"
	if got := modelIn(info); got != want {
		t.Errorf("model %q, want %q", got, want)
	}
}
