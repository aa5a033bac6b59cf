package demo

import (
	"fmt"
	"io"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

const indent = "      "

// console prints the story: numbered steps, and below each what happened.
type console struct {
	out   io.Writer
	step  int
	total int
}

func (c *console) begin(format string, args ...any) {
	c.step++
	fmt.Fprintf(c.out, "\n[%d/%d] %s\n", c.step, c.total, fmt.Sprintf(format, args...))
}

func (c *console) say(format string, args ...any) {
	fmt.Fprintf(c.out, indent+format+"\n", args...)
}

// doing prints what is being done and, once it is done, how long it took; so
// a reader sees what a pause is for.
func (c *console) doing(what string, f func() error) error {
	fmt.Fprintf(c.out, indent+"%s ... ", what)
	begin := time.Now()
	if err := f(); err != nil {
		fmt.Fprintln(c.out, "failed")
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Fprintln(c.out, bench.FormatLatency(time.Since(begin)))
	return nil
}
