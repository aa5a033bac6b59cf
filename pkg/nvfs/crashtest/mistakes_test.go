//go:build nvfsbug

package crashtest

import (
	"runtime"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// TestPlantedMistakes shows that the crash images alone, without the check of
// stores, flushes and fences, find each mistake that the build can plant, and
// that the check finds those that it can see.
func TestPlantedMistakes(t *testing.T) {
	if err := Bases["tree"].prepare(); err != nil {
		t.Fatal(err)
	}
	defer nvfs.Plant("")
	run := func(p Plan) []error {
		var found []error
		Run(p, "tree", Alone("tree", Singles), runtime.GOMAXPROCS(0), func(err error) { found = append(found, err) })
		return found
	}
	resend := func(p Plan) []error {
		found, _ := resendErrors(p, "tree", Alone("tree", exclusive))
		r, err := newRunner(&p, Bases["tree"])
		if err == nil {
			err = r.resendAll(Case{Base: "tree", Ops: allWorkers, Workers: len(allWorkers)}, 3, 2, 1)
		}
		if err != nil {
			found = append(found, err)
		}
		return found
	}
	for _, mistake := range nvfs.Mistakes {
		t.Run(mistake, func(t *testing.T) {
			nvfs.Plant(mistake)
			p := quick(record.ADR)
			p.WithoutLint = true
			find := run
			if mistake == "slot" || mistake == "answers" {
				find = resend
			}
			found := find(p)
			if len(found) == 0 {
				t.Fatal("no crash image shows it")
			}
			t.Logf("%d operations fail, such as\n%v", len(found), found[0])
		})
	}
	t.Run("none", func(t *testing.T) {
		nvfs.Plant("")
		for _, err := range append(run(quick(record.ADR)), resend(resendPlan(record.ADR))...) {
			t.Error(err)
		}
	})
	t.Run("tail in the check of stores", func(t *testing.T) {
		nvfs.Plant("tail")
		p := quick(record.ADR)
		p.Images = record.Options{From: 99} // none
		if len(run(p)) == 0 {
			t.Error("a line that is never flushed goes unnoticed")
		}
	})
}
