// Package postgres runs a PostgreSQL server whose files lie in a directory of
// the caller's: a database as a workload of tests. test/setup.sh postgres
// installs the programs.
package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// startTimeout bounds a start with its recovery, stopTimeout an end.
	startTimeout = 2 * time.Minute
	stopTimeout  = 2 * time.Minute
	poll         = 50 * time.Millisecond
)

// Server is a database server. Its methods are not safe for concurrent use, but
// Command and Run are.
type Server struct {
	bin    string // directory of the programs
	data   string
	socket string // directory
	cred   *syscall.Credential
	flags  []string
	server *exec.Cmd
	ended  chan struct{} // closed when server has been waited for
	log    output
}

// output is what a process writes, for others to read meanwhile.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Find returns the directory of the programs and the user that they run as:
// they refuse to work as root.
func Find() (bin string, cred *syscall.Credential, err error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return "", nil, errors.Join(errors.New("no PostgreSQL: run test/setup.sh postgres"), err)
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return "", nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return filepath.Dir(found[len(found)-1]), &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err1, err2)
}

// New makes an empty database in the directory dir. Its socket will be in the
// directory socket. Both must be reachable by everybody; they become the
// database user's. flags are further ones of the server.
func New(dir, socket string, flags ...string) (*Server, error) {
	bin, cred, err := Find()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, data: filepath.Join(dir, "data"), socket: socket, cred: cred, flags: flags}
	for _, d := range []string{dir, socket} {
		if err := os.Chown(d, int(cred.Uid), int(cred.Gid)); err != nil {
			return nil, err
		}
	}
	_, err = s.Run("initdb", "-D", s.data, "-A", "trust", "--data-checksums", "--no-instructions")
	return s, err
}

// Command is one of PostgreSQL's programs, as the database user and a client of
// this server.
func (s *Server) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "PGHOST="+s.socket, "PGDATABASE=postgres", "LC_ALL=C")
	return cmd
}

// Run runs such a program and returns what it says.
func (s *Server) Run(name string, args ...string) (string, error) {
	out, err := s.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s\nthe server says:\n%s", name, strings.Join(args, " "), err, out, s.Log())
	}
	return string(out), nil
}

// Log is what the server has logged.
func (s *Server) Log() string { return s.log.String() }

// Running reports whether Start was called and End was not.
func (s *Server) Running() bool { return s.server != nil }

// Start runs the server and returns when it answers. One that died may leave
// children that take a moment to notice, in which a new one refuses to start.
func (s *Server) Start() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		if s.server == nil {
			if err := s.launch(); err != nil {
				return err
			}
		}
		select {
		case <-s.ended:
			s.server = nil
		case <-ctx.Done():
			return fmt.Errorf("the database does not answer:\n%s", s.Log())
		case <-time.After(poll):
			if s.Command("psql", "-c", "SELECT 1").Run() == nil {
				return nil
			}
		}
	}
}

func (s *Server) launch() error {
	args := []string{"-D", s.data, "-k", s.socket, "-c", "listen_addresses=", "-c", "shared_buffers=32MB", "-c", "checkpoint_timeout=30s"}
	cmd := s.Command("postgres", append(args, s.flags...)...)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its log says why
		close(ended)
	}()
	s.server, s.ended = cmd, ended
	return nil
}

// End sends a signal and waits for the server's end.
func (s *Server) End(sig os.Signal) error {
	if err := s.server.Process.Signal(sig); err != nil {
		return err
	}
	select {
	case <-s.ended:
		s.server = nil
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("the database does not end:\n%s", s.Log())
	}
}

var processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)

// Processed is how many transactions were acknowledged to a pgbench that says
// out.
func Processed(out string) (int, error) {
	m := processed.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("pgbench says\n%s", out)
	}
	return strconv.Atoi(m[1])
}

// Count is the number of transactions in pgbench's history.
func (s *Server) Count() (int, error) {
	out, err := s.Run("psql", "-At", "-c", "SELECT count(*) FROM pgbench_history")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

// Balances wants pgbench's sums to be equal.
func (s *Server) Balances() error {
	out, err := s.Run("psql", "-At", "-c", `SELECT
		(SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
		(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)`)
	if err != nil {
		return err
	}
	sums := strings.Split(strings.TrimSpace(out), "|")
	if len(sums) != 4 || sums[0] != sums[1] || sums[1] != sums[2] || sums[2] != sums[3] {
		return fmt.Errorf("the balances are %s", out)
	}
	return nil
}

// Check wants tables and indexes that are sound and agree.
func (s *Server) Check() error {
	out, err := s.Run("pg_amcheck", "--install-missing", "--heapallindexed", "-d", "postgres")
	if err == nil && out != "" {
		err = fmt.Errorf("pg_amcheck says\n%s", out)
	}
	return err
}
