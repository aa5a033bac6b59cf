package mountd

import (
	"os"
	"path/filepath"
	"testing"
)

// TestServingProgram puts a program named nvfs beside the running one, which
// is that of the test.
func TestServingProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(self), "nvfs")
	for _, c := range []struct {
		what string
		mode os.FileMode // 0: no such file
		want string
	}{
		{"nothing beside", 0, self},
		{"a file that is no program", 0o600, self},
		{"the small program", 0o700, beside},
	} {
		if c.mode != 0 {
			if err := os.WriteFile(beside, nil, c.mode); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ServingProgram()
		if err != nil || got != c.want {
			t.Errorf("%s: program %q, %v; want %q", c.what, got, err, c.want)
		}
		if err := os.Remove(beside); err != nil && c.mode != 0 {
			t.Fatal(err)
		}
	}
}
