package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// A device that its last user is about to let go of is waited for.
func TestAwaitLetGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	options := pmem.Options{Emulated: true}
	user, err := pmem.Open(path, options)
	if err != nil {
		t.Fatal(err)
	}
	refusals := 0
	err = awaitLetGo(t.Context(), path, func() error {
		m, err := pmem.Open(path, options)
		if err == nil {
			return m.Close()
		}
		if refusals++; refusals == 3 {
			err = errors.Join(err, user.Close())
		}
		return err
	})
	if err != nil || refusals != 3 {
		t.Errorf("%v after %d refusals", err, refusals)
	}
}
