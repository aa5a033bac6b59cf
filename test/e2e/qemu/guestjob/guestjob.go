// Package guestjob is what the host tells a guest to run, and how the guest
// reports the result.
package guestjob

// Job is run by the guest's init, one command after the other.
type Job struct {
	Modules  []string  `json:"modules"`         // names for modprobe, or paths; in this order
	State    bool      `json:"state,omitempty"` // there is a disk that outlives the guest, for StateDir
	Commands []Command `json:"commands"`
}

// Command is a program on the guest's programs disk with its arguments.
type Command struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
}

// Marker is the environment variable that tells programs that they run in a
// guest.
const Marker = "NVFS_QEMU_GUEST"

// ProgramsDir is the mount point of the programs disk.
const ProgramsDir = "/job"

// StateDir is where programs keep what is to outlive them. It is in memory unless
// the job has a disk for it.
const StateDir = "/var/lib"

// ExitPrefix begins the last line of a guest that ran its job to the end; the
// exit code of the first command that failed follows, or 0.
const ExitPrefix = "guest-exit: "
