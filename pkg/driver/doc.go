// Package driver is the CSI driver: the Identity, Controller and Node services
// on one Unix socket. Every node runs one and provisions its own persistent
// memory; nothing is shared between nodes.
//
// The truth about a volume is on the device: its namespace carries the volume
// ID as name, and the superblock on it the volume ID and the parameters. A
// record, one JSON file per volume in the state directory, is written before
// each change of the device, so that after a crash the driver knows how far it
// had come (see record). A record of an NVFS volume that is missing is made
// again from the device; a device that does not confirm what the record says, or
// that is not NVFS and has none, is reported and never formatted. What cannot be
// seen after a start is waited for before it is taken for gone (settling).
//
// # Locking
//
// One operation per volume runs at a time, across the controller and node
// services (inflight); a second one is answered Aborted. Calls that only read
// (stats, health, capacity, lists) take no lock at all, so that a mount that
// hangs can never keep a pod from being torn down. Whatever touches a mounted
// filesystem goes through mounts.statfs, which is bounded in time and of which
// at most one per path is under way.
//
// The background erasure of a deleted volume (eraser) owns the record of that
// volume: nobody else writes a record in phaseDeleting.
package driver
