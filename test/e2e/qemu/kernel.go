//go:build qemu

package qemu

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// dependencyOf returns the first dependency in the output of apt-cache depends.
func dependencyOf(out string) string {
	for _, line := range strings.Split(out, "\n") {
		if name, found := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); found {
			return name
		}
	}
	return ""
}

func kernelVersion(root string) (string, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "lib", "modules", "*"))
	if err != nil {
		return "", err
	}
	if len(dirs) != 1 {
		return "", fmt.Errorf("%d kernels among the packages, want one: %v", len(dirs), dirs)
	}
	return filepath.Base(dirs[0]), nil
}

// compressions are how a bzImage can hold its kernel: the first bytes of the
// stream, and the command that expands it ("" for Go's own).
var compressions = []struct {
	magic   string
	command []string
}{
	{"\x1f\x8b\x08", nil},
	{"\xfd7zXZ\x00", []string{"xz", "-dc", "--single-stream"}},
	{"\x28\xb5\x2f\xfd", []string{"zstd", "-dc"}},
	{"\x02\x21\x4c\x18", []string{"lz4", "-dc"}},
}

// extractKernel writes the ELF image inside a bzImage. QEMU starts that by
// itself; under TCG the bzImage's own decompression takes longer than all the
// rest of a boot.
func extractKernel(ctx context.Context, bzImage, elf string) error {
	data, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	for _, c := range compressions {
		for at := bytes.Index(data, []byte(c.magic)); at >= 0; {
			if kernel := expand(ctx, c.command, data[at:]); bytes.HasPrefix(kernel, []byte("\x7fELF")) {
				return os.WriteFile(elf, kernel, 0o644)
			}
			next := bytes.Index(data[at+1:], []byte(c.magic))
			if next < 0 {
				break
			}
			at += 1 + next
		}
	}
	return fmt.Errorf("no kernel found inside %s: are xz and zstd installed?", bzImage)
}

// expand returns what could be expanded: the stream is followed by other data,
// which the commands complain about.
func expand(ctx context.Context, command []string, data []byte) []byte {
	var out bytes.Buffer
	if command == nil {
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil
		}
		r.Multistream(false)
		if _, err := io.Copy(&out, r); err != nil {
			return nil
		}
		return out.Bytes()
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout = bytes.NewReader(data), &out
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return out.Bytes()
}
