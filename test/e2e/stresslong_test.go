//go:build soak

package e2e

const soak = true
