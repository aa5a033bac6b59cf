//go:build qemu

package guest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// killStep is a moment in the middle of a call, known by what can be seen of it.
type killStep struct {
	name    string
	reached func() bool
}

// The steps of a creation, in their order.
func createSteps() []killStep {
	return []killStep{
		{"the record is written", func() bool { return recordHolds(`"creating"`) }},
		{"the intent is written", func() bool { return exists(stateDir + "/ndctl-intents/*.json") }},
		{"the namespace has a label", labelled},
		{"the namespace has a device", func() bool { return exists("/dev/dax*") }},
		{"the namespace is finished", func() bool { return exists("/dev/dax*") && !exists(stateDir+"/ndctl-intents/*.json") }},
		{"the namespace's UUID is on record", func() bool { return recordHolds(`"namespaceUUID"`) }},
		{"the volume is on record", func() bool { return recordHolds(`"ready"`) }},
	}
}

// The steps of a deletion.
func deleteSteps() []killStep {
	return []killStep{
		{"the record says so", func() bool { return recordHolds(`"deleting"`) }},
		{"all is erased", func() bool { return recordHolds(`"erased"`) }},
		{"the intent is written", func() bool { return exists(stateDir + "/ndctl-intents/*.json") }},
		{"the device is gone", func() bool { return recordHolds(`"deleting"`) && !exists("/dev/dax*") }},
		{"the label is gone", func() bool { return recordHolds(`"deleting"`) && !labelled() }},
	}
}

func exists(pattern string) bool {
	found, err := filepath.Glob(pattern)
	return err == nil && len(found) > 0
}

func recordHolds(text string) bool {
	records, err := filepath.Glob(stateDir + "/volumes/*.json")
	if err != nil || len(records) == 0 {
		return false
	}
	data, err := os.ReadFile(records[0])
	return err == nil && bytes.Contains(data, []byte(text))
}

// labelled reports whether a namespace has a name.
func labelled() bool {
	names, err := filepath.Glob("/sys/bus/nd/devices/namespace*/alt_name")
	if err != nil {
		return false
	}
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(text), "nvfs-killed") {
			return true
		}
	}
	return false
}

// The driver is killed at every step of a creation, and of a deletion. What is
// left is finished by the next call, or reported.
func TestKilledDriverLeavesNothingBehind(t *testing.T) {
	m := emptySystem(t)
	d := startDriver(t)
	k := killer{t: t, m: m, d: d}
	for _, step := range createSteps() {
		k.create(step)
	}
	for _, step := range deleteSteps() {
		k.delete(step)
	}
	t.Logf("killed at %d of %d steps; the others had passed before they were seen", k.hit, len(createSteps())+len(deleteSteps()))
	if k.hit < 6 {
		t.Errorf("the driver was killed at %d steps only", k.hit)
	}
}

type killer struct {
	t   *testing.T
	m   *ndctl.System
	d   *driver
	hit int
}

func (k *killer) create(step killStep) {
	request := &csi.CreateVolumeRequest{Name: "killed", CapacityRange: &csi.CapacityRange{RequiredBytes: 30 * mib}, VolumeCapabilities: []*csi.VolumeCapability{filesystem("")}}
	k.during(step, func() { _, _ = k.d.controller.CreateVolume(limit(k.t, callTimeout), request) })
	v := k.d.mustCreate(k.t, "killed", 30*mib, filesystem(""), nil)
	if all, err := k.m.Namespaces(limit(k.t, callTimeout)); err != nil || len(all) != 1 || all[0].Name != v.id || all[0].Lost != "" {
		k.t.Errorf("killed when %s, then created: %+v, %v", step.name, all, err)
	}
	v.delete(k.t)
	wantNoneLeft(k.t, k.m)
}

func (k *killer) delete(step killStep) {
	v := k.d.mustCreate(k.t, "killed", 30*mib, filesystem(""), nil)
	k.during(step, func() {
		_, _ = k.d.controller.DeleteVolume(limit(k.t, callTimeout), &csi.DeleteVolumeRequest{VolumeId: v.id})
	})
	v.delete(k.t)
	wantNoneLeft(k.t, k.m)
}

// during runs call, kills the driver as soon as the step is reached, and starts
// it again.
func (k *killer) during(step killStep, call func()) {
	k.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	reached := step.reached()
	for ended := false; !reached && !ended; reached = step.reached() {
		select {
		case <-done:
			ended = true
		case <-time.After(time.Millisecond): // there is no event for most of them
		}
	}
	k.d.end(k.t, syscall.SIGKILL)
	<-done
	if reached {
		k.hit++
	} else {
		k.t.Logf("it was not seen that %s", step.name)
	}
	k.d.start(k.t)
}
