//go:build nvfstools

package main

import "github.com/spf13/cobra"

func csiCommands() []*cobra.Command { return nil }

func clusterCommands() []*cobra.Command { return nil }
