package fusefs

// Prepare does ahead, in a process that will serve a volume, what a transport
// with these options would do when it begins, and what takes the longer the more
// the process already does: all of it is stopped for that.
func Prepare(o Options) { reserveProcs(o.threads()) }
