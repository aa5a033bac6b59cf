//go:build race

package crashtest

// raced says that the race detector is on, under which a crash image takes ten
// times as long: then only what runs at the same time is of interest.
const raced = true
