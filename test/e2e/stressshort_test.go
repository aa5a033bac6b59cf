//go:build !soak

package e2e

import "time"

const soak = false

// commandTimeout bounds one command.
const commandTimeout = 60 * time.Second
