//go:build !man

package main

import "github.com/spf13/cobra"

// optionalCommands returns the commands of builds with other tags.
func optionalCommands() []*cobra.Command { return nil }
