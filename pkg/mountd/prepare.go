package mountd

import (
	"io"

	"k8s.io/klog/v2"
)

// prepareOpen does ahead what can be done of opening the volume while the server
// before still has it. Its users do not wait yet.
func (s *server) prepareOpen() {
	if !s.resume.Wait || s.opts.Prepare == nil {
		return
	}
	spec := s.held.Spec
	err := s.devices.load(s.opts.StateDir, spec.VolumeID, s.held.Instance)
	if err == nil {
		spec.Devices = s.devices.with(spec.Devices)
		s.prepared, err = s.opts.Prepare(spec)
	}
	if err != nil {
		klog.V(2).InfoS("The volume is opened when it is this process's turn, not before", "volume", spec.VolumeID, "reason", err.Error())
	}
}

// takePrepared returns what prepareOpen has left, which then is the caller's.
func (s *server) takePrepared() io.Closer {
	p := s.prepared
	s.prepared = nil
	return p
}
