//go:build soak

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// postgres is a database server whose files lie on a volume.
type postgres struct {
	bin    string // directory of the programs
	data   string
	socket string // directory
	cred   *syscall.Credential
	server *exec.Cmd
	log    bytes.Buffer
	ended  chan struct{}
}

// newPostgres makes an empty database in dir. test/setup.sh postgres installs
// the programs.
func newPostgres(t *testing.T, dir, socket string) *postgres {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		t.Fatalf("no PostgreSQL: run test/setup.sh postgres (%v)", err)
	}
	// It refuses to work as root.
	u, err := osuser.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err1 != nil || err2 != nil {
		t.Fatalf("%+v", u)
	}
	p := &postgres{bin: filepath.Dir(found[len(found)-1]), data: filepath.Join(dir, "data"), socket: socket,
		cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	for _, d := range []string{dir, socket} {
		if err := os.Chown(d, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	p.must(t, "initdb", "-D", p.data, "-A", "trust", "--data-checksums", "--no-instructions")
	return p
}

func (p *postgres) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "PGHOST="+p.socket, "PGDATABASE=postgres", "LC_ALL=C")
	return cmd
}

func (p *postgres) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := p.command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\nthe server says:\n%s", name, strings.Join(args, " "), err, out, p.log.String())
	}
	return string(out)
}

// start runs the server until it answers. One that died may leave children
// that take a moment to notice.
func (p *postgres) start(t *testing.T) {
	t.Helper()
	eventually(t, "the database answers", func() bool {
		if p.server == nil {
			p.server = p.command("postgres", "-D", p.data, "-k", p.socket, "-c", "listen_addresses=", "-c", "shared_buffers=32MB", "-c", "checkpoint_timeout=30s")
			p.server.Stdout, p.server.Stderr = &p.log, &p.log
			if err := p.server.Start(); err != nil {
				t.Fatal(err)
			}
			p.ended = make(chan struct{})
			go func(cmd *exec.Cmd, ended chan struct{}) {
				_ = cmd.Wait() // its log says why
				close(ended)
			}(p.server, p.ended)
		}
		select {
		case <-p.ended:
			p.server = nil
			return false
		default:
		}
		return p.command("psql", "-c", "SELECT 1").Run() == nil
	})
}

// end sends a signal and waits for the server's end.
func (p *postgres) end(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := p.server.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
		p.server = nil
	case <-time.After(settleTimeout):
		t.Fatalf("the database does not end:\n%s", p.log.String())
	}
}

var processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)

// TestSoakPostgreSQL kills a database at work, and the serving process under
// it, and wants the balances of pgbench to add up, every acknowledged
// transaction to be there, and all tables and indexes to be sound.
func TestSoakPostgreSQL(t *testing.T) {
	eachCacheMode(t, 1<<30, func(t *testing.T, v testVolume, mount func()) {
		openToAll(t, filepath.Dir(v.mnt))
		openToAll(t, v.mnt)
		p := newPostgres(t, v.mkdir(t, "db"), t.TempDir())
		openParents(t, p.socket)
		p.start(t)
		defer func() {
			if p.server != nil {
				p.end(t, syscall.SIGQUIT)
			}
		}()
		p.must(t, "pgbench", "-i", "-q", "-s", "2")
		total := 0
		for round := range soakNumber(t, "NVFS_SOAK_POSTGRES_ROUNDS", 6) {
			bench := p.command("pgbench", "-n", "-c", "8", "-j", "2", "-T", "60")
			var out bytes.Buffer
			bench.Stdout, bench.Stderr = &out, &out
			if err := bench.Start(); err != nil {
				t.Fatal(err)
			}
			before := p.count(t)
			eventually(t, "pgbench is at work", func() bool { return p.count(t) > before+500 })
			switch round % 3 {
			case 0: // as at a loss of power, as far as the database knows
				p.end(t, syscall.SIGKILL)
			case 1:
				p.end(t, syscall.SIGQUIT)
			case 2:
				v.dieForGood(t)
				p.end(t, syscall.SIGKILL)
			}
			_ = bench.Wait() // says that the server is gone
			m := processed.FindStringSubmatch(out.String())
			if m == nil {
				t.Fatalf("pgbench says\n%s", out.String())
			}
			acknowledged, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			total += acknowledged
			if round%3 == 2 {
				eventually(t, "nobody has files open on the dead mount", func() bool { return !isMounted(t, v.mnt) || exec.Command("umount", v.mnt).Run() == nil })
				v.check(t)
				mount()
			}
			p.start(t)
			if rows := p.count(t); rows < total || rows > total+8 {
				t.Errorf("round %d: %d transactions are there, %d were acknowledged", round, rows, total)
			} else {
				total = rows
			}
			p.verify(t)
		}
		t.Logf("%d transactions", total)
		p.end(t, syscall.SIGINT)
	})
}

// openParents lets everybody reach a directory.
func openParents(t *testing.T, dir string) {
	t.Helper()
	for d := filepath.Dir(dir); d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		openToAll(t, d)
	}
}

// count is the number of transactions in the history.
func (p *postgres) count(t *testing.T) int {
	t.Helper()
	out := strings.TrimSpace(p.must(t, "psql", "-At", "-c", "SELECT count(*) FROM pgbench_history"))
	n, err := strconv.Atoi(out)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// verify wants equal sums, and tables and indexes that agree.
func (p *postgres) verify(t *testing.T) {
	t.Helper()
	out := strings.TrimSpace(p.must(t, "psql", "-At", "-c", `SELECT
		(SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
		(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)`))
	sums := strings.Split(out, "|")
	if len(sums) != 4 || sums[0] != sums[1] || sums[1] != sums[2] || sums[2] != sums[3] {
		t.Errorf("the balances are %s", out)
	}
	if out := p.must(t, "pg_amcheck", "--install-missing", "--heapallindexed", "-d", "postgres"); out != "" {
		t.Errorf("pg_amcheck says\n%s", fmt.Sprint(out))
	}
}
