//go:build race

package nvfs_test

const raceEnabled = true
