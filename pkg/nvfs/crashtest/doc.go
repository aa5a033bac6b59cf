// Package crashtest interrupts the engine at every point at which a crash can
// come, and checks what is left.
//
// A Case is a list of operations on a prepared volume. It is run once on
// recorded memory (package record), beside a model of a filesystem that says
// what each operation must do. Of each content that a crash may leave:
//
//   - fsck finds nothing wrong with it, the journal replayed;
//   - the journal says of the interrupted request that it was executed when,
//     and only when, its effect is there;
//   - it can be mounted, and the tree is that of the model before or after
//     the interrupted operation: after it once the operation has returned. Of
//     data that is overwritten in place each aligned word may be old or new;
//   - files can be made, written, renamed and removed; when everything is
//     removed all space is free, and fsck still finds nothing;
//   - recovered twice it gives the same tree;
//   - a crash within recovery, and one within the recovery from that, changes
//     nothing of all this.
//
// A failure names the command that repeats it. The tests of this package are
// the workloads; make crash runs them at length.
package crashtest
