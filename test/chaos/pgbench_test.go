package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/nvfs-csi/nvfs-csi/test/postgres"
)

// database runs pgbench against a PostgreSQL server whose files lie in dir,
// which exists. It wants every transaction that was acknowledged, and no other,
// balances that add up, and at the end tables and indexes that agree.
func database(dir, socket string) app {
	return app{"pgbench", func(stop <-chan struct{}) (err error) {
		for _, d := range []string{dir, socket} {
			if err := os.Mkdir(d, 0o700); err != nil {
				return err
			}
		}
		s, err := postgres.New(dir, socket, "-c", "max_wal_size=96MB", "-c", "min_wal_size=32MB")
		if err != nil {
			return err
		}
		if err := s.Start(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.End(syscall.SIGINT)) }()
		if _, err := s.Run("pgbench", "-i", "-q", "-s", "1"); err != nil {
			return err
		}
		for total := 0; !stopped(stop); {
			if err := transact(s, &total); err != nil {
				return fmt.Errorf("%w\n%s", err, s.Log())
			}
		}
		return s.Check()
	}}
}

// transact runs pgbench for a while.
func transact(s *postgres.Server, total *int) error {
	bench := s.Command("pgbench", "-n", "-c", "4", "-j", "2", "-T", "10")
	var out bytes.Buffer
	bench.Stdout, bench.Stderr = &out, &out
	if err := bench.Run(); err != nil {
		return fmt.Errorf("pgbench: %w\n%s", err, out.String())
	}
	done, err := postgres.Processed(out.String())
	if err != nil {
		return err
	}
	*total += done
	rows, err := s.Count()
	if err == nil && rows != *total {
		err = fmt.Errorf("%d transactions are there, %d were acknowledged", rows, *total)
	}
	return errors.Join(err, s.Balances())
}
