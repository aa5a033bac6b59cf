package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"testing"
)

func TestZeroBlockDevice(t *testing.T) {
	const from = 4096
	device := newDevice(t)
	content := bytes.Repeat([]byte("x"), deviceSize)
	if err := os.WriteFile(device, content, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := zeroBlockDevice(ctx, device, from, deviceSize, func(uint64) { t.Error("progress was reported") }); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if !bytes.Equal(readFile(t, device), content) {
		t.Error("the device was changed by a call that had ended before")
	}
	var progress []uint64
	if err := zeroBlockDevice(t.Context(), device, from, deviceSize, func(to uint64) { progress = append(progress, to) }); err != nil {
		t.Fatal(err)
	}
	clear(content[from:])
	if !bytes.Equal(readFile(t, device), content) {
		t.Error("not all is zero, or more")
	}
	if !slices.Equal(progress, []uint64{deviceSize}) {
		t.Errorf("progress %v", progress)
	}
}
