//go:build soak

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/test/postgres"
)

// TestSoakPostgreSQL kills a database at work, and the serving process under
// it, and wants the balances of pgbench to add up, every acknowledged
// transaction to be there, and all tables and indexes to be sound.
func TestSoakPostgreSQL(t *testing.T) {
	eachMode(t, 1<<30, func(t *testing.T, v testVolume, mount func()) {
		openToAll(t, filepath.Dir(v.mnt))
		openToAll(t, v.mnt)
		socket := t.TempDir()
		openParents(t, socket)
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		p, err := postgres.New(v.mkdir(t, "db"), socket)
		ok(err)
		ok(p.Start())
		defer func() {
			if p.Running() {
				ok(p.End(syscall.SIGQUIT))
			}
		}()
		count := func() int {
			t.Helper()
			n, err := p.Count()
			ok(err)
			return n
		}
		_, err = p.Run("pgbench", "-i", "-q", "-s", "2")
		ok(err)
		total := 0
		for round := range soakNumber(t, "NVFS_SOAK_POSTGRES_ROUNDS", 6) {
			bench := p.Command("pgbench", "-n", "-c", "8", "-j", "2", "-T", "60")
			var out bytes.Buffer
			bench.Stdout, bench.Stderr = &out, &out
			ok(bench.Start())
			before := count()
			eventually(t, "pgbench is at work", func() bool { return count() > before+500 })
			switch round % 3 {
			case 0: // as at a loss of power, as far as the database knows
				ok(p.End(syscall.SIGKILL))
			case 1:
				ok(p.End(syscall.SIGQUIT))
			case 2:
				v.dieForGood(t)
				ok(p.End(syscall.SIGKILL))
			}
			_ = bench.Wait() // says that the server is gone
			acknowledged, err := postgres.Processed(out.String())
			ok(err)
			total += acknowledged
			if round%3 == 2 {
				eventually(t, "nobody has files open on the dead mount", func() bool { return !isMounted(t, v.mnt) || exec.Command("umount", v.mnt).Run() == nil })
				v.check(t)
				mount()
			}
			ok(p.Start())
			if rows := count(); rows < total || rows > total+8 {
				t.Errorf("round %d: %d transactions are there, %d were acknowledged", round, rows, total)
			} else {
				total = rows
			}
			ok(p.Balances())
			ok(p.Check())
		}
		t.Logf("%d transactions", total)
		ok(p.End(syscall.SIGINT))
	})
}

// openParents lets everybody reach a directory.
func openParents(t *testing.T, dir string) {
	t.Helper()
	for d := filepath.Dir(dir); d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		openToAll(t, d)
	}
}
