//go:build soak

package e2e

import "time"

const soak = true

// commandTimeout bounds one command, such as a find over a million files on a busy
// machine.
const commandTimeout = 30 * time.Minute
