// Package controller is the part of the driver that looks at the whole cluster.
// It changes no volume. It tells users by events what the driver of a single
// node cannot know: that a StorageClass is wrong, that no node can serve it,
// that a claim is larger than any node has room for, that the node of a volume
// is gone, and which volumes on the nodes nobody asks for any more.
//
// It asks the nodes over HTTP for what they offer and hold (driver.Report), and
// the API server for everything else. What follows from that is decided by
// functions without side effects: findings of classes.go, claims.go and
// orphans.go.
package controller
