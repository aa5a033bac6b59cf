// Package fusefs serves a filesystem to the kernel over FUSE. It is a thin
// adapter: it checks and decodes what the kernel sends, calls a Worker, and
// encodes the answer; what an operation means is the Worker's business.
//
// The layers, from the top:
//
//   - a Transport moves requests and replies between the kernel and threads
//     (dev: read and write on /dev/fuse);
//   - a handler, one per thread, executes one request in a message buffer and
//     leaves the reply in another; it knows no file descriptor, so tests drive
//     it with messages from memory;
//   - a Filesystem makes one Worker per handler.
//
// Nothing is allocated on the way of an operation: the buffers belong to the
// thread, names and data are slices of them, and attributes live in the
// handler.
//
// What the connection has negotiated, and the answers the kernel remembers
// for its lifetime, is a Session; it can be saved, so that another process can
// take the connection over.
package fusefs
