package nvfs

import "github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"

// noteDamage sets the error flag of the volume, once, if damage of it was met: the
// next mount and fsck are to know of it even if the process ends before
// anybody asks for Health. It does so although damage has made the volume
// read-only, since no other record changes the flags; not when the mount was
// read-only from the beginning, nor when a record of the internal Worker, in
// whose slot this one would go, awaits the next recovery. fs.growMu is held.
func (fs *FS) noteDamage() {
	w := fs.internal
	select {
	case <-fs.met:
	default:
		return
	}
	if fs.observer || w.stuck {
		return
	}
	flags := layout.Dynamic(fs.mem[layout.DynamicOffset : layout.DynamicOffset+layout.StaticSize])
	err := fs.guard("note damage", func() error {
		verified := layout.Verify(fs.seed, layout.DynamicLocation, flags)
		if !verified || flags.Errors()&layout.ErrorCorruption != 0 {
			return nil // a damaged half tells fsck enough
		}
		w.Begin(&Request{})
		d := layout.Dynamic(w.stage(layout.DynamicOffset, layout.StaticSize, layout.DynamicLocation, sealWhole))
		d.SetErrors(d.Errors() | layout.ErrorCorruption)
		d.SetChangeTime(fs.clock().Sec)
		w.tx.note = true
		defer func() { w.tx.note = false }()
		return w.commit()
	})
	if err != nil {
		w.Abort() // the volume is damaged anyway, and known to be
	}
	w.End()
}

// recallDamage makes what an earlier mount noted known to Health.
func (fs *FS) recallDamage(d layout.Dynamic) {
	if d.Errors() == 0 {
		return
	}
	fs.healthMu.Lock()
	defer fs.healthMu.Unlock()
	if fs.health == "" {
		fs.health = "damage was met in an earlier mount; unmount the volume and run fsck --repair"
	}
}
