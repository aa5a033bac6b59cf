package driver

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
)

func TestPages(t *testing.T) {
	ids := []string{"a", "c", "e", "g"}
	at := func(i int) string { return ids[i] }
	for _, test := range []struct {
		token string
		max   int32
		want  string
	}{
		{"", 0, "0-4 "},
		{"", 4, "0-4 "},
		{"", 3, "0-3 after:e"},
		{"after:e", 3, "3-4 "},
		{"after:d", 1, "2-3 after:e"}, // d was deleted between the pages
		{"after:g", 1, "4-4 "},
		{"after:z", 0, "4-4 "},
	} {
		from, to, next, err := page(len(ids), at, test.token, test.max)
		if got := fmt.Sprintf("%d-%d %s", from, to, next); err != nil || got != test.want {
			t.Errorf("token %q, %d entries: %s, %v; want %s", test.token, test.max, got, err, test.want)
		}
	}
	for _, token := range []string{"x", "after:", "after:../x"} {
		if _, _, _, err := page(len(ids), at, token, 0); codeOf(err) != codes.Aborted {
			t.Errorf("token %q: %v, want Aborted", token, err)
		}
	}
	if _, _, _, err := page(len(ids), at, "", -1); codeOf(err) != codes.InvalidArgument {
		t.Errorf("negative max_entries: %v", err)
	}
}
