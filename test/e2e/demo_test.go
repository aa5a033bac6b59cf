package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDemoInterrupted stops the demo at its busiest and wants nothing left.
func TestDemoInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name, at string
	}{
		{"while files are copied", "cp -a"},
		{"while fio runs", "seq. write"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			memory := memoryDir(t)
			cmd := exec.Command(binary, "demo", "--memory", memory)
			// A terminal sends the signal to the whole group.
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			guard := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
			defer guard.Stop()

			var text strings.Builder
			reader := bufio.NewReader(out)
			interrupted := false
			for {
				b, err := reader.ReadByte()
				if err != nil {
					break
				}
				text.WriteByte(b)
				if !interrupted && strings.HasSuffix(text.String(), tc.at) {
					interrupted = true
					if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
						t.Error(err)
					}
				}
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the interrupted demo reports success")
			}
			if !interrupted {
				t.Fatalf("never came to %q:\n%s", tc.at, text.String())
			}
			if left, err := filepath.Glob(filepath.Join(memory, "*")); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v\n%s", left, err, text.String())
			}
			if left := mountsBelow(t, memory); len(left) != 0 {
				t.Errorf("left mounted: %v", left)
			}
			if left := serversOf(t, memory); len(left) != 0 {
				t.Errorf("left running: %v", left)
			}
		})
	}
}
