package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// sqliteClient is a sqlite3 that commits numbered transactions, one by one.
type sqliteClient struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	// acknowledged is the last transaction that sqlite3 said it had committed.
	acknowledged int
}

func startSQLite(t *testing.T, db, journal string) *sqliteClient {
	t.Helper()
	c := &sqliteClient{cmd: exec.Command("sqlite3", "-batch", db)}
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// FULL syncs at each commit, EXTRA the directory of a journal as well.
	fmt.Fprintf(c.in, ".bail on\n.timeout 10000\nPRAGMA journal_mode=%s;\nPRAGMA synchronous=EXTRA;\nCREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, v BLOB, s TEXT);\nCREATE INDEX IF NOT EXISTS i ON t(s);\n", journal)
	if !c.out.Scan() || c.out.Text() != journal {
		t.Fatalf("journal mode %q, want %q", c.out.Text(), journal)
	}
	return c
}

// commit commits transaction n, of ten rows, and reports whether sqlite3 said
// so.
func (c *sqliteClient) commit(n int) bool {
	fmt.Fprint(c.in, "BEGIN IMMEDIATE;\n")
	for row := range 10 {
		fmt.Fprintf(c.in, "INSERT INTO t VALUES(%d, randomblob(%d), 'text %d of %d');\n", n*10+row, 50+n*37%3000, row, n)
	}
	if n > 5 {
		fmt.Fprintf(c.in, "UPDATE t SET v=randomblob(200) WHERE n=%d;\n", n*5)
	}
	fmt.Fprintf(c.in, "COMMIT;\nSELECT 'committed %d';\n", n)
	if c.out.Scan() && c.out.Text() == fmt.Sprintf("committed %d", n) {
		c.acknowledged = n
		return true
	}
	return false
}

func (c *sqliteClient) kill(t *testing.T) {
	t.Helper()
	check(t, "kill sqlite3", c.cmd.Process.Kill())
	c.in.Close()
	_ = c.cmd.Wait() // says that it was killed
}

// verifySQLite wants a sound database with every acknowledged transaction, and
// of the one after it all or nothing. It returns the number of the last.
func verifySQLite(t *testing.T, db string, acknowledged int) int {
	t.Helper()
	out := must(t, "sqlite3", "-batch", db, "PRAGMA integrity_check; SELECT count(*), coalesce(max(n), 0) FROM t;").stdout
	result, numbers, _ := strings.Cut(strings.TrimSpace(out), "\n")
	count, last, _ := strings.Cut(numbers, "|")
	n, err1 := strconv.Atoi(count)
	top, err2 := strconv.Atoi(last)
	if result != "ok" || err1 != nil || err2 != nil {
		t.Fatalf("the database says %q", out)
	}
	if n%10 != 0 || n < acknowledged*10 || n > acknowledged*10+10 || n > 0 && top != n+9 {
		t.Errorf("%d rows up to %d; transaction %d was acknowledged", n, top, acknowledged)
	}
	return n / 10
}

// TestStressSQLite kills sqlite3, and then the whole serving process under it,
// again and again.
func TestStressSQLite(t *testing.T) {
	eachMode(t, 256<<20, func(t *testing.T, v testVolume, mount func()) {
		for _, journal := range []string{"delete", "wal"} {
			db := v.path(journal + ".db")
			last := 0
			for round := range scale(3, 100) {
				c := startSQLite(t, db, journal)
				c.acknowledged = last
				for range 10 + round%7*5 {
					if !c.commit(c.acknowledged + 1) {
						t.Fatalf("transaction %d failed", c.acknowledged+1)
					}
				}
				// One more is under way.
				fmt.Fprintf(c.in, "BEGIN; INSERT INTO t VALUES(%d, zeroblob(100000), ''); UPDATE t SET v=randomblob(500);\n", 100_000_000)
				if round%2 == 0 {
					c.kill(t)
				} else {
					v.crash(t)
					c.kill(t)
					mount()
				}
				last = verifySQLite(t, db, c.acknowledged)
			}
		}
	})
}

// crash kills the serving process, and takes the mount that is left dead away.
func (v testVolume) crash(t *testing.T) {
	t.Helper()
	v.dieForGood(t)
	if isMounted(t, v.mnt) {
		must(t, "umount", "-l", v.mnt)
	}
	v.check(t)
	if _, err := os.Stat(v.mnt); err != nil {
		t.Fatal(err)
	}
}
